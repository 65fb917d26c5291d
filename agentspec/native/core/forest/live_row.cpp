#include "core/forest/live_row.hpp"

#include <algorithm>
#include <functional>

namespace agentspec {

RowCounts& RowCounts::operator+=(const RowCounts& other) {
  const auto add = [](auto& to, const auto& from) {
    std::ranges::transform(to, from, to.begin(), std::plus<>{});
  };
  num_output_tokens += other.num_output_tokens;
  num_steps += other.num_steps;
  num_drafts += other.num_drafts;
  decode_s += other.decode_s;
  measured_decode_s += other.measured_decode_s;
  plain_decode_s += other.plain_decode_s;
  add(drafted, other.drafted);
  add(accepted, other.accepted);
  add(accepted_by_origin, other.accepted_by_origin);
  return *this;
}

RowCounts RowCounts::first(std::int64_t num_tokens) const {
  RowCounts kept = *this;
  if (num_tokens >= num_output_tokens) return kept;
  kept.num_output_tokens = num_tokens;
  std::int64_t room = num_tokens - 1;  // the last one counts as the model's own
  for (std::int64_t& num_accepted : kept.accepted) num_accepted = std::min(num_accepted, room);
  for (std::int64_t& num_accepted : kept.accepted_by_origin) {
    num_accepted = std::min(num_accepted, room);
    room -= num_accepted;
  }
  return kept;
}

LiveRow::Gain LiveRow::gain(std::span<const std::int32_t> sampled) const {
  if (is_ended_) return {{}, 0, true};
  const auto stop = std::find_first_of(sampled.begin(), sampled.end(), stops_.begin(), stops_.end());
  const bool is_stopped = stop != sampled.end();
  const auto num_to_stop = static_cast<std::size_t>(stop - sampled.begin()) + (is_stopped ? 1 : 0);
  const std::size_t left = most_tokens_ - std::min(most_tokens_, num_tokens_);
  Gain gain;
  gain.tokens = sampled.first(std::min(num_to_stop, left));
  gain.is_end = gain.tokens.size() == left || is_stopped;
  gain.is_cut = gain.tokens.size() < sampled.size();
  gain.room = gain.is_end ? 0 : left - gain.tokens.size() - 1;
  return gain;
}

void LiveRow::complete_step(const Gain& gain, std::size_t num_slots, const Drafted& draft, double now_s) {
  num_gained_ = gain.tokens.size();
  gained_from_ = has_output_ && num_verified(num_slots) > 0 ? source_ : kNoSource;
  if (!gain.tokens.empty()) count(gain.tokens.size(), num_verified(num_slots), now_s);
  if (is_held_ && !gain.tokens.empty()) steps_.push_back(take_counts());
  if (request_ && keeps_output_) {
    output_.insert(output_.end(), pending_.begin(), pending_.end());
    output_.insert(output_.end(), gain.tokens.begin(), gain.tokens.end());
  }
  if (request_)
    pending_.clear();
  else if (!is_lost_)
    pending_.insert(pending_.end(), gain.tokens.begin(), gain.tokens.end());
  num_tokens_ += gain.tokens.size();
  is_ended_ = gain.is_end;
  num_drafted_ = draft.size;
  source_ = num_drafted_ == 0 ? kNoSource : draft.source;
  forgone_ = draft.forgone;
  std::ranges::copy(draft.origins.first(std::min(draft.origins.size(), origins_.size())), origins_.begin());
}

std::vector<std::int32_t> LiveRow::take_part(std::size_t least, std::size_t most_more) {
  if (is_held_ || output_.size() < num_taken_ + least + std::min(num_taken_, most_more)) return {};
  const auto begin = output_.begin() + static_cast<std::ptrdiff_t>(std::exchange(num_taken_, output_.size()));
  return {begin, output_.end()};
}

RowCounts LiveRow::counts(std::size_t num_tokens) const {
  RowCounts sum = counts_;
  for (const RowCounts& step : steps_) {
    const auto left = static_cast<std::int64_t>(num_tokens) - sum.num_output_tokens;
    if (left <= 0) break;
    sum += step.first(left);
  }
  return sum;
}

LiveRow::ModelResult LiveRow::model_result(const Gain& gain, std::size_t num_slots) const {
  if (source_ != kModelSource || !has_output_ || gain.tokens.empty()) return {};
  const std::size_t num_new = gain.tokens.size();
  const std::size_t verified = std::min(num_verified(num_slots), gain.is_cut ? num_new : num_drafted_);
  return {verified, std::min(gain.is_cut ? num_new : num_new - 1, verified), forgone_};
}

// The very first token belongs to no decode step. Accepted padding is no accepted draft token.
void LiveRow::count(std::size_t num_new, std::size_t num_verified, double now_s) {
  const auto num_tokens = static_cast<std::int64_t>(num_new);
  counts_.num_output_tokens += num_tokens;
  if (has_output_) {
    ++counts_.num_steps;
    counts_.decode_s += now_s - last_s_;
  }
  if (has_output_ && num_verified > 0) {
    ++counts_.num_drafts;
    counts_.drafted[source_] += static_cast<std::int64_t>(num_verified);
    const std::size_t num_accepted = std::min(num_new - 1, num_verified);
    counts_.accepted[source_] += static_cast<std::int64_t>(num_accepted);
    const std::size_t num_known = source_ == kModelSource ? 0 : std::min(num_accepted, origins_.size());
    for (const Origin one : std::span(origins_).first(num_known))
      ++counts_.accepted_by_origin[static_cast<std::size_t>(one)];
  }
  has_output_ = true;
  last_s_ = now_s;
}

}  // namespace agentspec
