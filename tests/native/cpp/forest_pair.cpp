#include "forest_pair.hpp"

#include <algorithm>

namespace agentspec {

void Batch::add(RequestId id, TokenSpan added) {
  requests.push_back(id);
  tokens.insert(tokens.end(), added.begin(), added.end());
  offsets.push_back(static_cast<std::int64_t>(tokens.size()));
}

ForestPair::ForestPair(std::uint32_t depth, const Budgets &budgets,
                       std::size_t num_threads)
    : budgets_(budgets), core_(depth, budgets.forest_bytes, num_threads),
      naive_(depth) {
  for (GroupId &group : groups_)
    group = core_.create_group(budgets.group_bytes);
  if (!budgets.are_unlimited())
    return;
  for (std::size_t i = 0; i < kNumGroups; ++i) {
    models_[i] = core_.create_model(groups_[i]);
    naive_.create_model(models_[i]);
  }
}

// ---- calls
// --------------------------------------------------------------------------------------------

void ForestPair::create_index(std::size_t group) {
  const std::uint32_t weight = created_.size() % 3 == 2 ? 32 : 1;
  const IndexId id =
      core_.create_index(groups_[group], budgets_.index_bytes, weight);
  naive_.create_index(id);
  group_of_[id] = group;
  created_.push_back(id);
  check();
}

void ForestPair::drop_index(IndexId id) {
  core_.drop_index(id);
  naive_.drop_index(id);
  group_of_.erase(id);
  check();
}

void ForestPair::learn(std::span<const IndexId> indices, TokenSpan tokens) {
  const auto uses = static_cast<std::uint32_t>(1 + tokens.size() % 3);
  core_.learn(indices, tokens, {uses});
  for (std::uint32_t use = 0; use < uses; ++use)
    naive_.learn(indices, tokens);
  check();
}

void ForestPair::forget(std::span<const IndexId> indices, TokenSpan tokens) {
  core_.forget(indices, tokens);
  naive_.forget(indices, tokens);
  check();
}

void ForestPair::start(RequestId id, std::size_t group, TokenSpan prompt,
                       TokenSpan prediction,
                       std::span<const SharedSource> sources, bool learn,
                       const DraftOptions &options, bool in_background,
                       bool is_learned) {
  std::optional<ModelId> model;
  if (is_learned && budgets_.are_unlimited())
    model = models_[group];
  in_background &=
      !model; // what a model learns depends on when the index is ready
  core_.start({.id = id,
               .group = groups_[group],
               .prompt = prompt,
               .prediction = prediction,
               .sources = sources,
               .options = options,
               .model = model,
               .learn = learn,
               .in_background = in_background});
  naive_.start(id, prompt, prediction, sources, learn, options, model);
  if (in_background)
    building_.insert(id);
  if (!budgets_.are_unlimited())
    wait(id); // otherwise the bytes of several calls would not fit together
  check();
}

void ForestPair::wait(RequestId id) {
  core_.wait(id);
  building_.erase(id);
}

void ForestPair::observe(const Batch &batch) {
  core_.observe(batch.update());
  naive_.observe(batch.update());
  check();
}

BatchDrafts ForestPair::step(const Batch &batch, std::uint32_t max_tokens,
                             bool learn_later) {
  const BatchDrafts drafts =
      core_.step(batch.update(), max_tokens, 0, learn_later);
  naive_.extend(batch.update());
  if (learn_later && !is_taken_in_pieces(batch)) {
    check_drafts(drafts, batch, max_tokens);
    naive_.apply_deferred(batch.update());
    // otherwise the next call finds tokens left to learn; with budgets it might
    // evict tokens of the drafts
    if (batch.requests.size() % 2 == 0 || !budgets_.are_unlimited())
      check();
  } else {
    naive_.apply_deferred(batch.update());
    check(); // first: the step may have evicted before it drafted
    check_drafts(drafts, batch, max_tokens);
  }
  return drafts;
}

bool ForestPair::is_taken_in_pieces(const Batch &batch) {
  for (std::size_t i = 0; i < batch.requests.size(); ++i) {
    if (batch.update().tokens_of(i).size() > SuffixIndex::kPieceTokens)
      return true;
  }
  return false;
}

void ForestPair::check_drafts(const BatchDrafts &drafts, const Batch &batch,
                              std::uint32_t max_tokens) {
  require_equal(drafts.scores.size(), batch.requests.size(),
                "number of drafts");
  for (std::size_t i = 0; i < batch.requests.size(); ++i) {
    const DraftView draft(drafts, i);
    if (naive_.is_learned(batch.requests[i])) {
      require_same_draft(draft,
                         naive_.draft_learned(batch.requests[i], max_tokens));
    } else if (budgets_.are_unlimited()) {
      check_draft(draft, batch.requests[i], max_tokens);
    } else {
      check_draft_after_evictions(draft, batch.requests[i], max_tokens);
    }
  }
}

void ForestPair::finish(RequestId id, bool keep) {
  core_.finish(id, keep);
  naive_.finish(id, keep);
  building_.erase(id);
  dropped_.erase(id);
  check();
}

// ---- drafts
// -------------------------------------------------------------------------------------------

void ForestPair::check_draft(const DraftView &draft, RequestId id,
                             std::uint32_t max_tokens) const {
  const bool may_lack_own =
      building_.contains(id) && draft.source != kRequestSource;
  require_same_draft(draft, naive_.draft(id, max_tokens, !may_lack_own));
}

// An index with evictions may return any plausible draft. All others draft as
// well as before. A request that lost its own index never gets another.
void ForestPair::check_draft_after_evictions(const DraftView &draft,
                                             RequestId id,
                                             std::uint32_t max_tokens) {
  ExpectedDraft at_least =
      naive_.draft(id, max_tokens, !dropped_.contains(id), evicted_);
  if (draft.score < at_least.draft.score && at_least.source == kRequestSource &&
      budgets_.can_drop()) {
    dropped_.insert(id);
    at_least = naive_.draft(id, max_tokens, false, evicted_);
  }
  if (draft.source == kNoSource || draft.source == kRequestSource)
    return require_same_draft(draft, at_least);
  require_at_most(at_least.draft.score, draft.score,
                  "score of what has lost nothing");
  require_plausible_draft(draft, naive_, id, max_tokens);
}

// ---- checks
// -------------------------------------------------------------------------------------------

// Waits for the background work, which changes the figures.
std::vector<std::size_t> ForestPair::figures() {
  while (!building_.empty())
    wait(*building_.begin());
  core_.settle();
  std::vector<std::size_t> all{core_.num_requests(), core_.memory_bytes()};
  for (const GroupId group : groups_)
    all.push_back(core_.group_bytes(group));
  for (const auto &[id, group] : group_of_) {
    const auto [num_sequences, num_tokens] = core_.index_size(id);
    all.insert(all.end(), {core_.index_bytes(id), num_sequences, num_tokens});
  }
  return all;
}

void ForestPair::check() {
  core_.settle();
  require_equal(core_.num_requests(), naive_.num_requests(),
                "number of requests");
  for (const auto &[id, index] : naive_.indices()) {
    const auto [num_sequences, num_tokens] = core_.index_size(id);
    require(num_sequences <= index.num_sequences() &&
                num_tokens <= index.num_tokens(),
            "an index holds more than it was given");
    if (num_tokens < index.num_tokens())
      evicted_.insert(id);
    require(evicted_.empty() || !budgets_.are_unlimited(),
            "something was evicted without a budget");
    require(evicted_.contains(id) || num_sequences == index.num_sequences(),
            "a sequence is lost");
  }
  if (!budgets_.are_unlimited())
    check_budgets();
}

void ForestPair::check_budgets() const {
  Usage forest{core_.memory_bytes()};
  std::array<Usage, kNumGroups> groups;
  for (std::size_t i = 0; i < kNumGroups; ++i)
    groups[i].bytes = core_.group_bytes(groups_[i]);
  require_equal(forest.bytes, groups[0].bytes + groups[1].bytes,
                "bytes of all groups");
  for (const auto &[id, group] : group_of_) {
    const Usage index{core_.index_bytes(id), core_.index_bytes(id),
                      core_.index_size(id).second};
    index.require_within(budgets_.index_bytes, "bytes of an index");
    groups[group].add(index);
    forest.add(index);
  }
  for (const Usage &group : groups) {
    group.require_within(budgets_.group_bytes, "bytes of a group");
    forest.excess_bytes +=
        group.bytes - std::min(group.bytes, budgets_.group_bytes);
  }
  forest.require_within(budgets_.forest_bytes, "bytes of the forest");
}

void ForestPair::Usage::add(const Usage &index) {
  index_bytes += index.index_bytes;
  num_tokens += index.num_tokens;
}

// A budget may be exceeded only by memory that can't be evicted, once all other
// memory is evicted. The forest's budget may also be exceeded by the groups'
// own excess. Until the next call, so may memory that one index takes to make
// room for another.
void ForestPair::Usage::require_within(std::size_t limit_bytes,
                                       const char *what) const {
  constexpr std::size_t kSlackBytes = 2048;
  require_at_most(index_bytes, bytes, what);
  const bool has_more_to_give = num_tokens > 0 || bytes > index_bytes;
  const std::size_t excused_bytes = kSlackBytes + excess_bytes;
  if (has_more_to_give && bytes > excused_bytes)
    require_at_most(bytes - excused_bytes, limit_bytes, what);
}

} // namespace agentspec
