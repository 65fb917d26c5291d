// Memory for arrays of plain values: from the C heap while they are small, mapped once they are large.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace agentspec {

constexpr std::size_t kPageBytes = 4096;
/// Blocks of at least this size are mappings: they grow without a copy, unwritten pages take no memory, and
/// freed pages leave the process.
constexpr std::size_t kMappedBytes = std::size_t{1} << 17;

/// Returns the address space to reserve for a mapping of `bytes` bytes. A large mapping costs more to move.
constexpr std::size_t reserve_bytes(std::size_t bytes) {
  return bytes <= std::size_t{1} << 26 ? bytes * 4 : bytes * 2;
}

constexpr std::size_t round_to_page(std::size_t bytes) {
  return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}

/// Resizes a block (nullptr: a new one), keeping its first `used` bytes. Throws std::bad_alloc, unchanged.
void* reallocate(void* block, std::size_t old_bytes, std::size_t new_bytes, std::size_t used);
void deallocate(void* block, std::size_t bytes) noexcept;
/// Gives the whole pages in [begin, end) of a mapped block back to the system.
void discard_pages(void* block, std::size_t begin, std::size_t end) noexcept;

/// Grows by an eighth while it is small; from kMappedBytes on it is a mapping of its own, which reserves far
/// more addresses than it needs, so that it hardly ever moves, and becomes resident page by page.
/// memory_bytes() counts what can be resident: all of a small array, the pages used of a mapped one.
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
  ~PodArray() { release(); }

  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const T> span() const { return {data_, size_}; }
  std::size_t memory_bytes() const {
    return is_mapped(capacity_) ? round_to_page(touched_ * sizeof(T)) : capacity_ * sizeof(T);
  }

  void push_back(const T& value) {
    if (size_ == capacity_) grow(1);
    data_[size_++] = value;
    touched_ = std::max(touched_, size_);
  }
  void append(std::span<const T> values) {
    const std::size_t begin = extend(values.size());
    std::copy(values.begin(), values.end(), data_ + begin);
  }
  /// Adds `n` elements of unspecified content; returns the index of the first.
  std::size_t extend(std::size_t n) {
    if (size_ + n > capacity_) grow(n);
    size_ += n;
    touched_ = std::max(touched_, size_);
    return size_ - n;
  }
  /// Makes room for `capacity` elements in all.
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) reallocate(capacity);
  }
  /// Drops the elements from `size` on. Memory is returned once there is enough to justify a call, and if the
  /// system has room for the smaller block meanwhile.
  void truncate(std::size_t size) noexcept {
    size_ = size;
    if (is_mapped(capacity_)) {
      if ((touched_ - size_) * sizeof(T) >= kMappedBytes / 2) give_back();
    } else if (size_ < capacity_ / 2) {
      shrink_to_fit();
    }
  }
  void shrink_to_fit() noexcept {
    if (!is_mapped(size_) && shrink()) return;
    if (is_mapped(capacity_)) give_back();
  }
  void release() noexcept {
    if (data_ != nullptr) deallocate(data_, capacity_ * sizeof(T));
    data_ = nullptr;
    size_ = capacity_ = touched_ = 0;
  }

 private:
  static bool is_mapped(std::size_t capacity) { return capacity * sizeof(T) >= kMappedBytes; }

  void swap(PodArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    std::swap(touched_, other.touched_);
  }
  void grow(std::size_t n) {
    const std::size_t least = std::max(size_ + n, capacity_ + std::max<std::size_t>(capacity_ / 8, 4));
    if (!is_mapped(least)) return reallocate(least);
    const std::size_t reserved_bytes = reserve_bytes(least * sizeof(T));
    try {
      reallocate(reserved_bytes / sizeof(T));
    } catch (const std::bad_alloc&) {  // addresses are short here
      reallocate(least);
    }
  }
  void reallocate(std::size_t capacity) {
    if (capacity == 0) return release();
    data_ = static_cast<T*>(
        agentspec::reallocate(data_, capacity_ * sizeof(T), capacity * sizeof(T), size_ * sizeof(T)));
    capacity_ = capacity;
    touched_ = size_;
  }
  /// False where there is no memory for a smaller block: then the larger one stays.
  bool shrink() noexcept {
    try {
      if (capacity_ > size_) reallocate(size_);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  void give_back() noexcept {
    if (size_ * sizeof(T) < kMappedBytes / 4 && shrink()) return;
    discard_pages(data_, size_ * sizeof(T), touched_ * sizeof(T));
    touched_ = size_;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::size_t touched_ = 0;  // elements from here on were never used since they were mapped or given back
};

}  // namespace agentspec
