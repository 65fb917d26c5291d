// The instruction set extensions that this build uses. They are fixed when it is compiled: the core has one
// version of each function and selects none at run time.

#include <array>

#include "bindings/bindings.hpp"

namespace agentspec {
namespace {

// From the compiler's macros: a -march in the caller's CXXFLAGS is seen too. The empty name ends the list.
constexpr std::array kCpuFeatures = {
#ifdef __SSE2__
    "sse2",
#endif
#ifdef __SSE3__
    "sse3",
#endif
#ifdef __SSSE3__
    "ssse3",
#endif
#ifdef __SSE4_1__
    "sse4_1",
#endif
#ifdef __SSE4_2__
    "sse4_2",
#endif
#ifdef __POPCNT__
    "popcnt",
#endif
#ifdef __AVX__
    "avx",
#endif
#ifdef __AVX2__
    "avx2",
#endif
#ifdef __FMA__
    "fma",
#endif
#ifdef __BMI2__
    "bmi2",
#endif
#ifdef __AVX512F__
    "avx512f",
#endif
#ifdef __ARM_NEON
    "neon",
#endif
#ifdef __ARM_FEATURE_ATOMICS
    "lse",
#endif
#ifdef __ARM_FEATURE_DOTPROD
    "dotprod",
#endif
#ifdef __ARM_FEATURE_SVE
    "sve",
#endif
    "",
};

}  // namespace

void register_cpu_features(py::module_& module) {
  py::tuple names(kCpuFeatures.size() - 1);
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kCpuFeatures[i];
  module.attr("CPU_FEATURES") = names;
}

}  // namespace agentspec
