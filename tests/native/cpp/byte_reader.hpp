// A byte string as a stream of small decisions. Past its end every byte is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool is_empty() const { return bytes_.empty(); }
  std::uint32_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  /// Returns a number less than `limit`, which is 1..256.
  std::size_t below(std::size_t limit) { return byte() % limit; }
  bool flag() { return below(2) == 1; }
  template <typename T, std::size_t n>
  T one_of(const T (&choices)[n]) {
    return choices[below(n)];
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace agentspec
