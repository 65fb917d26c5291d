#include "core/pod_array.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace agentspec {
namespace {

#ifdef __linux__
// Huge pages would make unwritten pages resident.
void* map(std::size_t bytes) {
  void* made =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made != MAP_FAILED) madvise(made, bytes, MADV_NOHUGEPAGE);
  return made;
}
void* remap(void* block, std::size_t old_bytes, std::size_t new_bytes) {
  return mremap(block, old_bytes, new_bytes, MREMAP_MAYMOVE);
}
void unmap(void* block, std::size_t bytes) { munmap(block, bytes); }
bool is_mapping(std::size_t bytes) { return bytes >= kMappedBytes; }
void* const kFailed = MAP_FAILED;
#else
// Other systems use the C heap; large arrays then cost their reserved size.
void* map(std::size_t bytes) { return std::malloc(bytes); }
void* remap(void* block, std::size_t, std::size_t new_bytes) { return std::realloc(block, new_bytes); }
void unmap(void* block, std::size_t) { std::free(block); }
bool is_mapping(std::size_t) { return false; }
void* const kFailed = nullptr;
#endif

void* checked(void* block, void* failed) {
  if (block == failed) throw std::bad_alloc();
  return block;
}

}  // namespace

void* reallocate(void* block, std::size_t old_bytes, std::size_t new_bytes, std::size_t used) {
  const bool was_mapping = block != nullptr && is_mapping(old_bytes);
  if (was_mapping && is_mapping(new_bytes)) {
    return checked(remap(block, round_to_page(old_bytes), round_to_page(new_bytes)), kFailed);
  }
  if (!was_mapping && !is_mapping(new_bytes)) return checked(std::realloc(block, new_bytes), nullptr);
  void* moved = is_mapping(new_bytes) ? checked(map(round_to_page(new_bytes)), kFailed)
                                      : checked(std::malloc(new_bytes), nullptr);
  if (used > 0) std::memcpy(moved, block, std::min(used, new_bytes));
  if (block != nullptr) deallocate(block, old_bytes);
  return moved;
}

void deallocate(void* block, std::size_t bytes) noexcept {
  if (is_mapping(bytes)) {
    unmap(block, round_to_page(bytes));
  } else {
    std::free(block);
  }
}

void discard_pages(void* block, std::size_t begin, std::size_t end) noexcept {
#ifdef __linux__
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));  // may be larger than kPageBytes
  begin = (begin + page - 1) / page * page;
  end = round_to_page(end);
  if (begin < end) madvise(static_cast<char*>(block) + begin, end - begin, MADV_DONTNEED);
#else
  static_cast<void>(block), static_cast<void>(begin), static_cast<void>(end);
#endif
}

}  // namespace agentspec
