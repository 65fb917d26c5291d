#include "draft_checks.hpp"

#include <algorithm>
#include <cmath>

#include "finding.hpp"

namespace agentspec {
namespace {

constexpr double kRounding = 1e-6;  // of probabilities rounded to float

std::vector<std::int32_t> path_to(const DraftView& draft, std::int32_t node) {
  std::vector<std::int32_t> path;
  for (; node >= 0; node = draft.parents[static_cast<std::size_t>(node)])
    path.push_back(draft.token_ids[static_cast<std::size_t>(node)]);
  std::reverse(path.begin(), path.end());
  return path;
}

void require_sound_tree(const DraftView& draft, const DraftOptions& options) {
  double sum = 0.0;
  for (std::size_t i = 0; i < draft.token_ids.size(); ++i) {
    const std::int32_t parent = draft.parents[i];
    require(parent >= -1 && parent < static_cast<std::int32_t>(i), "a parent comes after its child");
    require(options.is_tree || parent == static_cast<std::int32_t>(i) - 1, "a chain branches");
    const double most = parent < 0 ? 1.0 : static_cast<double>(draft.probs[static_cast<std::size_t>(parent)]);
    const double prob = static_cast<double>(draft.probs[i]);
    require(prob <= most && prob >= options.min_prob - kRounding, "a probability is out of bounds");
    for (std::size_t j = 0; j < i; ++j) {
      require(draft.parents[j] != parent || draft.token_ids[j] != draft.token_ids[i],
              "a node has two equal children");
    }
    sum += prob;
  }
  require(std::abs(sum - draft.score) < kRounding * 100, "the score is not the sum of the probabilities");
}

}  // namespace

DraftView::DraftView(const BatchDrafts& drafts, std::size_t i)
    : score(drafts.scores.at(i)),
      match_length(static_cast<std::size_t>(drafts.match_lengths.at(i))),
      source(drafts.sources.at(i)) {
  const auto from = static_cast<std::size_t>(drafts.offsets.at(i));
  const std::size_t size = static_cast<std::size_t>(drafts.offsets.at(i + 1)) - from;
  token_ids = std::span(drafts.token_ids).subspan(from, size);
  parents = std::span(drafts.parents).subspan(from, size);
  probs = std::span(drafts.probs).subspan(from, size);
}

void require_same_draft(const DraftView& draft, const ExpectedDraft& expected) {
  const NaiveDraft& naive = expected.draft;
  require_equal(draft.score, naive.score, "score");
  require_equal<std::size_t>(draft.match_length, naive.match_length, "match length");
  require_equal(draft.source, expected.source, "source");
  require_equal(draft.token_ids.size(), naive.token_ids.size(), "number of tokens");
  for (std::size_t i = 0; i < naive.token_ids.size(); ++i) {
    require_equal(draft.token_ids[i], naive.token_ids[i], "token");
    require_equal(draft.parents[i], naive.parents[i], "parent");
    require_equal(draft.probs[i], static_cast<float>(naive.probs[i]), "probability");
  }
}

void require_plausible_draft(const DraftView& draft, const NaiveForest& naive, RequestId id,
                             std::uint32_t max_tokens) {
  const DraftOptions& options = naive.options(id);
  require(!draft.token_ids.empty() && draft.token_ids.size() <= std::min(options.max_tokens, max_tokens),
          "a draft has too many tokens");
  require(
      static_cast<double>(draft.token_ids.size()) <= options.alpha * static_cast<double>(draft.match_length),
      "a draft is longer than its match allows");
  require(draft.match_length >= options.min_match && draft.match_length < naive.depth(),
          "a match length is out of bounds");
  require_sound_tree(draft, options);
  for (std::size_t i = 0; i < draft.token_ids.size(); ++i) {
    require(naive.has_seen(id, draft.source, draft.match_length, path_to(draft, draft.parents[i]),
                           draft.token_ids[i]),
            "a drafted token never occurred there");
  }
}

}  // namespace agentspec
