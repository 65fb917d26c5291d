#include "core/drafting/evidence.hpp"

#include <algorithm>
#include <array>
#include <bit>
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

namespace {

/// Step of n among 1, 2, 3-4, 5-8, 9-16, ...; the last step is open.
std::size_t step_of(std::uint32_t n, std::size_t num_steps) {
  return std::min<std::size_t>(std::bit_width(n - 1), num_steps - 1);
}

/// The same with a first step for 0.
std::size_t step_from_zero(std::uint32_t n, std::size_t num_steps) {
  return n == 0 ? 0 : step_of(n, num_steps - 1) + 1;
}

/// Step of the share count / total, from 0 (never) to 7 (always).
std::size_t share_step(std::uint32_t count, std::uint32_t total) {
  if (count == 0) return 0;
  if (count == total) return 7;
  const double share = static_cast<double>(count) / total;
  return share >= 0.9 ? 6 : share >= 0.75 ? 5 : share >= 0.5 ? 4 : share >= 0.25 ? 3 : share >= 0.1 ? 2 : 1;
}

std::uint32_t mixed(std::uint32_t hash, std::uint32_t value) { return (hash ^ value) * 0x9E3779B1u; }

}  // namespace

void Evidence::add_context(std::size_t tree, bool is_shorter, std::uint32_t length, std::uint32_t count,
                           std::uint32_t total) {
  const std::size_t input = 2 * tree + (is_shorter ? 1 : 0);
  const std::size_t share = share_step(count, total);
  const std::size_t row =
      (input * kNumLengths + step_of(length, kNumLengths)) * kNumTotals + step_of(total, kNumTotals);
  cells[input] = static_cast<std::uint16_t>(row * kNumShares + share);
  trees = static_cast<std::uint8_t>(trees | 1u << tree | (is_shorter ? kHasShorter : 0u));
  best_share = std::max(best_share, static_cast<std::uint8_t>(share));
  profile = mixed(profile, static_cast<std::uint32_t>(input * kNumShares + share + 1));
}

void Evidence::add_own(int length, std::uint32_t longest, std::uint32_t of_all) {
  const auto num_known = static_cast<std::uint32_t>(length + 1);  // 0: not even the token itself
  const std::size_t followed = num_known == 0 ? 0 : step_from_zero(num_known - 1, kNumOwnLengths - 1) + 1;
  const std::size_t row = followed * (kNumOwnLengths - 1) + step_from_zero(longest, kNumOwnLengths - 1);
  cells[kOwn] =
      static_cast<std::uint16_t>(kNumContextCells + row * kNumLengths + step_of(of_all, kNumLengths));
  own_step = static_cast<std::uint8_t>(std::min<std::size_t>(num_known, kNumOwnSteps - 1));
  own_lengths = static_cast<std::uint8_t>(std::min(num_known, kMostOwnLength + 1) * (kMostOwnLength + 1) +
                                          std::min(longest, kMostOwnLength));
}

void Evidence::add_token(std::int32_t token, std::int32_t before) {
  const auto own_token = static_cast<std::uint32_t>(token), last = static_cast<std::uint32_t>(before);
  std::array<std::uint32_t, kNumHashed> hashes{};
  for (std::uint32_t i = 0; i < kNumHashed; ++i) hashes[i] = mixed(0, i);
  const auto add = [&](Hashed which, std::uint32_t value) { hashes[which] = mixed(hashes[which], value); };
  for (const Hashed which : {kToken, kPair, kTokenInOwn, kTokenWithProfile}) add(which, own_token);
  add(kPair, last);
  add(kTokenInOwn, own_lengths);
  for (const Hashed which : {kProfile, kTokenWithProfile}) add(which, profile);
  add(kTokenWithProfile, own_step);
  add(kBeforeWithShare, last);
  add(kBeforeWithShare, static_cast<std::uint32_t>(kind()));
  for (std::size_t i = 0; i < kNumHashed; ++i) {
    cells[kFirstHashed + i] = static_cast<std::uint16_t>(std::uint64_t{hashes[i]} * kNumHashedCells >> 32);
    tags[i] = static_cast<std::uint8_t>(hashes[i] * 0x85EBCA6Bu >> (32 - HashedCell::kTagBits));
  }
}

}  // namespace agentspec
