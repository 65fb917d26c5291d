// What the binding files share: int32 arrays in, arrays out, and the registration functions.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/forest/forest_core.hpp"

namespace agentspec {

namespace py = pybind11;

/// A one-dimensional, contiguous array of exactly this type: nothing is converted or copied.
template <typename T>
using ArrayView = py::array_t<T, py::array::c_style>;

template <typename T>
bool is_aligned(const ArrayView<T>& array) {
  return (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
}

/// Throws ValueError if the array is not one-dimensional, or not aligned in memory.
template <typename T>
std::span<const T> span_of(const ArrayView<T>& array) {
  if (array.ndim() != 1)
    throw py::value_error("expected a one-dimensional array, not one of " + std::to_string(array.ndim()) +
                          " dimensions");
  if (!is_aligned(array)) throw py::value_error("expected an array that is aligned in memory");
  return {array.data(), static_cast<std::size_t>(array.size())};
}

/// A numpy array that takes over the vector's memory.
template <typename T>
py::array_t<T> array_of(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  const py::capsule owner(owned.get(), [](void* held) { delete static_cast<std::vector<T>*>(held); });
  const std::vector<T>* kept = owned.release();
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

/// Throws TypeError, TokenError.
inline std::int32_t token_of(py::handle item) {
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(item.ptr(), &overflow);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  if (overflow != 0 || value < INT32_MIN || value > INT32_MAX)
    throw TokenError("a token id is an int32, not " + py::str(item).cast<std::string>());
  return static_cast<std::int32_t>(value);
}

using ForestCoreClass = py::class_<ForestCore, std::unique_ptr<ForestCore, ForestCoreDeleter>>;

/// Throws ConfigError if a value is out of range.
DraftOptions make_draft_options(bool is_tree, std::int64_t max_tokens, double alpha, std::int64_t min_match,
                                double min_prob, double doubt);

void register_cpu_features(py::module_& module);
void register_errors(py::module_& module);
void register_suffix_index(py::module_& module);
void register_draft_maker(py::module_& module);
void register_forest_core(py::module_& module);
void register_named_batch(ForestCoreClass& cls);
void register_live_rows(py::module_& module);
void register_row_step(py::module_& module);
void register_steps(py::module_& module);

}  // namespace agentspec
