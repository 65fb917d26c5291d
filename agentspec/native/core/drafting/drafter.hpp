// Algorithm 1 of SuffixDecoding (arXiv 2411.04975): finds the best draft for a matched context.
#pragma once

#include <cstdint>
#include <vector>

#include "core/index/automaton.hpp"

namespace agentspec {

struct DraftOptions {
  bool is_tree = false;          // grow a tree best-first; otherwise a chain of best continuations
  std::uint32_t max_tokens = 0;  // 0 = never draft
  double alpha = 4.0;            // MAX_SPEC = floor(alpha * match length)
  std::uint32_t min_match = 1;
  double min_prob = 0.1;  // tokens with a smaller D(N) are not drafted
  double doubt = 0.0;     // assumed unseen occurrences after a context of one token; 0 = the paper's rule
};

/// A draft: parents[i] < i is the index of token i's parent, -1 the matched context.
struct DraftTokens {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<double> probs;    // D(N)
  std::vector<Origin> origins;  // of each token after its context
  double score = 0.0;           // sum of D(N)
  std::uint32_t match_length = 0;

  void clear();
  void push(std::int32_t token, std::int32_t parent, double prob, Origin origin = Origin::kLocal);
};

/// Drafts from const automata. Keeps only scratch memory between calls.
///
/// C(N) is the count of N over the sum of its own and its siblings' counts. D(N), the product of C along the
/// path, estimates the probability that N is accepted. With `doubt`, doubt / (length of the context) is added
/// to that sum, since a token seen once after a short context is uncertain. A draft that exceeds the
/// depth continues from the last depth - 1 tokens.
class Drafter {
 public:
  /// Tries every match length of the context `match` (a settled cursor): the states on its suffix-link chain,
  /// each with its longest string, which dominates the state's shorter ones. Replaces `best` and returns true
  /// if a draft scores higher. The longer match wins ties. Skips lengths that can't score higher, and lengths
  /// for which memory runs out. O(match lengths * max_tokens), for is_tree times the children of the drafted
  /// states.
  bool improve(const Automaton& automaton, Cursor match, const DraftOptions& options,
               DraftTokens& best) noexcept;

 private:
  struct Candidate {      // a node that could be drafted next
    double prob;          // D(N)
    std::uint64_t order;  // of discovery; earlier nodes win ties
    StateId state;
    std::int32_t token;
    std::int32_t parent;
    std::uint32_t length;  // of the context that ends with this node
  };

  bool try_expand(const Automaton& automaton, StateId context, std::uint32_t max_tokens,
                  const DraftOptions& options) noexcept;
  void expand_chain(const Automaton& automaton, StateId context, std::uint32_t max_tokens,
                    const DraftOptions& options);
  void expand_tree(const Automaton& automaton, StateId context, std::uint32_t max_tokens,
                   const DraftOptions& options);
  void discover(const Automaton& automaton, StateId context, const Candidate& node,
                std::uint32_t max_children, const DraftOptions& options);

  DraftTokens tried_;
  std::vector<Candidate> frontier_;  // a heap
  std::vector<Candidate> children_;
  std::uint64_t num_discovered_ = 0;
};

}  // namespace agentspec
