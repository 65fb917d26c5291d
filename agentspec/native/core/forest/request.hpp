// A live request: its own index, and its places in the shared ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/drafting/drafter.hpp"
#include "core/drafting/learned_drafter.hpp"
#include "core/forest/own_index.hpp"
#include "core/index/match.hpp"
#include "core/index/suffix_index.hpp"

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
  std::size_t task = 0;  // its place among the models of the current batch
  std::uint64_t batch = 0;
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

/// What a model scored for a request's drafts: the model learns from it once the next tokens are known.
struct ScoredDrafts {
  std::vector<ScoredToken> last;     // for its last draft, with an unknown outcome
  std::vector<ScoredToken> pending;  // for the draft before, not yet learned by the model
  std::size_t counted_bytes = 0;     // of both, as counted in group and total

  std::size_t memory_bytes() const { return (last.capacity() + pending.capacity()) * sizeof(ScoredToken); }
};

/// A shared index that a request drafts from, and learns into if the request learns.
struct SharedSource {
  IndexId index;
  SourceId source;
};

/// What a request starts with. The spans must live until it has started.
struct NewRequest {
  RequestId id;
  GroupId group;
  std::span<const std::int32_t> prompt = {};
  std::span<const std::int32_t> prediction = {};
  std::span<const SharedSource> sources = {};
  DraftOptions options = {};
  std::optional<ModelId> model = std::nullopt;  // LearnedDrafter drafts, and the model learns
  bool learn = true;                            // the shared indices learn its output
  bool in_background = false;                   // its own index is built by another thread
  bool is_private = false;                      // its model learns nothing from it
};

struct Request {
  Request(const NewRequest& made, std::uint32_t depth)
      : id(made.id), group(made.group), options(made.options), is_private(made.is_private), own(depth) {}

  const RequestId id;
  const GroupId group;
  const DraftOptions options;
  const bool is_private;
  OwnIndex own;
  Match own_match;          // of the context in it, if the output is learned later
  std::vector<Link> links;  // most specific source first
  // The end of the text as it is looked up in shared indices: depth - 1 tokens or more, or all; fewer after
  // memory ran out. With a model it is the output behind its begin mark, for the paper's rule prompt +
  // output.
  std::vector<std::int32_t> context;
  std::size_t num_output = 0;
  std::shared_ptr<Model> model;  // nullptr: the paper's rule drafts
  ScoredDrafts scored;
  bool is_finished = false;
  std::size_t bytes = 0;    // as counted in group and total
  std::size_t place = 0;    // among the requests of the memory budget
  std::uint64_t batch = 0;  // last batch that named this request

  /// Adds output to `context`, which is cut periodically and starts over if memory runs out. O(tokens)
  /// amortized.
  void extend_context(std::span<const std::int32_t> tokens, std::size_t depth) noexcept {
    num_output += tokens.size();
    if (context.size() > 8 * depth) {
      context.erase(context.begin(), context.end() - static_cast<std::ptrdiff_t>(depth));
    }
    if (!try_append(context, tokens)) context.clear();
  }
};

}  // namespace agentspec
