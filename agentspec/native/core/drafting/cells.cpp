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

ContextCell ContextCell::learned(bool is_accepted) const {
  ContextCell cell{};
  cell.stretched =
      static_cast<std::int16_t>(std::lround(stretched_after(value(), count, is_accepted) * kUnits));
  cell.count = static_cast<std::uint16_t>(std::min(count + 1, kMostSeen));
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

}  // namespace agentspec
