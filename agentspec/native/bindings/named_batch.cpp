// ForestCore.step_named: a batch as Python has it, without a line of Python per request.

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "core/forest_core.hpp"

namespace agentspec {
namespace {

/// What a batch update points to.
struct Batch {
  std::vector<RequestId> requests;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> offsets{0};

  BatchUpdate update() const { return {requests, tokens, offsets}; }
};

/// dict[key] without borrowing; an empty object if there is none.
py::object look_up(const py::dict& dict, py::handle key) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyDict_GetItemRef(dict.ptr(), key.ptr(), &found) < 0) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
#else
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(found);
#endif
}

/// Adds one (key, tokens); false if it is not of the usual form, whatever is wrong with it.
bool add(Batch& batch, const py::dict& requests, py::handle update, const py::str& number) {
  if (!PyTuple_CheckExact(update.ptr()) || PyTuple_GET_SIZE(update.ptr()) != 2) return false;
  const py::handle tokens = PyTuple_GET_ITEM(update.ptr(), 1);
  if (!py::isinstance<ArrayView<std::int32_t>>(tokens)) return false;
  const py::object request = look_up(requests, PyTuple_GET_ITEM(update.ptr(), 0));
  const auto array = py::reinterpret_borrow<ArrayView<std::int32_t>>(tokens);
  if (!request || array.ndim() != 1 || !is_aligned(array)) return false;
  batch.requests.push_back(py::getattr(request, number).cast<RequestId>());
  batch.tokens.insert(batch.tokens.end(), array.data(), array.data() + array.size());
  batch.offsets.push_back(static_cast<std::int64_t>(batch.tokens.size()));
  return true;
}

/// A view of `size` values within `whole`: what py::array's constructor does, without its two heap blocks.
template <typename T>
py::object view_of(const py::array_t<T>& whole, const py::dtype& type, std::int64_t begin, std::int64_t end) {
  const auto& numpy = py::detail::npy_api::get();
  const Py_intptr_t size = end - begin;
  PyObject* view = numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, type.inc_ref().ptr(), 1, &size, nullptr, const_cast<T*>(whole.data()) + begin,
      py::detail::npy_api::NPY_ARRAY_WRITEABLE_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_, nullptr);
  if (view == nullptr) throw py::error_already_set();
  numpy.PyArray_SetBaseObject_(view, whole.inc_ref().ptr());
  return py::reinterpret_steal<py::object>(view);
}

/// Views of values[offsets[i] .. offsets[i + 1]), one per i, except where shared(i) has an array already.
template <typename T, typename Shared>
py::list split(std::vector<T>&& values, const std::vector<std::int64_t>& offsets, const Shared& shared) {
  const py::array_t<T> whole = array_of(std::move(values));
  const py::dtype type = py::dtype::of<T>();
  py::list views(offsets.size() - 1);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    py::object view = shared(i);
    if (!view) {
      view = view_of(whole, type, offsets[i], offsets[i + 1]);
    }
    PyList_SET_ITEM(views.ptr(), static_cast<py::ssize_t>(i), view.release().ptr());
  }
  return views;
}

/// chains[n] for drafts that are chains of n tokens: their parents are always the same.
auto shared_parents(const BatchDrafts& drafts, const std::vector<std::int64_t>& offsets,
                    const py::list& chains) {
  std::vector<std::int64_t> lengths(offsets.size() - 1, -1);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t length = offsets[i + 1] - offsets[i];
    bool is_chain = length < static_cast<std::int64_t>(chains.size());
    for (std::int64_t n = 0; is_chain && n < length; ++n) {
      is_chain = drafts.parents[static_cast<std::size_t>(offsets[i] + n)] == n - 1;
    }
    if (is_chain) lengths[i] = length;
  }
  return [lengths = std::move(lengths), &chains](std::size_t i) {
    return lengths[i] < 0 ? py::object() : py::object(chains[static_cast<std::size_t>(lengths[i])]);
  };
}

py::object step_named(ForestCore& self, const py::dict& requests, const py::list& updates,
                      std::uint32_t max_tokens, const py::list& chains) {
  self.expect(updates.size());
  Batch batch;
  const py::str number("number");
  for (const py::handle update : updates) {
    if (!add(batch, requests, update, number)) return py::none();
  }
  BatchDrafts drafts;
  try {
    const py::gil_scoped_release unlocked;
    drafts = self.step(batch.update(), max_tokens);
  } catch (const UnknownIdError&) {
    return py::none();
  } catch (const DuplicateIdError&) {
    return py::none();
  }
  const std::vector<std::int64_t> offsets = std::move(drafts.offsets);
  const auto parents = shared_parents(drafts, offsets, chains);
  const auto none = [](std::size_t) { return py::object(); };
  return py::make_tuple(
      split(std::move(drafts.token_ids), offsets, none), split(std::move(drafts.parents), offsets, parents),
      split(std::move(drafts.probs), offsets, none), array_of(std::move(drafts.scores)).attr("tolist")(),
      array_of(std::move(drafts.match_lengths)).attr("tolist")(),
      py::bytes(reinterpret_cast<const char*>(drafts.sources.data()), drafts.sources.size()));
}

}  // namespace

void register_named_batch(ForestCoreClass& cls) {
  cls.def(
      "step_named", &step_named, py::arg("requests"), py::arg("updates"), py::arg("max_tokens"),
      py::arg("chains"),
      "step() for [(key, int32 array), ...]; requests[key].number is the request. Returns lists with one\n"
      "entry per update (token_ids, parents, probs, scores, match_lengths) and the sources as bytes; None,\n"
      "with nothing changed, if a key is unknown or named twice or an update is not such a pair. chains[n] "
      "is\n"
      "used as the parents of chains of n tokens.");
}

}  // namespace agentspec
