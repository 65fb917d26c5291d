// ForestCore.step, draft_after: a batch of Python objects, without Python code per request.

#include <algorithm>
#include <numeric>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "core/forest/forest_core.hpp"

namespace agentspec {
namespace {

/// Makes agentspec.Draft objects, without a line of Python per request. Never changes, so it needs no lock.
class DraftMaker {
 public:
  /// `draft` is a class with a slot for each part of a draft, sources[n] stands for source n. Throws
  /// TypeError.
  DraftMaker(py::type draft, py::tuple sources);
  /// One object per draft. The arrays of a batch share their memory; parents are one read-only array for all
  /// chains of a length.
  py::list make(BatchDrafts&& drafts) const;

 private:
  struct Slots {  // where an object keeps its parts, in bytes from its beginning
    py::ssize_t token_ids, parents, probs, score, match_length, source, origins;
  };

  py::object parents_of(const py::array_t<std::int32_t>& parents, std::int64_t begin, std::int64_t end) const;

  py::type draft_;
  py::tuple sources_;
  Slots slots_;
  std::vector<py::array_t<std::int32_t>> chains_;  // parents, by the chain's length
};

constexpr std::size_t kLongestChain = 64;

/// Where instances of a class with __slots__ keep this one.
py::ssize_t slot(const py::type& cls, const char* name) {
  const py::object descriptor = cls.attr(name);
  if (!Py_IS_TYPE(descriptor.ptr(), &PyMemberDescr_Type))
    throw py::type_error(std::string(name) + " is no slot of the class");
  return reinterpret_cast<const PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
}

/// Fills a slot of a new object.
void put(const py::object& object, py::ssize_t slot, py::object value) {
  *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object.ptr()) + slot) = value.release().ptr();
}

py::object allocate(const py::type& cls) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls.ptr());
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

/// The parents of a chain.
py::array_t<std::int32_t> make_chain(std::size_t length) {
  py::array_t<std::int32_t> parents(static_cast<py::ssize_t>(length));
  std::iota(parents.mutable_data(), parents.mutable_data() + length, -1);
  parents.attr("flags").attr("writeable") = false;
  return parents;
}

bool are_local(const std::vector<Origin>& origins) {
  return std::ranges::all_of(origins, [](Origin one) { return one == Origin::kLocal; });
}

std::vector<std::uint8_t> numbers_of(const std::vector<Origin>& origins) {
  std::vector<std::uint8_t> numbers(origins.size());
  std::ranges::transform(origins, numbers.begin(), [](Origin one) { return static_cast<std::uint8_t>(one); });
  return numbers;
}

/// values[begin .. end) without a copy: what py::array's constructor does, without its two heap blocks.
template <typename T>
py::object view(const py::array_t<T>& values, std::int64_t begin, std::int64_t end) {
  const auto& numpy = py::detail::npy_api::get();
  const Py_intptr_t size = end - begin;
  PyObject* made = numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, values.dtype().release().ptr(), 1, &size, nullptr,
      const_cast<T*>(values.data()) + begin,
      py::detail::npy_api::NPY_ARRAY_WRITEABLE_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_, nullptr);
  if (made == nullptr) throw py::error_already_set();
  numpy.PyArray_SetBaseObject_(made, values.inc_ref().ptr());
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

DraftMaker::DraftMaker(py::type draft, py::tuple sources)
    : draft_(std::move(draft)),
      sources_(std::move(sources)),
      slots_{slot(draft_, "token_ids"), slot(draft_, "parents"),      slot(draft_, "probs"),
             slot(draft_, "score"),     slot(draft_, "match_length"), slot(draft_, "source"),
             slot(draft_, "origins")} {
  for (std::size_t length = 0; length <= kLongestChain; ++length) chains_.push_back(make_chain(length));
}

py::list DraftMaker::make(BatchDrafts&& drafts) const {
  const py::array_t<std::int32_t> token_ids = array_of(std::move(drafts.token_ids));
  const py::array_t<std::int32_t> parents = array_of(std::move(drafts.parents));
  const py::array_t<float> probs = array_of(std::move(drafts.probs));
  const bool are_all_local = are_local(drafts.origins);
  const py::array_t<std::uint8_t> origins =
      array_of(are_all_local ? std::vector<std::uint8_t>{} : numbers_of(drafts.origins));
  py::list made(drafts.size());
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const std::int64_t begin = drafts.offsets[i];
    const std::int64_t end = drafts.offsets[i + 1];
    py::object draft = allocate(draft_);
    put(draft, slots_.token_ids, view(token_ids, begin, end));
    put(draft, slots_.parents, parents_of(parents, begin, end));
    put(draft, slots_.probs, view(probs, begin, end));
    put(draft, slots_.score, py::float_(drafts.scores[i]));
    put(draft, slots_.match_length, py::int_(drafts.match_lengths[i]));
    put(draft, slots_.source, sources_[drafts.sources[i]]);
    put(draft, slots_.origins, are_all_local ? py::none() : view(origins, begin, end));
    PyList_SET_ITEM(made.ptr(), static_cast<py::ssize_t>(i), draft.release().ptr());
  }
  return made;
}

py::object DraftMaker::parents_of(const py::array_t<std::int32_t>& parents, std::int64_t begin,
                                  std::int64_t end) const {
  const auto length = static_cast<std::size_t>(end - begin);
  if (length < chains_.size() &&
      std::equal(parents.data() + begin, parents.data() + end, chains_[length].data()))
    return chains_[length];
  return view(parents, begin, end);
}

void register_draft_maker(py::module_& module) {
  py::class_<DraftMaker>(module, "DraftMaker", "Makes the objects that step() returns.")
      .def(py::init<py::type, py::tuple>(), py::arg("draft"), py::arg("sources"),
           "draft: a class with the slots of agentspec.Draft; sources[n] stands for source n.");
}

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

py::object step(ForestCore& self, const py::dict& requests, const py::list& updates, std::uint32_t max_tokens,
                double min_prob, const DraftMaker& maker, bool learn_later) {
  self.expect(updates.size());
  return named(requests, updates, maker, [&](const BatchUpdate& update) {
    return self.step(update, max_tokens, min_prob, learn_later && !update.gains());
  });
}

py::object draft_assumed(ForestCore& self, const py::dict& requests, const py::list& updates,
                         std::uint32_t max_tokens, double min_prob, const DraftMaker& maker) {
  return named(requests, updates, maker,
               [&](const BatchUpdate& update) { return self.draft_after(update, max_tokens, min_prob); });
}

}  // namespace

void register_named_batch(ForestCoreClass& cls) {
  cls.def("step", &step, py::arg("requests"), py::arg("updates"), py::arg("max_tokens"), py::arg("min_prob"),
          py::arg("maker"), py::arg("learn_later") = false,
          "Ingest new output of a batch, [(key, int32 array), ...], and draft for it; requests[key].number\n"
          "is the request. Returns the maker's objects, one per update; None, with nothing changed, if a\n"
          "key is unknown or named twice or an update is not such a pair. learn_later: unless the requests\n"
          "have two to eight new tokens each on the mean, a thread updates shared indices and models\n"
          "afterwards. O(new tokens + match lengths * max_tokens) per request and source.");
  cls.def("draft_after", &draft_assumed, py::arg("requests"), py::arg("updates"), py::arg("max_tokens"),
          py::arg("min_prob"), py::arg("maker"),
          "Draft likewise, as if the output went on with the tokens. Nothing changes.");
}

}  // namespace agentspec
