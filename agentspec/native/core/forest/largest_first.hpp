// A priority queue of things with changing sizes, the largest first.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace agentspec {

/// A binary heap that moves a thing when its size changes. T has `is_larger(other, ranking)`, an order
/// without ties, and `places`, its position in each ranking that it belongs to; rankings are numbered.
template <typename T>
class LargestFirst {
 public:
  explicit LargestFirst(std::size_t ranking) : ranking_(ranking) {}

  /// Returns the largest thing, or nullptr if the heap is empty. O(1).
  T* first() const { return heap_.empty() ? nullptr : heap_.front(); }
  /// Reserves room for add(), which must follow it. Throws std::bad_alloc, unchanged.
  void make_place() {
    heap_.push_back(nullptr);
    heap_.pop_back();
  }
  /// O(log n).
  void add(T& thing) noexcept {
    heap_.push_back(&thing);
    put(thing, heap_.size() - 1);
    update(thing);
  }
  void remove(T& thing) noexcept {
    const std::size_t place = thing.places[ranking_];
    T& last = *heap_.back();
    heap_.pop_back();
    if (&last == &thing) return;
    put(last, place);
    update(last);
  }
  /// Restores the order after a change of size. O(log n).
  void update(T& thing) noexcept {
    rise(thing);
    sink(thing);
  }

 private:
  void put(T& thing, std::size_t place) {
    heap_[place] = &thing;
    thing.places[ranking_] = place;
  }
  void rise(T& thing) {
    std::size_t place = thing.places[ranking_];
    for (; place > 0 && thing.is_larger(*heap_[(place - 1) / 2], ranking_); place = (place - 1) / 2) {
      put(*heap_[(place - 1) / 2], place);
    }
    put(thing, place);
  }
  void sink(T& thing) {
    std::size_t place = thing.places[ranking_];
    for (std::size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1]->is_larger(*heap_[child], ranking_)) ++child;
      if (!heap_[child]->is_larger(thing, ranking_)) break;
      put(*heap_[child], place);
      place = child;
    }
    put(thing, place);
  }

  std::size_t ranking_;
  std::vector<T*> heap_;
};

}  // namespace agentspec
