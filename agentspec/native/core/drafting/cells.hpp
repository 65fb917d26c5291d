// Adaptive estimates of a probability, in 16 bits each.
#pragma once

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
  /// Returns it with the outcomes since it was `before` as its count: 0 if there are none.
  ContextCell since(ContextCell before) const;
  /// Returns the mean with one of another model, each by its count. The counts add up.
  ContextCell merged(ContextCell other) const;
};

/// The same for a combination that others compete with: the cell has a tag of its owner.
struct HashedCell {
  static constexpr float kUnits = 16;
  static constexpr int kMostSeen = 15;
  static constexpr int kTagBits = 5;
  static constexpr int kFirstSeen = 1;       // weight of the first estimate, one half
  static constexpr int kLeastProtected = 5;  // with so many tokens, it is kept for some time

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
  /// As of a ContextCell. Aging a cell adds no outcomes.
  HashedCell since(HashedCell before) const;
  /// As of a ContextCell. Of two owners, the one with more tokens keeps the cell, and becomes older.
  HashedCell merged(HashedCell other) const;
};

static_assert(sizeof(ContextCell) == 2 && sizeof(HashedCell) == 2);

}  // namespace agentspec
