// ForestCore.step_named, draft_after_named: a batch of Python objects, without Python code per request.

#include "bindings/draft_maker.hpp"
#include "core/error.hpp"
#include "core/forest/forest_core.hpp"

namespace agentspec {
namespace {

/// The objects of one batch update.
struct Batch {
  std::vector<RequestId> requests;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> offsets{0};

  BatchUpdate update() const { return {requests, tokens, offsets}; }
};

/// Returns dict[key] as a new reference, or an empty object if the key is missing.
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

bool is_pair(py::handle update) {
  return PyTuple_CheckExact(update.ptr()) && PyTuple_GET_SIZE(update.ptr()) == 2;
}

/// numpy's own dtype object for int32 is `int32`; equal dtypes take longer to recognize.
bool is_int32_array(py::handle object, const py::dtype& int32) {
  if (!py::isinstance<py::array>(object)) return false;
  const auto* array = py::detail::array_proxy(object.ptr());
  const bool is_contiguous = (array->flags & py::array::c_style) != 0;
  return (array->descr == int32.ptr() && is_contiguous) || py::isinstance<ArrayView<std::int32_t>>(object);
}

/// Prefetches the objects of the updates, which lie anywhere in memory.
void prefetch(const py::list& updates) {
  for (const py::handle update : updates) __builtin_prefetch(update.ptr());
  for (const py::handle update : updates) {
    if (!is_pair(update)) continue;
    __builtin_prefetch(PyTuple_GET_ITEM(update.ptr(), 0));
    __builtin_prefetch(PyTuple_GET_ITEM(update.ptr(), 1));
  }
  for (const py::handle update : updates) {
    if (!is_pair(update) || !py::isinstance<py::array>(PyTuple_GET_ITEM(update.ptr(), 1))) continue;
    const auto* array = py::detail::array_proxy(PyTuple_GET_ITEM(update.ptr(), 1));
    __builtin_prefetch(array->dimensions);
    __builtin_prefetch(array->data);
  }
}

/// Adds tokens. Returns false if they do not have the usual form, for any reason.
bool add(Batch& batch, py::handle tokens, const py::dtype& int32) {
  if (!is_int32_array(tokens, int32)) return false;
  const auto array = py::reinterpret_borrow<ArrayView<std::int32_t>>(tokens);
  if (array.ndim() != 1 || !is_aligned(array)) return false;
  batch.tokens.insert(batch.tokens.end(), array.data(), array.data() + array.size());
  batch.offsets.push_back(static_cast<std::int64_t>(batch.tokens.size()));
  return true;
}

/// Returns false if an update is not (a key of requests, tokens).
bool add(Batch& batch, const py::dict& requests, const py::list& updates) {
  prefetch(updates);
  const auto int32 = py::dtype::of<std::int32_t>();
  std::vector<py::object> named;
  for (const py::handle update : updates) {
    if (!is_pair(update) || !add(batch, PyTuple_GET_ITEM(update.ptr(), 1), int32)) return false;
    named.push_back(look_up(requests, PyTuple_GET_ITEM(update.ptr(), 0)));
    if (!named.back()) return false;
    __builtin_prefetch(named.back().ptr());
  }
  const py::str number("number");
  for (const py::object& request : named) {
    batch.requests.push_back(py::getattr(request, number).cast<RequestId>());
  }
  return true;
}

/// Returns the drafts that make(batch update) returns, as the maker's objects.
template <typename Make>
py::object named(const py::dict& requests, const py::list& updates, const DraftMaker& maker,
                 const Make& make) {
  Batch batch;
  if (!add(batch, requests, updates)) return py::none();
  BatchDrafts drafts;
  try {
    const py::gil_scoped_release unlocked;
    drafts = make(batch.update());
  } catch (const UnknownIdError&) {
    return py::none();
  } catch (const DuplicateIdError&) {
    return py::none();
  }
  return maker.make(std::move(drafts));
}

py::object step_named(ForestCore& self, const py::dict& requests, const py::list& updates,
                      std::uint32_t max_tokens, double min_prob, const DraftMaker& maker, bool learn_later) {
  self.expect(updates.size());
  return named(requests, updates, maker, [&](const BatchUpdate& update) {
    return self.step(update, max_tokens, min_prob, learn_later && !update.gains());
  });
}

py::object draft_after_named(ForestCore& self, const py::dict& requests, const py::list& updates,
                             std::uint32_t max_tokens, double min_prob, const DraftMaker& maker) {
  return named(requests, updates, maker,
               [&](const BatchUpdate& update) { return self.draft_after(update, max_tokens, min_prob); });
}

}  // namespace

void register_named_batch(ForestCoreClass& cls) {
  cls.def("step_named", &step_named, py::arg("requests"), py::arg("updates"), py::arg("max_tokens"),
          py::arg("min_prob"), py::arg("maker"), py::arg("learn_later") = false,
          "step() for [(key, int32 array), ...]; requests[key].number is the request. Returns the maker's\n"
          "objects, one per update; None, with nothing changed, if a key is unknown or named twice or an\n"
          "update is not such a pair. learn_later: unless the requests have two to eight new tokens\n"
          "each on the mean, a thread updates shared indices and models afterwards.");
  cls.def("draft_after_named", &draft_after_named, py::arg("requests"), py::arg("updates"),
          py::arg("max_tokens"), py::arg("min_prob"), py::arg("maker"),
          "The same for draft_after(): the tokens are assumed, and nothing changes.");
}

}  // namespace agentspec
