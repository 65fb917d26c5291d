#include "bindings/draft_maker.hpp"

#include <structmember.h>

#include <algorithm>
#include <numeric>

namespace agentspec {
namespace {

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
  py::class_<DraftMaker>(module, "DraftMaker", "Makes the objects that step_named() returns.")
      .def(py::init<py::type, py::tuple>(), py::arg("draft"), py::arg("sources"),
           "draft: a class with the slots of agentspec.Draft; sources[n] stands for source n.");
}

}  // namespace agentspec
