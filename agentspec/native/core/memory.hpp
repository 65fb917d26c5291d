// Memory for arrays: from the C heap while they are small, from the system once they are large.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace agentspec
