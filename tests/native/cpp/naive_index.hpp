// A naive suffix index: texts, scanned anew for every question. The C++ form of tests/native/naive_index.py,
// and also the oracle for Algorithm 1 of SuffixDecoding (arXiv 2411.04975).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/drafting/drafter.hpp"

namespace agentspec {

using TokenSpan = std::span<const std::int32_t>;

struct NaiveDraft {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> parents;
  std::vector<double> probs;  // D(N)
  double score = 0.0;
  std::uint32_t match_length = 0;

  void push(std::int32_t token, std::int32_t parent, double prob);
};

/// A sequence, with the time at which each token was appended.
struct NaiveText {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> times;
};

/// An occurrence of a context, followed by text->tokens[next].
struct Place {
  const NaiveText* text;
  std::size_t next;
};

/// A string, and all places that follow its last depth - 1 tokens.
struct Context {
  std::vector<std::int32_t> tokens;
  std::vector<Place> places;
};

/// A token that follows a context, its count, and the time of its last occurrence there.
struct Continuation {
  std::int32_t token;
  std::uint32_t count;
  std::uint64_t last_time;
};

/// The best continuation has the highest count; the one appended last wins ties. After a removal takes
/// occurrences from the best one, the highest count becomes the best, then the smaller token id, until
/// another token with at least that count is appended.
class NaiveIndex {
 public:
  /// With begin marks, kBeginToken precedes the first token of each sequence.
  explicit NaiveIndex(std::uint32_t depth, bool marks_begins = false)
      : depth_(depth), marks_begins_(marks_begins) {}

  /// Starts an empty sequence and returns its key; keys are never reused.
  std::uint64_t open();
  void append(std::uint64_t key, TokenSpan tokens);
  /// Ends a sequence: an empty one is forgotten, any other stays.
  void close(std::uint64_t key);
  void remove(std::uint64_t key);
  /// The sequences with exactly these tokens.
  std::vector<std::uint64_t> keys_of(TokenSpan tokens) const;

  std::size_t num_sequences() const { return texts_.size(); }
  std::size_t num_tokens() const { return num_tokens_; }
  /// The best draft over all match lengths; the longest match wins ties.
  NaiveDraft draft(TokenSpan text, const DraftOptions& options) const;
  Context find(TokenSpan tokens) const;
  /// Length of the longest suffix of the text that occurs, with or without a next token; at most depth - 1.
  std::size_t match_length(TokenSpan text) const;
  std::vector<Continuation> continuations(const Context& context) const;
  std::int32_t best_token(const Context& context, const std::vector<Continuation>& found) const;
  /// The last 1, 2, ... tokens of the text, up to depth - 1 or to a suffix without a next token.
  std::vector<Context> find_suffixes(TokenSpan text) const;
  Context extended(const Context& context, std::int32_t token) const;

 private:
  struct Reset {  // of a context that lost occurrences of its best continuation
    std::uint64_t time;
    std::int32_t best;
  };
  struct Leaf {  // a node that could be drafted next; the earlier one wins ties
    double prob;
    std::int32_t token;
    std::int32_t parent;
  };

  std::size_t window(std::size_t length) const { return length < depth_ ? length : depth_ - 1; }
  NaiveDraft draft_chain(Context context, std::uint32_t max_tokens, const DraftOptions& options) const;
  NaiveDraft draft_tree(const Context& context, std::uint32_t max_tokens, const DraftOptions& options) const;
  void add_leaves(std::vector<Leaf>& leaves, const Context& context, double prob, std::int32_t parent,
                  const DraftOptions& options) const;

  std::uint32_t depth_;
  bool marks_begins_;
  std::map<std::uint64_t, NaiveText> texts_;
  std::map<std::vector<std::int32_t>, Reset> resets_;
  std::uint64_t num_opened_ = 0;
  std::uint64_t now_ = 0;
  std::size_t num_tokens_ = 0;
};

}  // namespace agentspec
