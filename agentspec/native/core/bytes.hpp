// Numbers as bytes, little-endian on every machine, for files and for messages to other engines.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace agentspec {

class ByteWriter {
 public:
  /// Reserves room for `num_bytes` bytes. Throws std::bad_alloc, as put() does.
  explicit ByteWriter(std::size_t num_bytes = 0) { bytes_.reserve(num_bytes); }

  template <std::integral T>
  void put(T value) {
    auto rest = static_cast<std::uint64_t>(static_cast<std::make_unsigned_t<T>>(value));
    for (std::size_t i = 0; i < sizeof(T); ++i, rest >>= 8) bytes_.push_back(static_cast<std::byte>(rest));
  }
  /// IEEE 754 single precision.
  void put(float value) { put(std::bit_cast<std::uint32_t>(value)); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// The inverse. Every get() throws ConfigError, with the name of the value, if too few bytes are left.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const char* name) : rest_(bytes), name_(name) {}

  template <std::integral T>
  T get() {
    if (rest_.size() < sizeof(T)) throw ConfigError(std::string(name_) + " ends too early");
    std::uint64_t value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(rest_[i]);
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  float get_float() { return std::bit_cast<float>(get<std::uint32_t>()); }
  std::size_t num_left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const char* name_;
};

}  // namespace agentspec
