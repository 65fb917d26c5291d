// A ForestCore and its naive model, driven by the same calls and compared after every one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/forest/forest_core.hpp"
#include "draft_checks.hpp"
#include "finding.hpp"
#include "naive_forest.hpp"

namespace agentspec {

struct Budgets {
  static constexpr std::size_t kNone = SuffixIndex::kUnlimited;
  std::size_t index_bytes = kNone;
  std::size_t group_bytes = kNone;
  std::size_t forest_bytes = kNone;

  bool are_unlimited() const { return index_bytes == kNone && !can_drop(); }
  /// True if live requests may lose their own indices, when no shared index has anything left to evict.
  bool can_drop() const { return group_bytes != kNone || forest_bytes != kNone; }
};

/// New tokens of several requests.
struct Batch {
  std::vector<RequestId> requests;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> offsets{0};

  void add(RequestId id, TokenSpan added);
  BatchUpdate update() const { return {requests, tokens, offsets}; }
};

/// Without budgets each group has a model, and every draft must equal that of the brute force, token by
/// token. With budgets, drafts from intact indices must still be as good, and others must be plausible. Every
/// method throws Finding, or errors of the core.
class ForestPair {
 public:
  static constexpr std::size_t kNumGroups = 2;

  ForestPair(std::uint32_t depth, const Budgets& budgets, std::size_t num_threads);

  void create_index(std::size_t group);
  void drop_index(IndexId id);
  /// Learns one to three equal sequences: in one call, but one by one in the model.
  void learn(std::span<const IndexId> indices, TokenSpan tokens);
  void forget(std::span<const IndexId> indices, TokenSpan tokens);
  void start(RequestId id, std::size_t group, TokenSpan prompt, TokenSpan prediction,
             std::span<const SharedSource> sources, bool learn, const DraftOptions& options,
             bool in_background, bool is_learned);
  void wait(RequestId id);
  void observe(const Batch& batch);
  BatchDrafts step(const Batch& batch, std::uint32_t max_tokens, bool learn_later = false);
  void finish(RequestId id, bool keep);

  /// Makes a call that has to throw `Error` and to change nothing.
  template <typename Error, typename Call>
  void refuses(Call call) {
    const std::vector<std::size_t> before = figures();
    try {
      call(core_);
    } catch (const Error&) {
      return require(figures() == before, "a call that threw has changed something");
    }
    throw Finding("a wrong call did not throw");
  }

  void check_integrity() const { core_.check_integrity(); }
  const NaiveForest& naive() const { return naive_; }
  GroupId group(std::size_t i) const { return groups_[i]; }
  /// All indices ever created.
  const std::vector<IndexId>& created() const { return created_; }

 private:
  struct Usage {  // of an index, a group, the forest
    std::size_t bytes = 0;
    std::size_t index_bytes = 0;  // those in shared indices; the others belong to live requests
    std::size_t num_tokens = 0;   // in shared indices
    std::size_t excess_bytes = 0;  // of the groups, beyond their own limits

    void add(const Usage& index);
    void require_within(std::size_t limit_bytes, const char* what) const;
  };

  static bool is_taken_in_pieces(const Batch& batch);
  void check_drafts(const BatchDrafts& drafts, const Batch& batch, std::uint32_t max_tokens);
  void check_draft(const DraftView& draft, RequestId id, std::uint32_t max_tokens) const;
  void check_draft_after_evictions(const DraftView& draft, RequestId id, std::uint32_t max_tokens);
  std::vector<std::size_t> figures();
  void check();
  void check_budgets() const;

  Budgets budgets_;
  ForestCore core_;
  NaiveForest naive_;
  std::array<GroupId, kNumGroups> groups_{};
  std::array<ModelId, kNumGroups> models_{};
  std::vector<IndexId> created_;
  std::map<IndexId, std::size_t> group_of_;  // of the existing indices
  std::set<IndexId> evicted_;     // indices with evictions: they may draft worse than their models
  std::set<RequestId> building_;  // requests that may not have an index of their own yet
  std::set<RequestId> dropped_;     // requests that have lost their own index
};

}  // namespace agentspec
