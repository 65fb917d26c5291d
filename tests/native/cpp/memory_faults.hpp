// Allocation failures on request: all allocations of the program's own objects pass here.
//
// operator new in all its forms is replaced. The linker (--wrap) redirects malloc, realloc, mmap and mremap,
// with free and munmap, so the core needs no changes.
#pragma once

#include <cstddef>

namespace agentspec {

enum class FaultMode {
  kOnce,        // the n-th allocation fails
  kFromThenOn,  // and every later one
  kEvery        // every n-th allocation fails
};

/// Counts allocations from now until end_faults(), and fails them as planned: those of other threads, and
/// those that the calling thread makes within a FaultScope.
void plan_faults(FaultMode mode, std::size_t n);
void end_faults();

struct FaultScope {
  FaultScope();
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
};

/// Number of allocations counted and failed since the plan was made.
std::size_t num_allocations();
std::size_t num_faults();
/// Number of blocks and mappings allocated and not freed.
std::size_t num_live_blocks();

/// Delays the allocations of all other threads during its lifetime, so that the order of counting is known.
struct HoldOthers {
  HoldOthers();
  ~HoldOthers();
  HoldOthers(const HoldOthers&) = delete;
  HoldOthers& operator=(const HoldOthers&) = delete;
};

}  // namespace agentspec
