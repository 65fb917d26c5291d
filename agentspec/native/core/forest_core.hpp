// All live requests and shared indices of one process, by integer ids: the batch layer.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/drafter.hpp"
#include "core/suffix_index.hpp"

namespace agentspec {

using RequestId = std::uint64_t;
using IndexId = std::uint64_t;
using GroupId = std::uint32_t;

/// Where a draft comes from; the core only orders them: smaller is more specific. 1 is the request itself.
using SourceId = std::uint8_t;
constexpr SourceId kNoSource = 0;
constexpr SourceId kRequestSource = 1;

/// A shared index that a request drafts from, and learns into if the request learns.
struct SharedSource {
  IndexId index;
  SourceId source;
};

/// New output tokens of several requests: those of requests[i] are tokens[offsets[i] .. offsets[i + 1]).
struct BatchUpdate {
  std::span<const RequestId> requests;
  std::span<const std::int32_t> tokens;
  std::span<const std::int64_t> offsets;

  std::span<const std::int32_t> tokens_of(std::size_t i) const {
    return tokens.subspan(static_cast<std::size_t>(offsets[i]),
                          static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
};

/// One draft per request, end to end: draft i is [offsets[i], offsets[i + 1]) of the token arrays.
struct BatchDrafts {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<float> probs;
  std::vector<std::int64_t> offsets;
  std::vector<double> scores;
  std::vector<std::int32_t> match_lengths;
  std::vector<SourceId> sources;
};

/// Thread-safe: one lock around every call, except that a request's own index is built outside it.
///
/// Each request has an index of its own - the prompt, continued by the output, and apart from it the
/// predicted output - and a list of shared ones. Index ids are never reused, so an id that start() or learn()
/// does not know is an index that was dropped meanwhile: it is left out. A call that throws has changed
/// nothing.
class ForestCore {
 public:
  ForestCore(std::uint32_t depth, std::size_t limit_bytes);

  /// A group of indices with a common byte budget. O(1).
  GroupId create_group(std::size_t limit_bytes);
  /// An empty shared index. O(1). Throws UnknownIdError.
  IndexId create_index(GroupId group, std::size_t limit_bytes);
  /// Forgets an index; live requests go on without it. O(states). Throws UnknownIdError.
  void drop_index(IndexId id);
  /// Adds a finished sequence to each of the indices. O(indices * tokens * chain) plus evictions.
  void learn(std::span<const IndexId> indices, std::span<const std::int32_t> tokens);

  /// Admits a request. O(prompt * chain), off the lock. Throws DuplicateIdError, TokenError.
  void start(RequestId id, GroupId group, std::span<const std::int32_t> prompt,
             std::span<const std::int32_t> prediction, std::span<const SharedSource> sources, bool learn,
             const DraftOptions& options);
  /// Takes new output of a batch, without drafting. O(tokens * sources * chain) plus evictions.
  void observe(const BatchUpdate& update);
  /// The same, then drafts for the batch, at most max_tokens per request: the draft of the highest score
  /// wins, ties stay with the more specific source. Adds per request O(new tokens + match lengths *
  /// max_tokens) for each source; matching starts over, O(depth), where a request does not learn into an
  /// index that others changed, and within its first depth tokens.
  BatchDrafts step(const BatchUpdate& update, std::uint32_t max_tokens);
  /// Forgets a live request; its output stays in the shared indices if `keep`.
  /// O(sources), without `keep` O(output * sources * chain). Throws UnknownIdError.
  void finish(RequestId id, bool keep);

  /// Bytes allocated for one index, a group (its live requests included), everything. O(1).
  std::size_t index_bytes(IndexId id) const;
  std::size_t group_bytes(GroupId id) const;
  std::size_t memory_bytes() const;
  /// (sequences, tokens) of an index. O(1).
  std::pair<std::size_t, std::size_t> index_size(IndexId id) const;
  std::size_t num_requests() const;
  /// Checks every index. Throws IntegrityError.
  void check_integrity() const;

 private:
  struct Group {
    std::size_t limit_bytes;
    std::size_t bytes = 0;  // of its indices and its requests' own ones
  };
  struct Shared {
    Shared(std::uint32_t depth, std::size_t limit_bytes, GroupId group_id)
        : index(depth, limit_bytes), group(group_id) {}
    SuffixIndex index;
    GroupId group;
    std::size_t bytes = 0;  // last seen index.memory_bytes(): what group and total hold of it
    bool is_dropped = false;
  };
  static constexpr std::size_t kNever = ~std::size_t{0};

  struct Link {
    std::shared_ptr<Shared> shared;
    SourceId source;
    bool has_sequence = false;
    SequenceId sequence = 0;           // the output, live in shared->index, if has_sequence
    Cursor match;                      // of the context, as of num_matched and version
    std::size_t num_matched = kNever;  // output tokens that the context had when `match` was found
    std::uint64_t version = 0;         // of the index then
  };
  struct Request {
    Request(std::uint32_t depth, GroupId group_id, const DraftOptions& draft_options)
        : own(depth, SuffixIndex::kUnlimited), group(group_id), options(draft_options) {}
    SuffixIndex own;
    SequenceId text = 0;  // prompt and output, live in `own`
    GroupId group;
    DraftOptions options;
    std::vector<Link> links;  // most specific source first
    std::size_t num_output = 0;
    std::size_t bytes = 0;    // last seen own.memory_bytes()
    std::uint64_t batch = 0;  // last batch that named this request
  };

  Request& request(RequestId id);
  const std::shared_ptr<Shared>& shared(IndexId id) const;
  std::vector<Request*> resolve(const BatchUpdate& update);
  void connect(Request& request, std::span<const SharedSource> sources, bool learn);
  void append(Request& request, std::span<const std::int32_t> tokens);
  void draft(Request& request, std::span<const std::int32_t> new_tokens, std::uint32_t max_tokens);
  Cursor find_match(const Request& request, Link& link, std::span<const std::int32_t> new_tokens) const;
  void account(std::size_t& seen, std::size_t now, GroupId group);
  void balance();
  bool shrink_largest(const Group* group, std::size_t excess);

  const std::uint32_t depth_;
  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;  // guards everything below
  std::vector<Group> groups_;
  std::unordered_map<IndexId, std::shared_ptr<Shared>> indices_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  IndexId next_index_ = 0;
  std::uint64_t num_batches_ = 0;
  std::size_t bytes_ = 0;  // of all groups
  Drafter drafter_;
  DraftTokens best_;  // scratch of draft()
  SourceId best_source_ = kNoSource;
};

}  // namespace agentspec
