#include "core/index/id_pool.hpp"

#include <algorithm>
#include <bit>

namespace agentspec {

std::uint32_t IdPool::acquire() {
  for (; lowest_ < has_free_.size(); ++lowest_) {
    if (has_free_[lowest_] == 0) continue;
    const std::uint32_t word =
        lowest_ * 64 + static_cast<std::uint32_t>(std::countr_zero(has_free_[lowest_]));
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(free_[word]));
    free_[word] &= free_[word] - 1;
    if (free_[word] == 0) has_free_[lowest_] &= has_free_[lowest_] - 1;
    ++num_used_;
    return word * 64 + bit;
  }
  if (end_ / 64 == free_.size()) {  // both grow before either counts, so that a failure changes nothing
    if (end_ / 4096 == has_free_.size()) has_free_.push_back(0);
    free_.push_back(0);
  }
  ++num_used_;
  return end_++;
}

void IdPool::release(std::uint32_t id) {
  --num_used_;
  free_[id / 64] |= std::uint64_t{1} << (id % 64);
  has_free_[id / 4096] |= std::uint64_t{1} << (id / 64 % 64);
  lowest_ = std::min(lowest_, id / 4096);
  if (id + 1 == end_) cut_end();
}

void IdPool::release_all_but_first() noexcept {
  free_.truncate(1);
  has_free_.truncate(1);
  free_[0] = has_free_[0] = 0;
  end_ = 1;
  lowest_ = 0;
  num_used_ = 1;
}

// Lowers end() past all free numbers directly before it.
void IdPool::cut_end() {
  while (end_ > 0 && !is_used(end_ - 1)) {
    --end_;
    const std::uint32_t word = end_ / 64;
    free_[word] &= ~(std::uint64_t{1} << (end_ % 64));
    if (free_[word] == 0) has_free_[word / 64] &= ~(std::uint64_t{1} << (word % 64));
  }
  free_.truncate((end_ + 63) / 64);
  has_free_.truncate((free_.size() + 63) / 64);
}

}  // namespace agentspec
