// A model of the probability that a drafted token is accepted, learned from earlier drafts.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

/// The evidence for a token at a place of a draft: the cells of the model that it falls into.
///
/// A place has up to two contexts in each of the trees: the longest that occurs there, and the longest
/// shorter one with three times its occurrences. Three figures describe a context's evidence: its length, the
/// number of times it was continued, and the share of these that were the token. Each combination of the
/// three, in coarse steps, has a cell. Another cell belongs to the length of the request's own longest
/// context that the token followed, with that of its longest of all and that of the longest of the trees:
/// names in other requests' outputs may not belong to this one. Three more cells belong to the token, to the
/// pair with the token before, and to the triple with the two tokens before. Many of these share a cell, so
/// each has a tag.
struct Evidence {
  static constexpr std::size_t kNumTrees = 5;  // the request's own and one of each kind of shared tree
  static constexpr std::size_t kStage = 2;     // the trees after it hold its outputs and more
  static constexpr std::size_t kNumContexts = 2 * kNumTrees;
  static constexpr std::size_t kOwn = kNumContexts;   // the input of the own text
  static constexpr std::uint32_t kMostOwnLength = 5;  // longer contexts of the own text count as much
  static constexpr std::size_t kFirstName = kOwn + 1;
  static constexpr std::size_t kNumNames = 3;
  static constexpr std::size_t kNumInputs = kFirstName + kNumNames;
  static constexpr std::uint16_t kNothing = 0xFFFF;
  static constexpr std::uint8_t kHasShorter =
      1u << kNumTrees;  // a shorter context counts as well: in trees only

  std::array<std::uint16_t, kNumInputs> cells;
  std::array<std::uint16_t, kNumNames> tags{};
  std::uint8_t trees = 0;  // one bit for each tree that has evidence, and kHasShorter
  std::uint8_t depth;      // tokens of the draft before this one

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
  /// Adds the token itself and the two tokens before it, the last one first (-1: none).
  void add_names(std::int32_t token, std::span<const std::int32_t, 2> before);
};

/// Logistic mixing of adaptive estimates, as in context-mixing compressors (Mahoney, PAQ). Each cell keeps
/// the share of accepted tokens among those that fell into it. The shares are mixed in the logistic domain.
/// The weights are learned by gradient descent on coding cost, one set for each set of trees that have
/// evidence, in smaller steps the more outcomes a set has seen. The result is calibrated by earlier outcomes,
/// per depth within the draft. 42 KiB. Not thread-safe, but estimates may run in parallel.
class AcceptanceModel {
 public:
  /// Starts from the shipped prior: what the stages of other workflows have learned.
  AcceptanceModel() : AcceptanceModel(of_prior()) {}

  /// Starts without the prior, with estimates that trust the counts more, the more evidence there is.
  static AcceptanceModel without_prior();

  /// Restores a model from a copy of its state(). Throws ConfigError if `state` can't be one.
  explicit AcceptanceModel(std::span<const std::byte> state);
  /// Everything learned so far, in its memory layout.
  std::span<const std::byte> state() const { return std::as_bytes(std::span(this, 1)); }

  /// Returns a probability strictly between 0 and 1. O(inputs).
  double estimate(const Evidence& evidence) const;
  /// Learns whether the token was accepted, or another one instead. O(inputs).
  void learn(const Evidence& evidence, bool is_accepted);

 private:
  static constexpr std::size_t kNumLengths = 7;
  static constexpr std::size_t kNumTotals = 7;
  static constexpr std::size_t kNumShares = 8;
  static constexpr std::size_t kNumContextCells =
      Evidence::kNumContexts * kNumLengths * kNumTotals * kNumShares;
  static constexpr std::size_t kNumOwnLengths = 6;  // none, 0, 1, 2, 3-4, or 5 and more tokens
  static constexpr std::size_t kNumOwnCells = kNumOwnLengths * (kNumOwnLengths - 1) * kNumLengths;
  static constexpr std::size_t kNumNameCells = 1780;  // of each kind
  static constexpr int kTagBits = 11;
  static constexpr std::size_t kNumDepths = 8;
  static constexpr std::size_t kNumSteps = 33;  // of the final calibration, which interpolates between them
  friend struct Evidence;

  struct Cell {
    std::int16_t stretched;  // log(p / (1 - p)) of the share of accepted tokens, in units of 1 / kUnits
    std::uint16_t count;     // of tokens seen, up to a limit, beyond which older ones fade
  };
  struct NameCell {
    std::int16_t stretched;
    std::uint16_t count : 16 - kTagBits;
    std::uint16_t tag : kTagBits;  // of the owner: the cell is worth nothing to others
  };
  static constexpr float kUnits = 3500;  // so that 16 bits hold probabilities between 1e-4 and 1 - 1e-4
  struct Weights {
    std::array<float, Evidence::kNumInputs> of;
    float bias;
    float num_learned;  // outcomes
  };
  struct Mixture {
    float x;           // in the logistic domain
    double p;          // before the final calibration
    std::size_t step;  // of the calibration
    float fraction;    // of the way to the next step
  };

  struct Blank {};
  explicit AcceptanceModel(Blank);
  static const AcceptanceModel& of_prior();
  bool is_sound() const;
  Mixture mix(const Evidence& evidence) const;
  static Cell make_cell(double p, std::uint16_t count);
  static float stretched(auto cell) { return static_cast<float>(cell.stretched) / kUnits; }
  /// The stretched share of an input's cell; 0 without one, or if another name owns it.
  float input(const Evidence& evidence, std::size_t i) const;
  void adapt(const Evidence& evidence, std::size_t i, bool is_accepted);

  std::array<Cell, kNumContextCells + kNumOwnCells> contexts_;
  std::array<NameCell, Evidence::kNumNames * kNumNameCells> names_;
  std::array<Weights, std::size_t{2} << Evidence::kNumTrees> weights_;
  std::array<std::array<float, kNumSteps>, kNumDepths> calibration_;
};

}  // namespace agentspec
