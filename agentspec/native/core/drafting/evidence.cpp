#include "core/drafting/evidence.hpp"

#include <bit>

#include "core/drafting/cells.hpp"

namespace agentspec {
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
