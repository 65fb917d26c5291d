// The fuzz target: every byte string is a sequence of operations, and none may throw.

#include <cstddef>
#include <cstdint>

#include "operations.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  agentspec::run_operations({data, size});
  return 0;
}
