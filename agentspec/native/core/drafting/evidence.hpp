// The evidence for a token at a place of a draft, and the adaptive estimates that it selects.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace agentspec {

constexpr double kLeastProb = 1e-4;  // the highest is 1 - kLeastProb

double squash(double x);  // 1 / (1 + e^-x)
float stretch(double p);  // its inverse, within the limits

/// The share of accepted tokens among those that fell into the cell. Older ones fade.
struct ContextCell {
  static constexpr float kUnits = 55;  // so that 10 bits hold probabilities between the limits
  static constexpr int kMostSeen = 63;

  std::int16_t stretched : 10;  // log(p / (1 - p)), in units of 1 / kUnits
  std::uint16_t count : 6;      // weight of the estimate, in tokens

  static ContextCell of(double p, int count);
  /// The cell as it is stored: `stretched` in the lowest 10 bits (two's complement), then `count`.
  std::uint16_t encoded() const { return static_cast<std::uint16_t>((stretched & 0x3FF) | count << 10); }
  static ContextCell decoded(std::uint16_t stored);
  float value() const { return static_cast<float>(stretched) / kUnits; }
  ContextCell learned(bool is_accepted) const;
};

/// The same for a combination that others compete with: the cell has a tag of its owner.
struct HashedCell {
  static constexpr float kUnits = 16;
  static constexpr int kMostSeen = 15;
  static constexpr int kTagBits = 5;
  static constexpr int kFirstSeen = 1;       // weight of the first estimate, one half
  static constexpr int kLeastProtected = 5;  // a cell with this many tokens is kept for some time

  std::int16_t stretched : 7;
  std::uint16_t count : 4;
  std::uint16_t tag : kTagBits;

  /// The cell as it is stored: `stretched` in the lowest 7 bits (two's complement), then `count`, then `tag`.
  std::uint16_t encoded() const {
    return static_cast<std::uint16_t>((stretched & 0x7F) | count << 7 | tag << 11);
  }
  static HashedCell decoded(std::uint16_t stored);
  float value() const { return static_cast<float>(stretched) / kUnits; }
  /// A new owner takes over a cell of few tokens. Otherwise it makes it older.
  HashedCell learned(std::uint8_t owner, bool is_accepted) const;
};

static_assert(sizeof(ContextCell) == 2 && sizeof(HashedCell) == 2);

/// The evidence for a token at a place of a draft: the cells of an AcceptanceModel that it falls into.
///
/// A place has up to two contexts in each of the trees: the longest that occurs there, and the longest
/// shorter one with three times its occurrences. Three figures describe a context's evidence: its length, the
/// number of times it was continued, and the share of these that were the token. Each combination of the
/// three, in coarse steps, has a cell. Another cell belongs to the length of the request's own longest
/// context that the token followed, with that of its longest of all and that of the longest of the trees:
/// names in other requests' outputs may not belong to this one.
///
/// The other cells are found by a hash, of what Hashed lists. The shares of all contexts together are a
/// profile. Many combinations compete for these cells, so each has a tag of its owner.
struct Evidence {
  static constexpr std::size_t kNumTrees = 5;  // the request's own and one of each kind of shared tree
  static constexpr std::size_t kOwnTree = 0;
  static constexpr std::size_t kStage = 2;  // the trees after it hold its outputs and more
  static constexpr std::size_t kNumContexts = 2 * kNumTrees;
  static constexpr std::size_t kOwn = kNumContexts;   // the input of the own text
  static constexpr std::uint32_t kMostOwnLength = 5;  // longer contexts of the own text count as much
  static constexpr std::size_t kFirstHashed = kOwn + 1;
  enum Hashed : std::uint8_t {
    kToken,
    kPair,              // with the token before it
    kTokenInOwn,        // with the lengths of the own text's contexts
    kTokenWithProfile,  // and whether the own text has it
    kBeforeWithShare,   // the token before, the greatest share, and whether the own text has the token
    kProfile,
    kNumHashed
  };
  static constexpr std::size_t kNumInputs = kFirstHashed + kNumHashed;
  static constexpr std::uint16_t kNothing = 0xFFFF;
  static constexpr std::uint8_t kHasShorter =
      1u << kNumTrees;  // a shorter context counts as well: in trees only
  static constexpr std::size_t kNumTreeSets = std::size_t{2} << kNumTrees;

  static constexpr std::size_t kNumLengths = 7;  // steps
  static constexpr std::size_t kNumTotals = 7;
  static constexpr std::size_t kNumShares = 8;
  static constexpr std::size_t kNumContextCells = kNumContexts * kNumLengths * kNumTotals * kNumShares;
  static constexpr std::size_t kNumOwnLengths = 6;  // none, 0, 1, 2, 3-4, or 5 and more tokens
  static constexpr std::size_t kNumOwnCells = kNumOwnLengths * (kNumOwnLengths - 1) * kNumLengths;
  static constexpr std::size_t kNumHashedCells = 12'288;
  static constexpr std::size_t kNumOwnSteps = 4;  // the own text lacks the token; after 0, 1, or more tokens
  static constexpr std::size_t kNumKinds = kNumOwnSteps * kNumShares;

  std::array<std::uint16_t, kNumInputs> cells;
  std::array<std::uint8_t, kNumHashed> tags{};
  std::uint8_t trees = 0;       // one bit for each tree that has evidence, and kHasShorter
  std::uint8_t best_share = 0;  // step of the greatest share of a context
  std::uint8_t own_step = 0;    // of the own text's context that the token followed
  std::uint8_t own_lengths = 0;
  std::uint8_t depth;         // tokens of the draft before this one
  std::uint32_t profile = 0;  // hash of the shares of all contexts

  explicit Evidence(std::size_t depth_in_draft = 0)
      : depth(static_cast<std::uint8_t>(std::min<std::size_t>(depth_in_draft, 255))) {
    cells.fill(kNothing);
  }
  /// Adds a context of `length` tokens: the token followed `count` of its `total` continued occurrences.
  void add_context(std::size_t tree, bool is_shorter, std::uint32_t length, std::uint32_t count,
                   std::uint32_t total);
  /// Adds the request's own text. Its longest context of `longest` tokens may not be followed by the token;
  /// one of `length` tokens is (-1: the token does not occur). The longest context of all trees has `of_all`.
  void add_own(int length, std::uint32_t longest, std::uint32_t of_all);
  /// Adds the token itself and the one before it (-1: none). After the contexts and the own text.
  void add_token(std::int32_t token, std::int32_t before);
  /// Number below kNumKinds: the greatest share, and what the own text says.
  std::size_t kind() const { return own_step * kNumShares + best_share; }
};

}  // namespace agentspec
