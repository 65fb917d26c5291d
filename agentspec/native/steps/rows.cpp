#include "steps/rows.hpp"

#include <algorithm>
#include <functional>
#include <new>
#include <numeric>
#include <utility>

#include "core/error.hpp"

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
  const auto stop =
      std::find_first_of(sampled.begin(), sampled.end(), made_.stops.begin(), made_.stops.end());
  const bool is_stopped = stop != sampled.end();
  const auto num_to_stop = static_cast<std::size_t>(stop - sampled.begin()) + (is_stopped ? 1 : 0);
  const std::size_t left = made_.most_tokens - std::min(made_.most_tokens, num_tokens_);
  Gain gain;
  gain.tokens = sampled.first(std::min(num_to_stop, left));
  gain.is_end = gain.tokens.size() == left || is_stopped;
  gain.is_cut = gain.tokens.size() < sampled.size();
  gain.room = gain.is_end ? 0 : left - gain.tokens.size() - 1;
  return gain;
}

void LiveRow::complete_step(const Gain& gain, std::size_t num_slots, const Drafted& draft, double now_s) {
  if (!gain.tokens.empty()) count(gain.tokens.size(), num_verified(num_slots), now_s);
  if (made_.is_held && !gain.tokens.empty()) steps_.push_back(take_counts());
  if (made_.request && made_.keeps_output) {
    output_.insert(output_.end(), pending_.begin(), pending_.end());
    output_.insert(output_.end(), gain.tokens.begin(), gain.tokens.end());
  }
  if (made_.request)
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

namespace {

constexpr float kStays = 0.5F;  // chance of a token that a grammar does not dictate

/// Returns the accepted tokens that a draft promises, less their price.
float worth_of(std::span<const float> chances, double price) {
  return std::accumulate(chances.begin(), chances.end(), -static_cast<float>(price * chances.size()));
}

/// Returns the dictated tokens behind the sampled ones; nothing if the sampled tokens differ.
std::span<const std::int32_t> behind(std::span<const std::int32_t> sampled,
                                     std::span<const std::int32_t> dictated) {
  const bool is_begun =
      sampled.size() <= dictated.size() && std::ranges::equal(sampled, dictated.first(sampled.size()));
  return is_begun ? dictated.subspan(sampled.size()) : dictated.first(0);
}

/// Replaces the trees' draft by the dictated tokens. It stays if it is longer, or if its first other token is
/// likelier than not: the model may split the dictated text into these tokens.
void take_dictated(std::span<const std::int32_t> dictated, const BatchDrafts& drafts, RowDrafts::Row& row) {
  const auto draft = std::span(drafts.token_ids).subspan(row.begin, row.size);
  const auto chances = std::span(drafts.probs).subspan(row.begin, row.size);
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(draft, dictated).in1 - draft.begin());
  if (same == dictated.size()) return;
  if (same < draft.size() && chances[same] >= kStays * (same == 0 ? 1.0F : chances[same - 1])) return;
  row.size = same;
  row.dictated = dictated;
}

}  // namespace

void LiveRows::add(std::string_view name, NewRow made) {
  const std::lock_guard lock(mutex_);
  rows_.insert_or_assign(std::string(name), LiveRow(std::move(made)));
}

void LiveRows::enter(std::string_view name, RequestId request) {
  const std::lock_guard lock(mutex_);
  if (LiveRow* row = find(name)) row->enter(request);
}

void LiveRows::resume(std::string_view name, std::size_t num_tokens) {
  const std::lock_guard lock(mutex_);
  if (LiveRow* row = find(name)) row->resume(num_tokens);
}

void LiveRows::prefill(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (LiveRow* row = find(name); row != nullptr && row->has_output()) row->lose();
}

void LiveRows::lose(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (LiveRow* row = find(name)) row->lose();
}

LiveRow* LiveRows::find(std::string_view name) {
  const auto found = rows_.find(name);
  return found == rows_.end() ? nullptr : &found->second;
}

LiveRow LiveRows::remove(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = rows_.find(name);
  if (found == rows_.end()) return LiveRow({});
  LiveRow row = std::move(found->second);
  rows_.erase(found);
  row.lose();
  return row;
}

RowCounts LiveRows::take_counts(std::string_view name) {
  const std::lock_guard lock(mutex_);
  LiveRow* row = find(name);
  return row == nullptr ? RowCounts{} : row->take_counts();
}

void LiveRows::count_row_saving(std::string_view name, std::size_t num_new, const StepSaving& saving) {
  const std::lock_guard lock(mutex_);
  if (LiveRow* row = find(name)) row->count_saving(num_new, saving);
}

void LiveRows::expect(std::size_t num_rows) {
  check_usable();
  core_.expect(num_rows);
}

void LiveRows::check_usable() const {
  if (!core_.is_usable())
    throw ForkedError(
        "these rows are the parent process's: make some after the fork, of a forest made there");
}

RowDrafts LiveRows::step(const RowBatch& batch, const RowLimits& limits, double now_s) {
  check_usable();
  std::vector<RowDrafts::Row> rows(batch.rows.size());  // the last allocation before any change
  const std::lock_guard lock(mutex_);
  gather(batch);
  return complete(draft(limits), std::move(rows), limits, now_s);
}

// Changes only the state of the current step.
void LiveRows::gather(const RowBatch& batch) {
  parts_.clear();
  requests_.clear();
  tokens_.clear();
  offsets_.assign(1, 0);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const auto& [name, sampled, num_slots, least, dictated] = batch.rows[i];
    if (sampled.empty()) continue;  // the prefill of its prompt is not finished
    LiveRow* row = find(name);
    if (row == nullptr) continue;
    parts_.push_back(
        {i, row, row->gain(sampled), num_slots, row->has_output(), least, behind(sampled, dictated)});
    const auto& gained = parts_.back().gain;
    row->reserve(gained);
    if (!row->request()) continue;
    requests_.push_back(*row->request());
    tokens_.insert(tokens_.end(), row->pending().begin(), row->pending().end());
    tokens_.insert(tokens_.end(), gained.tokens.begin(), gained.tokens.end());
    offsets_.push_back(static_cast<std::int64_t>(tokens_.size()));
  }
}

// Loses the rows of the step if memory runs out: the core may have ingested their output.
BatchDrafts LiveRows::draft(const RowLimits& limits) {
  try {
    return core_.step({requests_, tokens_, offsets_}, limits.max_tokens, limits.min_prob, true);
  } catch (const std::bad_alloc&) {
    for (const Part& part : parts_) part.row->doubt();
    throw;
  }
}

// Allocates nothing: all rows complete the step.
RowDrafts LiveRows::complete(BatchDrafts&& drafts, std::vector<RowDrafts::Row>&& rows,
                             const RowLimits& limits, double now_s) {
  RowDrafts made;
  made.rows = std::move(rows);
  std::size_t number = 0;  // of the draft
  for (const Part& part : parts_) {
    LiveRow::Drafted draft;
    RowDrafts::Row& row = made.rows[part.place];
    row.num_gained = part.gain.tokens.size();
    row.was_decoding = part.was_decoding;
    row.model = part.row->model_result(part.gain, part.num_slots);
    if (part.row->num_verified(part.num_slots) > 0) row.source = part.row->source();
    if (part.row->request()) draft = from_trees(part, drafts, number++, limits, row);
    if (row.dictated.empty()) offer_to_model(part, drafts, limits, row, draft);
    part.row->complete_step(part.gain, part.num_slots, draft, now_s);
    if (!part.was_decoding) continue;
    ++made.num_decoding;
    made.num_slots += part.num_slots;
    made.num_new += row.num_gained;
  }
  made.token_ids = std::move(drafts.token_ids);
  made.chances = std::move(drafts.probs);
  return made;
}

// The draft `number` of the trees, or the dictated tokens.
LiveRow::Drafted LiveRows::from_trees(const Part& part, const BatchDrafts& drafts, std::size_t number,
                                      const RowLimits& limits, RowDrafts::Row& row) {
  row.begin = static_cast<std::size_t>(drafts.offsets[number]);
  const auto end = static_cast<std::size_t>(drafts.offsets[number + 1]);
  row.size = std::min(end - row.begin, part.gain.room);
  if (limits.min_prob < 1) {  // a dictated token is believed to be accepted
    const std::size_t most = std::min<std::size_t>(part.gain.room, limits.max_tokens);
    take_dictated(part.dictated.first(std::min(part.dictated.size(), most)), drafts, row);
  }
  return {drafts.sources[number], row.size, std::span(drafts.origins).subspan(row.begin, row.size)};
}

// Has the engine's model draft if the trees' draft is worth too little.
void LiveRows::offer_to_model(const Part& part, const BatchDrafts& drafts, const RowLimits& limits,
                              RowDrafts::Row& row, LiveRow::Drafted& draft) {
  const std::size_t most = std::min(limits.num_model, part.gain.room);
  if (most == 0) return;
  const float worth = worth_of(std::span(drafts.probs).subspan(row.begin, row.size), limits.min_prob);
  if (row.size > 0 && worth >= part.least) return;
  row.size = 0;
  row.num_model = most;
  draft = {kModelSource, most, {}, worth};
}

}  // namespace agentspec
