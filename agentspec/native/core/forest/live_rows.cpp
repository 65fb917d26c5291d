#include "core/forest/live_rows.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/error.hpp"

namespace agentspec {
namespace {

void check_layout(const RowBatch& batch) {
  const std::size_t num_rows = batch.rows.size();
  if (batch.ends.size() < num_rows)
    throw ConfigError("each row has an end, but there are " + std::to_string(num_rows) + " rows and " +
                      std::to_string(batch.ends.size()) + " ends");
  if (batch.width > 0 && batch.texts.size() / batch.width < num_rows)
    throw ConfigError("each row has a text, but there are " + std::to_string(num_rows) + " rows and " +
                      std::to_string(batch.texts.size() / batch.width) + " texts");
}

/// The row so far.
std::span<const std::int32_t> text_of(const RowBatch& batch, std::size_t row) {
  const std::int64_t end = batch.ends[row];
  const auto width = static_cast<std::int64_t>(batch.width);
  if (end > width || end < static_cast<std::int64_t>(batch.rows[row].num_sampled))
    throw ConfigError("row " + std::to_string(row) + " can't end at " + std::to_string(end));
  return batch.texts.subspan(row * batch.width, static_cast<std::size_t>(end));
}

}  // namespace

void LiveRows::add(std::string_view name, std::size_t num_prompt_tokens, std::size_t most_tokens,
                   std::vector<std::int32_t> stops) {
  const std::lock_guard lock(mutex_);
  LiveRow row(num_prompt_tokens, most_tokens, std::move(stops));
  rows_.insert_or_assign(std::string(name), std::move(row));
}

void LiveRows::enter(std::string_view name, RequestId request) {
  const std::lock_guard lock(mutex_);
  if (const auto found = rows_.find(name); found != rows_.end()) found->second.enter(request);
}

RowCounts LiveRows::remove(std::string_view name) {
  const std::lock_guard lock(mutex_);
  parts_.clear();  // they point to rows
  const auto found = rows_.find(name);
  if (found == rows_.end()) return {};
  const RowCounts counts = found->second.take_counts();
  rows_.erase(found);
  return counts;
}

RowCounts LiveRows::take_counts(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = rows_.find(name);
  return found == rows_.end() ? RowCounts{} : found->second.take_counts();
}

void LiveRows::count_saving(double measured_s, double fixed_s, double per_token_s) {
  const std::lock_guard lock(mutex_);
  for (const Part& part : parts_) {
    if (part.was_decoding && part.gain.num_new > 0)
      part.row->count_saving(part.gain.num_new, measured_s, fixed_s, per_token_s);
  }
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

RowDrafts LiveRows::step(const RowBatch& batch, std::uint32_t max_tokens, double min_prob, double now_s) {
  check_usable();
  check_layout(batch);
  std::vector<RowDrafts::Range> ranges(batch.rows.size());  // the last allocation before any change
  const std::lock_guard lock(mutex_);
  try {
    gather(batch);
    return complete(draft(max_tokens, min_prob), std::move(ranges), now_s);
  } catch (...) {
    parts_.clear();  // count_saving() then does not count a step that failed
    throw;
  }
}

// Changes only the state of the current step.
void LiveRows::gather(const RowBatch& batch) {
  parts_.clear();
  requests_.clear();
  tokens_.clear();
  offsets_.assign(1, 0);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const auto& [name, num_sampled, num_verified] = batch.rows[i];
    if (num_sampled == 0) continue;  // the prefill of its prompt is not finished
    const auto found = rows_.find(name);
    if (found == rows_.end()) continue;
    LiveRow& row = found->second;
    parts_.push_back({i, &row, row.gain(text_of(batch, i), num_sampled), num_verified, row.has_output()});
    if (!row.request()) continue;
    const auto& gained = parts_.back().gain.tokens;
    requests_.push_back(*row.request());
    tokens_.insert(tokens_.end(), gained.begin(), gained.end());
    offsets_.push_back(static_cast<std::int64_t>(tokens_.size()));
  }
}

// Removes the rows of the step if memory runs out: the core may have ingested their output.
BatchDrafts LiveRows::draft(std::uint32_t max_tokens, double min_prob) {
  try {
    return core_.step({requests_, tokens_, offsets_}, max_tokens, min_prob, true);
  } catch (const std::bad_alloc&) {
    parts_.clear();
    std::erase_if(rows_, [this](const auto& row) {
      return row.second.request() && std::ranges::count(requests_, *row.second.request()) > 0;
    });
    throw;
  }
}

// Allocates nothing: all rows complete the step.
RowDrafts LiveRows::complete(BatchDrafts&& drafts, std::vector<RowDrafts::Range>&& ranges, double now_s) {
  RowDrafts made;
  made.ranges = std::move(ranges);
  std::size_t number = 0;  // of the draft
  for (const Part& part : parts_) {
    SourceId source = kNoSource;
    RowDrafts::Range& range = made.ranges[part.place];
    if (part.row->request()) {
      range.begin = static_cast<std::size_t>(drafts.offsets[number]);
      const auto end = static_cast<std::size_t>(drafts.offsets[number + 1]);
      range.size = std::min(end - range.begin, part.gain.room);
      made.score += drafts.scores[number];
      source = drafts.sources[number++];
    }
    part.row->complete_step(part.gain, part.num_verified, range.size, source, now_s);
    if (!part.was_decoding) continue;
    ++made.num_decoding;
    made.num_verified += part.num_verified;
    made.num_new += part.gain.num_new;
  }
  made.token_ids = std::move(drafts.token_ids);
  return made;
}

}  // namespace agentspec
