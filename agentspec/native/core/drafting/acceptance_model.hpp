// How probable it is that a drafted token is accepted, learned from what was accepted before.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

/// What speaks for a token at a place: the cells of the model that it falls into.
///
/// A place has up to two contexts in each of the trees: the longest that occurs there, and the longest
/// shorter one with three times its occurrences. What they say about the token is described by three figures
/// - how long the context is, how often it occurred, how often the token came next - and each combination of
/// the three, in coarse steps, has a cell. Three more cells belong to the token itself, to it after the one
/// before, and after the two before.
struct Evidence {
  static constexpr std::size_t kNumTrees = 5;  // the request's own and one of each kind of shared tree
  static constexpr std::size_t kStage = 2;     // the trees after it hold its outputs, too, and more
  static constexpr std::size_t kNumContexts = 2 * kNumTrees;
  static constexpr std::size_t kNumNames = 3;
  static constexpr std::size_t kNumInputs = kNumContexts + kNumNames;
  static constexpr std::uint16_t kNothing = 0xFFFF;

  std::array<std::uint16_t, kNumInputs> cells;
  std::uint8_t trees = 0;  // a bit for each that says something
  std::uint8_t depth;      // tokens of the draft before this one

  explicit Evidence(std::size_t depth_in_draft = 0)
      : depth(static_cast<std::uint8_t>(std::min<std::size_t>(depth_in_draft, 255))) {
    cells.fill(kNothing);
  }
  /// `count` times the token came next, in `total` continued occurrences of a context of `length` tokens.
  void add_context(std::size_t tree, bool is_shorter, std::uint32_t length, std::uint32_t count,
                   std::uint32_t total);
  /// The token and those before it, the last one first (at least two; -1: there is none).
  void add_names(std::int32_t token, std::span<const std::int32_t, 2> before);
};

/// Logistic mixing of adaptive estimates, as context-mixing compressors do it (Mahoney, PAQ): every cell
/// keeps the share of accepted tokens among those that fell into it; the shares are mixed in the logistic
/// domain with weights that are learned by gradient descent on coding cost, one set for each set of trees
/// that say something; what comes out is calibrated once more by what came of it, by depth within the draft.
/// 43 KiB. Not thread-safe; estimates may be made side by side.
class AcceptanceModel {
 public:
  /// Believes the counts as far as there is evidence, until it has learned better.
  AcceptanceModel();

  /// What another one had learned: a copy of its state(). Throws ConfigError if it can't be one.
  explicit AcceptanceModel(std::span<const std::byte> state);
  /// All that it has learned, as it lies in memory.
  std::span<const std::byte> state() const { return std::as_bytes(std::span(this, 1)); }

  /// Between 0 and 1, neither of them. O(inputs).
  double estimate(const Evidence& evidence) const;
  /// The token was accepted, or another one was. O(inputs).
  void learn(const Evidence& evidence, bool is_accepted);

 private:
  static constexpr std::size_t kNumLengths = 7;
  static constexpr std::size_t kNumTotals = 7;
  static constexpr std::size_t kNumShares = 8;
  static constexpr std::size_t kNumNameCells = 2048;
  static constexpr std::size_t kNumDepths = 8;
  static constexpr std::size_t kNumSteps = 33;  // of the last calibration, between which it interpolates
  friend struct Evidence;

  struct Cell {
    std::int16_t stretched;  // log(p / (1 - p)) of the share of accepted tokens, in units of 1 / kUnits
    std::uint16_t count;     // of tokens seen, up to a limit: beyond it the older ones fade
  };
  static constexpr float kUnits = 3500;  // of probabilities between 1e-4 and 1 - 1e-4
  struct Weights {
    std::array<float, Evidence::kNumInputs> of;
    float bias;
  };
  struct Mixture {
    float x;           // in the logistic domain
    double p;          // before the last calibration
    std::size_t step;  // of it
    float fraction;    // of the way to the next step
  };

  bool is_sound() const;
  Mixture mix(const Evidence& evidence) const;
  static Cell make_cell(double p, std::uint16_t count);
  static float stretched(Cell cell) { return static_cast<float>(cell.stretched) / kUnits; }
  static void adapt(Cell& cell, bool is_accepted, std::uint16_t limit);

  std::array<Cell, Evidence::kNumContexts * kNumLengths * kNumTotals * kNumShares +
                       Evidence::kNumNames * kNumNameCells>
      cells_;
  std::array<Weights, std::size_t{1} << Evidence::kNumTrees> weights_;
  std::array<std::array<float, kNumSteps>, kNumDepths> calibration_;
};

}  // namespace agentspec
