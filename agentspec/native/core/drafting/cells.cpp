#include "core/drafting/cells.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace agentspec {
namespace {

/// Returns the share after one more outcome, stretched.
float stretched_after(float stretched, int count, bool is_accepted) {
  const double share = squash(stretched);
  return stretch(share + ((is_accepted ? 1 : 0) - share) / (count + 1));
}

/// Returns the number in the lowest bits, in two's complement.
int signed_of(std::uint16_t stored, int num_bits) {
  const int sign = 1 << (num_bits - 1);
  return ((stored & (2 * sign - 1)) ^ sign) - sign;
}

constexpr int kUncounted = 4;  // outcomes of a cell that has counted all it can, and has changed since

/// Returns the mean of two shares, stretched, by their counts.
int mean(int mine, int num_mine, int other, int num_other) {
  if (num_other == 0) return mine;
  const int sum = mine * num_mine + other * num_other;
  return static_cast<int>(std::lround(static_cast<double>(sum) / (num_mine + num_other)));
}

constexpr int kLeast = -63, kMost = 63;  // of a hashed cell

using Shares = std::array<std::array<std::array<std::int8_t, 128>, HashedCell::kMostSeen + 1>, 2>;

/// The shares after one more outcome, by outcome, count and share: learning them needs no logarithm.
const Shares& shares_after() {
  static const Shares shares = [] {
    Shares made{};
    for (std::size_t outcome = 0; outcome < made.size(); ++outcome) {
      for (std::size_t count = 0; count < made[outcome].size(); ++count) {
        for (int before = -64; before < 64; ++before) {
          const float after =
              HashedCell::kUnits * stretched_after(static_cast<float>(before) / HashedCell::kUnits,
                                                   static_cast<int>(count), outcome == 1);
          made[outcome][count][static_cast<std::size_t>(before + 64)] =
              static_cast<std::int8_t>(std::clamp<long>(std::lround(after), kLeast, kMost));
        }
      }
    }
    return made;
  }();
  return shares;
}

}  // namespace

double squash(double x) { return 1 / (1 + std::exp(-x)); }

float stretch(double p) {
  p = std::clamp(p, kLeastProb, 1 - kLeastProb);
  return static_cast<float>(std::log(p / (1 - p)));
}

ContextCell ContextCell::of(double p, int count) {
  ContextCell cell{};
  cell.stretched = static_cast<std::int16_t>(std::lround(stretch(p) * kUnits));
  cell.count = static_cast<std::uint16_t>(count);
  return cell;
}

ContextCell ContextCell::decoded(std::uint16_t stored) {
  ContextCell cell{};
  cell.stretched = static_cast<std::int16_t>(signed_of(stored, 10));
  cell.count = static_cast<std::uint16_t>(stored >> 10);
  return cell;
}

ContextCell ContextCell::learned(bool is_accepted) const {
  ContextCell cell{};
  cell.stretched =
      static_cast<std::int16_t>(std::lround(stretched_after(value(), count, is_accepted) * kUnits));
  cell.count = static_cast<std::uint16_t>(std::min(count + 1, kMostSeen));
  return cell;
}

ContextCell ContextCell::since(ContextCell before) const {
  ContextCell cell = *this;
  const bool is_counted = count > before.count;
  const bool has_changed = is_counted || stretched != before.stretched;
  cell.count = static_cast<std::uint16_t>(is_counted ? count - before.count : has_changed ? kUncounted : 0);
  return cell;
}

ContextCell ContextCell::merged(ContextCell other) const {
  ContextCell cell{};
  cell.stretched = static_cast<std::int16_t>(mean(stretched, count, other.stretched, other.count));
  cell.count = static_cast<std::uint16_t>(std::min(count + other.count, kMostSeen));
  return cell;
}

HashedCell HashedCell::decoded(std::uint16_t stored) {
  HashedCell cell{};
  cell.stretched = static_cast<std::int16_t>(signed_of(stored, 7));
  cell.count = static_cast<std::uint16_t>(stored >> 7 & 0xF);
  cell.tag = static_cast<std::uint16_t>(stored >> 11);
  return cell;
}

HashedCell HashedCell::learned(std::uint8_t owner, bool is_accepted) const {
  HashedCell cell = *this;
  if (tag != owner) {
    if (count >= kLeastProtected) {
      --cell.count;
      return cell;
    }
    cell.stretched = 0;
    cell.count = kFirstSeen;
    cell.tag = owner;
  }
  cell.stretched =
      shares_after()[is_accepted ? 1 : 0][cell.count][static_cast<std::size_t>(cell.stretched + 64)];
  cell.count = static_cast<std::uint16_t>(std::min(cell.count + 1, kMostSeen));
  return cell;
}

HashedCell HashedCell::since(HashedCell before) const {
  if (tag != before.tag) return *this;
  HashedCell cell = *this;
  const bool has_changed = count == before.count && stretched != before.stretched;
  const int num_new = count > before.count ? count - before.count : has_changed ? kUncounted : 0;
  cell.count = static_cast<std::uint16_t>(num_new);
  return cell;
}

HashedCell HashedCell::merged(HashedCell other) const {
  HashedCell cell = *this;
  if (tag == other.tag) {
    cell.stretched = static_cast<std::int16_t>(mean(stretched, count, other.stretched, other.count));
    cell.count = static_cast<std::uint16_t>(std::min(count + other.count, kMostSeen));
  } else if (other.count > count) {
    cell = other;
  } else {
    cell.count = static_cast<std::uint16_t>(count - other.count);
  }
  return cell;
}

}  // namespace agentspec
