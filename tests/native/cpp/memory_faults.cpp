#include "memory_faults.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>
#include <new>
#include <thread>

namespace agentspec {
namespace {

std::atomic<bool> is_planned = false;
std::atomic<FaultMode> planned_mode = FaultMode::kOnce;
std::atomic<std::size_t> planned_n = 0;
std::atomic<std::size_t> allocations = 0;
std::atomic<std::size_t> faults = 0;
std::atomic<std::size_t> live_blocks = 0;
std::atomic<bool> is_held = false;
std::atomic<std::thread::id> holder;
thread_local bool is_exempt = false;

bool is_due(std::size_t i) {
  const std::size_t n = planned_n;
  switch (planned_mode) {
    case FaultMode::kOnce:
      return i == n;
    case FaultMode::kFromThenOn:
      return i >= n;
    case FaultMode::kEvery:
      return i % n == 0;
  }
  return false;
}

bool fails_now() {
  while (is_held && holder.load() != std::this_thread::get_id()) std::this_thread::yield();
  if (!is_planned || is_exempt || !is_due(++allocations)) return false;
  ++faults;
  return true;
}

void* counted(void* block) {
  if (block != nullptr) ++live_blocks;
  return block;
}

void uncount(const void* block) {
  if (block != nullptr) --live_blocks;
}

}  // namespace

void plan_faults(FaultMode mode, std::size_t n) {
  is_exempt = true;
  planned_mode = mode;
  planned_n = n;
  allocations = faults = 0;
  is_planned = true;
}

void end_faults() { is_planned = false; }
std::size_t num_allocations() { return allocations; }
std::size_t num_faults() { return faults; }
std::size_t num_live_blocks() { return live_blocks; }

FaultScope::FaultScope() { is_exempt = false; }
FaultScope::~FaultScope() { is_exempt = true; }

HoldOthers::HoldOthers() {
  holder = std::this_thread::get_id();
  is_held = true;
}
HoldOthers::~HoldOthers() { is_held = false; }

}  // namespace agentspec

using agentspec::counted;
using agentspec::fails_now;
using agentspec::uncount;

// ---- the C heap and the system ------------------------------------------------------------------------

extern "C" {
void* __real_malloc(std::size_t bytes);
void* __real_realloc(void* block, std::size_t bytes);
void __real_free(void* block);
void* __real_mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset);
void* __real_mremap(void* block, std::size_t old_bytes, std::size_t new_bytes, int flags, ...);
int __real_munmap(void* block, std::size_t bytes);

void* __wrap_malloc(std::size_t bytes) { return fails_now() ? nullptr : counted(__real_malloc(bytes)); }

void* __wrap_realloc(void* block, std::size_t bytes) {
  if (fails_now()) return nullptr;
  void* moved = __real_realloc(block, bytes);
  return block == nullptr ? counted(moved) : moved;
}

void __wrap_free(void* block) {
  uncount(block);
  __real_free(block);
}

void* __wrap_mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  if (fails_now()) return MAP_FAILED;
  void* block = __real_mmap(at, bytes, protection, flags, file, offset);
  if (block != MAP_FAILED) counted(block);
  return block;
}

void* __wrap_mremap(void* block, std::size_t old_bytes, std::size_t new_bytes, int flags, ...) {
  return fails_now() ? MAP_FAILED : __real_mremap(block, old_bytes, new_bytes, flags);
}

int __wrap_munmap(void* block, std::size_t bytes) {
  uncount(block);
  return __real_munmap(block, bytes);
}
}

// ---- operator new -------------------------------------------------------------------------------------

namespace {

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails_now()) return nullptr;
  const std::size_t blocks = bytes == 0 ? 1 : (bytes + alignment - 1) / alignment;
  return counted(std::aligned_alloc(alignment, blocks * alignment));
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* block = allocate(bytes, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

constexpr std::size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kAlignment); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kAlignment); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kAlignment); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, kAlignment);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { __wrap_free(block); }
void operator delete[](void* block) noexcept { __wrap_free(block); }
void operator delete(void* block, std::size_t) noexcept { __wrap_free(block); }
void operator delete[](void* block, std::size_t) noexcept { __wrap_free(block); }
void operator delete(void* block, std::align_val_t) noexcept { __wrap_free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { __wrap_free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { __wrap_free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { __wrap_free(block); }
