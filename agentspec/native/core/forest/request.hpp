// A live request: its own index, and its places in the shared ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "core/drafting/drafter.hpp"
#include "core/drafting/learned_drafter.hpp"
#include "core/error.hpp"
#include "core/index/match.hpp"
#include "core/index/request_index.hpp"
#include "core/index/suffix_index.hpp"
#include "core/pod_array.hpp"

namespace agentspec {

using RequestId = std::uint64_t;
using GroupId = std::uint32_t;
using IndexId = std::uint64_t;
using ModelId = std::uint64_t;

/// The source of a draft; smaller is more specific. 1 is the request itself.
using SourceId = std::uint8_t;
constexpr SourceId kNoSource = 0;
constexpr SourceId kRequestSource = 1;
constexpr SourceId kLastSource = Evidence::kNumTrees;
constexpr SourceId kModelSource = kLastSource + 1;  // the engine's model, which the core does not run

/// An index that several requests draft from and learn into.
struct Shared {
  std::unique_ptr<SuffixIndex> index;  // nullptr once it was dropped
  GroupId group;
  IndexId id;
  std::uint32_t weight = 1;             // factor of its size when an index has to make room
  std::size_t bytes = 0;                // last index->memory_bytes(), as counted in group and total
  std::size_t spare_bytes = 0;          // the same, or 0 if nothing could be evicted, until it changes
  std::array<std::size_t, 2> places{};  // in the rankings of its group and of everything
  std::size_t num_added = 0;            // tokens since its group was last balanced
  Shared* next_grown = nullptr;         // in its group's list, if there are such tokens
  std::size_t task = 0;                 // its place among the indices of the current batch
  std::uint64_t batch = 0;

  /// Weights apply within a group only: other groups' indices hold nothing of this one's.
  static constexpr std::size_t kOfGroup = 0;
  static constexpr std::size_t kOfAll = 1;
  std::size_t weigh(std::size_t num_bytes, std::size_t ranking) const {
    return ranking == kOfGroup ? num_bytes * weight : num_bytes;
  }
  bool is_larger(const Shared& other, std::size_t ranking) const {
    const std::size_t mine = weigh(spare_bytes, ranking);
    const std::size_t its = other.weigh(other.spare_bytes, ranking);
    return mine > its || (mine == its && id < other.id);
  }
};

/// The model of acceptance that the requests of a stage share.
struct Model {
  Model(GroupId group_id, const AcceptanceModel& learned) : acceptance(learned), group(group_id) {}

  AcceptanceModel acceptance;
  GroupId group;
  std::unique_ptr<AcceptanceModel> told;  // what other engines know of it; nullptr: it is not shared
  std::uint64_t num_told = 0;             // outcomes of all updates, other engines' included
  std::uint64_t num_new = 0;              // outcomes since the last update
  std::size_t task = 0;                   // its place among the models of the current batch
  std::uint64_t batch = 0;

  static constexpr std::uint64_t kLeastNew = 200, kMostNew = 16'384;
  /// True if it has learned a tenth more than all engines knew, within limits: updates become rare.
  bool has_update() const {
    return told != nullptr && num_new >= std::clamp(num_told / 10, kLeastNew, kMostNew);
  }
  std::size_t num_copies() const { return told == nullptr ? 1 : 2; }
};

/// A request's use of a shared index.
struct Link {
  std::shared_ptr<Shared> shared;
  SourceId source;
  bool has_sequence = false;
  SequenceId sequence = 0;  // the output, live in the index, if has_sequence
  Match match;              // of the request's context, as of num_matched output tokens
  std::size_t num_matched = 0;
};

enum class OwnIndex : std::uint8_t {
  kQueued,    // its text waits for the thread that builds in the background
  kBuilding,  // by one thread, outside the lock
  kReady,
  kDropped  // abandoned: no memory was left for it
};

struct Request {
  Request(RequestId request_id, std::uint32_t depth, GroupId group_id, const DraftOptions& draft_options)
      : id(request_id), own(std::make_unique<RequestIndex>(depth)), group(group_id), options(draft_options) {}

  RequestId id;

  std::unique_ptr<RequestIndex> own;  // only its builder may use it while it is built
  Match own_match;                    // of the context in it, if the output is learned later
  OwnIndex own_state = OwnIndex::kBuilding;
  bool is_finished = false;
  PodArray<std::int32_t> text;        // prediction and prompt, for the background build
  std::size_t num_predicted = 0;      // of its tokens
  std::vector<std::int32_t> pending;  // output from before the index was ready
  // The end of the text as it is looked up in shared indices: depth - 1 tokens or more, or all; fewer after
  // memory ran out. With a model it is the output behind its begin mark, for the paper's rule prompt +
  // output.
  std::vector<std::int32_t> context;
  std::size_t num_output = 0;
  GroupId group;
  DraftOptions options;
  std::vector<Link> links;                   // most specific source first
  std::size_t own_bytes = 0;                 // memory of `own`
  std::size_t bytes = 0;                     // as counted in group and total
  std::size_t place = 0;                     // among the requests of the memory budget
  std::uint64_t batch = 0;                   // last batch that named this request
  std::shared_ptr<Model> model;              // nullptr: the paper's rule drafts
  bool is_private = false;                   // models that are shared learn nothing from it
  std::vector<ScoredToken> scored;           // for its last draft, with an unknown outcome
  std::vector<ScoredToken> pending_outcome;  // for the draft before, not yet learned by the model
  std::size_t scored_bytes = 0;              // bytes of both, as counted in group and total

  bool has_own() const { return own_state == OwnIndex::kReady && own != nullptr; }
  bool has_to_come() const { return own_state == OwnIndex::kQueued || own_state == OwnIndex::kBuilding; }
  /// True if no thread works on the index, or on its text, outside the lock.
  bool is_at_rest() const { return own_state == OwnIndex::kQueued || own_state == OwnIndex::kReady; }
  std::size_t own_memory_bytes() const {
    return (own == nullptr ? 0 : own->memory_bytes()) + text.memory_bytes();
  }
  /// Copies the index's text. Throws std::bad_alloc.
  void queue(std::span<const std::int32_t> prediction, std::span<const std::int32_t> prompt) {
    text.reserve(prediction.size() + prompt.size());
    text.append(prediction);
    text.append(prompt);
    num_predicted = prediction.size();
    own_state = OwnIndex::kQueued;
  }
  /// Adds output to `context`, which is cut periodically and starts over if memory runs out. O(tokens)
  /// amortized.
  void extend_context(std::span<const std::int32_t> tokens, std::size_t depth) noexcept {
    num_output += tokens.size();
    if (context.size() > 8 * depth) {
      context.erase(context.begin(), context.end() - static_cast<std::ptrdiff_t>(depth));
    }
    if (!try_append(context, tokens)) context.clear();
  }
  /// Adds output to its own index, or keeps it until the index is ready. If memory runs out, the index is
  /// abandoned; account_own() then counts that. O(tokens * chain).
  void append(std::span<const std::int32_t> tokens) noexcept {
    if (has_to_come() && !try_append(pending, tokens)) own_state = OwnIndex::kDropped;
    if (own_state == OwnIndex::kReady) append_to_own(tokens);
  }
  /// Adds output to its own index, which is ready. Without memory there is no index afterwards.
  void append_to_own(std::span<const std::int32_t> tokens) noexcept {
    try {
      own->append(tokens);
      own_bytes = own->memory_bytes();
    } catch (const std::bad_alloc&) {
      own.reset();
    } catch (const CapacityError&) {
      own.reset();
    }
  }
  /// The end of the text in its own index; a cursor of length 0 without one.
  Cursor own_tail() const { return has_own() ? own->tail() : Cursor{}; }

 private:
  static bool try_append(std::vector<std::int32_t>& to, std::span<const std::int32_t> tokens) noexcept {
    try {
      to.insert(to.end(), tokens.begin(), tokens.end());
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
};

}  // namespace agentspec
