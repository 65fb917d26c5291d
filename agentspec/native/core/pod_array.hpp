// A growable array of plain values whose allocated bytes are known exactly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace agentspec {

/// Grows by an eighth, not by doubling: byte budgets count what is allocated. realloc moves large
/// blocks by page tables, so that the small step costs no copies where they would hurt.
template <typename T>
class PodArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  PodArray() = default;
  PodArray(const PodArray&) = delete;
  PodArray& operator=(const PodArray&) = delete;
  PodArray(PodArray&& other) noexcept { swap(other); }
  PodArray& operator=(PodArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PodArray() { std::free(data_); }

  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t capacity_bytes() const { return capacity_ * sizeof(T); }
  std::span<const T> span() const { return {data_, size_}; }

  void push_back(const T& value) {
    if (size_ == capacity_) reserve_more(1);
    data_[size_++] = value;
  }
  void append(std::span<const T> values) {
    if (values.empty()) return;
    if (size_ + values.size() > capacity_) reserve_more(values.size());
    std::memcpy(static_cast<void*>(data_ + size_), values.data(), values.size_bytes());
    size_ += values.size();
  }
  /// Adds `n` elements of unspecified content; returns the index of the first.
  std::size_t extend(std::size_t n) {
    if (size_ + n > capacity_) reserve_more(n);
    size_ += n;
    return size_ - n;
  }
  /// Makes room for exactly `capacity` elements in all.
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) reallocate(capacity);
  }
  void shrink_to_fit() {
    if (capacity_ > size_) reallocate(size_);
  }
  void release() {
    std::free(data_);
    data_ = nullptr;
    size_ = capacity_ = 0;
  }

 private:
  void swap(PodArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  void reserve_more(std::size_t n) {
    reallocate(std::max(size_ + n, capacity_ + std::max<std::size_t>(capacity_ / 8, 8)));
  }
  void reallocate(std::size_t capacity) {
    if (capacity == 0) return release();
    void* moved = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace agentspec
