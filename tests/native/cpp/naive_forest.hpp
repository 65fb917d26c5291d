// A brute-force model of ForestCore: the same calls, answered by scanning the texts. It has no budgets.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/forest/forest_core.hpp"
#include "core/error.hpp"
#include "naive_index.hpp"
#include "naive_learned.hpp"

namespace agentspec {

struct ExpectedDraft {
  NaiveDraft draft;
  SourceId source = kNoSource;
};

class NaiveForest {
 public:
  explicit NaiveForest(std::uint32_t depth) : depth_(depth) {}

  void create_index(IndexId id) { indices_.emplace(id, NaiveIndex(depth_, true)); }
  void drop_index(IndexId id) { indices_.erase(id); }
  void learn(std::span<const IndexId> indices, TokenSpan tokens);
  /// Live requests keep their output.
  void forget(std::span<const IndexId> indices, TokenSpan tokens);
  void create_model(ModelId id) { models_[id]; }
  void start(RequestId id, TokenSpan prompt, TokenSpan prediction, std::span<const SharedSource> sources,
             bool learn, const DraftOptions& options, std::optional<ModelId> model = std::nullopt);
  void observe(const BatchUpdate& update);
  /// The same in two parts: extend() adds the output to the requests, and apply_deferred() learns it.
  void extend(const BatchUpdate& update);
  void apply_deferred(const BatchUpdate& update);
  void finish(RequestId id, bool keep);

  /// The request's next draft: Algorithm 1 over every source. It can leave out the request's own text and
  /// some indices. The most specific source wins ties.
  ExpectedDraft draft(RequestId id, std::uint32_t max_tokens, bool with_own = true,
                      const std::set<IndexId>& left_out = {}) const;
  bool is_learned(RequestId id) const { return requests_.at(id).model.has_value(); }
  /// The same for a request with a model, which will learn from the tokens that follow.
  ExpectedDraft draft_learned(RequestId id, std::uint32_t max_tokens);
  std::uint32_t depth() const { return depth_; }
  std::size_t num_requests() const { return requests_.size(); }
  bool is_live(RequestId id) const { return requests_.contains(id); }
  const DraftOptions& options(RequestId id) const { return requests_.at(id).options; }
  /// Prompt and output.
  TokenSpan text(RequestId id) const { return requests_.at(id).text; }
  const std::map<IndexId, NaiveIndex>& indices() const { return indices_; }
  /// True if a source of this name has ever seen the token follow the last `match_length` tokens of the
  /// request's text and then `path`.
  bool has_seen(RequestId id, SourceId source, std::size_t match_length, TokenSpan path,
                std::int32_t token) const;

 private:
  struct Link {
    IndexId index;
    SourceId source;
    std::uint64_t key;  // of the output in the index, if the request learns
  };
  struct Request {
    NaiveIndex own;
    std::uint64_t key;  // of prompt and output in `own`
    std::vector<std::int32_t> text;
    std::vector<std::int32_t> output{kBeginToken};  // as the indices know it, for a request with a model
    DraftOptions options;
    bool learns;
    std::vector<Link> links;  // most specific source first
    std::optional<ModelId> model;
    NaiveScores scored;
    NaiveScores pending_outcome;  // still to be learned from
  };

  bool is_live(IndexId index, std::uint64_t key) const;
  static TokenSpan text_for(const Request& request, SourceId source) {
    return source == kRequestSource || !request.model ? request.text : request.output;
  }

  std::uint32_t depth_;
  std::map<IndexId, NaiveIndex> indices_;
  std::map<RequestId, Request> requests_;
  std::map<ModelId, AcceptanceModel> models_;
};

}  // namespace agentspec
