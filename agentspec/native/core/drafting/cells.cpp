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

constexpr int kUncounted = 4;  // outcomes of a cell that has counted all it can, and has changed since

/// Returns the mean of two shares, stretched, by their counts.
int mean(int mine, int num_mine, int other, int num_other) {
  if (num_other == 0) return mine;
  const int sum = mine * num_mine + other * num_other;
  return static_cast<int>(std::lround(static_cast<double>(sum) / (num_mine + num_other)));
}

/// The shares of a kind of cell after one more outcome: learning them needs no logarithm. Shares are
/// stretched, in the cell's units, and lie between -kLimit and kLimit.
template <typename Cell, typename Share, int kLimit>
class Learned {
 public:
  static std::int16_t after(int share, int count, bool is_accepted) {
    static const Learned learned;
    return learned.after_[is_accepted ? 1 : 0][static_cast<std::size_t>(count)]
                         [static_cast<std::size_t>(share + kLimit)];
  }

 private:
  Learned() {
    for (std::size_t outcome = 0; outcome < after_.size(); ++outcome) {
      for (std::size_t count = 0; count < after_[outcome].size(); ++count) {
        for (int share = -kLimit; share < kLimit; ++share) {
          const float after = Cell::kUnits * stretched_after(static_cast<float>(share) / Cell::kUnits,
                                                             static_cast<int>(count), outcome == 1);
          after_[outcome][count][static_cast<std::size_t>(share + kLimit)] =
              static_cast<Share>(std::clamp<long>(std::lround(after), 1 - kLimit, kLimit - 1));
        }
      }
    }
  }

  std::array<std::array<std::array<Share, 2 * kLimit>, Cell::kMostSeen + 1>, 2> after_;
};

using LearnedContext = Learned<ContextCell, std::int16_t, 512>;  // 256 KiB, few of them in use
using LearnedHashed = Learned<HashedCell, std::int8_t, 64>;

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
  cell.stretched = LearnedContext::after(stretched, count, is_accepted);
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
  cell.stretched = LearnedHashed::after(cell.stretched, cell.count, is_accepted);
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
