// The module, the instruction sets that it was compiled for, and what the core's exceptions become in Python.

#include <array>

#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

// They are fixed when the core is compiled: it has one version of each function and selects none at run time.
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

namespace {

void raise(const char* class_name, const std::exception& error) {
  const py::object cls = py::module_::import("agentspec.errors").attr(class_name);
  PyErr_SetString(cls.ptr(), error.what());
}

}  // namespace

void register_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const ConfigError& error) {
      raise("ConfigError", error);
    } catch (const TokenError& error) {
      raise("TokenError", error);
    } catch (const UnknownIdError& error) {
      raise("UnknownRequestError", error);
    } catch (const DuplicateIdError& error) {
      raise("DuplicateRequestError", error);
    } catch (const ForkedError& error) {
      raise("ForkedForestError", error);
    } catch (const CapacityError& error) {
      raise("ForestError", error);
    } catch (const IntegrityError& error) {
      PyErr_SetString(PyExc_AssertionError, error.what());
    }
  });
}

}  // namespace agentspec

// Needs no GIL: the bindings have no state, and every class has its own lock or never changes.
PYBIND11_MODULE(_native, module, pybind11::mod_gil_not_used()) {
  module.doc() =
      "AgentSpec's native core: suffix indices over int32 tokens, drafts from them, and what steps cost.";
  agentspec::register_cpu_features(module);
  agentspec::register_errors(module);
  agentspec::register_suffix_index(module);
  agentspec::register_draft_maker(module);
  agentspec::register_forest_core(module);
  agentspec::register_steps(module);
  agentspec::register_live_rows(module);
  agentspec::register_row_step(module);
}
