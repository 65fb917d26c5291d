// Memory that runs out when a test wants it to: all allocations of the program's own objects pass here.
//
// operator new in all its forms is replaced; malloc, realloc, mmap and mremap, with free and munmap, are
// caught by the linker (--wrap), so the core knows nothing of it.
#pragma once

#include <cstddef>

namespace agentspec {

enum class FaultMode {
  kOnce,        // the n-th allocation fails
  kFromThenOn,  // and every later one
  kEvery        // every n-th allocation fails
};

/// From now on allocations are counted, and fail as planned, until end_faults(): those of other threads, and
/// those that the calling thread makes within a FaultScope.
void plan_faults(FaultMode mode, std::size_t n);
void end_faults();

struct FaultScope {
  FaultScope();
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
};

/// Since the plan was made: allocations that counted, and those that failed.
std::size_t num_allocations();
std::size_t num_faults();
/// Blocks and mappings that were allocated and not freed.
std::size_t num_live_blocks();

/// While it lives, allocations of all other threads wait: what is counted in which order is then known.
struct HoldOthers {
  HoldOthers();
  ~HoldOthers();
  HoldOthers(const HoldOthers&) = delete;
  HoldOthers& operator=(const HoldOthers&) = delete;
};

}  // namespace agentspec
