// _native.LiveRows: a step of an engine with a matrix of rows, without Python code per row.

#include "core/forest/live_rows.hpp"

#include <pybind11/stl.h>

#include <string>
#include <string_view>

#include "bindings/bindings.hpp"

namespace agentspec {
namespace {

using Tokens = ArrayView<std::int32_t>;

std::string_view view_of(py::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

std::size_t size_of(py::handle sequence) {
  const Py_ssize_t size = PyObject_Size(sequence.ptr());
  if (size < 0) throw py::error_already_set();
  return static_cast<std::size_t>(size);
}

/// Returns the first `size` items as a new list, which keeps them alive.
py::list first_of(const py::list& items, std::size_t size) {
  PyObject* kept = PyList_GetSlice(items.ptr(), 0, static_cast<Py_ssize_t>(size));
  if (kept == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::list>(kept);
}

std::size_t num_verified(const py::dict& verified, py::handle name) {
  if (verified.empty()) return 0;
  PyObject* found = PyDict_GetItemWithError(verified.ptr(), name.ptr());
  if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
  return found == nullptr ? 0 : size_of(found);
}

/// The names in the result point into the strings of `names`.
std::vector<RowBatch::Row> rows_of(const py::list& names, const py::list& sampled, const py::dict& verified) {
  std::vector<RowBatch::Row> rows(sampled.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].num_sampled = size_of(PyList_GET_ITEM(sampled.ptr(), static_cast<Py_ssize_t>(i)));
    if (rows[i].num_sampled == 0) continue;
    const py::handle name = PyList_GET_ITEM(names.ptr(), static_cast<Py_ssize_t>(i));
    rows[i].name = view_of(name);
    rows[i].num_verified = num_verified(verified, name);
  }
  return rows;
}

py::list lists_of(const RowDrafts& drafts) {
  py::list lists(drafts.ranges.size());
  for (std::size_t i = 0; i < drafts.ranges.size(); ++i) {
    const auto tokens = drafts.of(i);
    py::list made(tokens.size());
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(j), py::int_(tokens[j]).release().ptr());
    }
    PyList_SET_ITEM(lists.ptr(), static_cast<Py_ssize_t>(i), made.release().ptr());
  }
  return lists;
}

py::tuple step(LiveRows& self, const py::list& names, const py::list& sampled, const Tokens& ends,
               const Tokens& texts, const py::dict& verified, std::uint32_t max_tokens, double min_prob,
               double now_s) {
  if (texts.ndim() != 2 || ends.ndim() != 1)
    throw py::value_error("the rows are a matrix and their ends an array");
  if (!is_aligned(texts) || !is_aligned(ends))
    throw py::value_error("expected arrays that are aligned in memory");
  self.expect(sampled.size());
  const py::list kept_sampled = first_of(sampled, sampled.size());
  const py::list kept_names = first_of(names, kept_sampled.size());
  const std::size_t num_rows = std::min<std::size_t>(ends.size(), texts.shape(0));
  if (kept_names.size() < kept_sampled.size() || num_rows < kept_sampled.size())
    throw py::value_error("there are " + std::to_string(kept_sampled.size()) +
                          " rows, but fewer names, ends or texts");
  const std::vector<RowBatch::Row> rows = rows_of(kept_names, kept_sampled, verified);
  const RowBatch batch{rows,
                       {ends.data(), num_rows},
                       {texts.data(), static_cast<std::size_t>(texts.size())},
                       static_cast<std::size_t>(texts.shape(1))};
  RowDrafts drafts;
  {
    const py::gil_scoped_release unlocked;
    drafts = self.step(batch, max_tokens, min_prob, now_s);
  }
  return py::make_tuple(lists_of(drafts), drafts.score, drafts.num_decoding, drafts.num_verified,
                        drafts.num_new);
}

}  // namespace

void register_live_rows(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<RowCounts>(module, "RowCounts", "Sums over a request's steps. Source is the index of arrays.")
      .def_readonly("num_output_tokens", &RowCounts::num_output_tokens)
      .def_readonly("num_steps", &RowCounts::num_steps)
      .def_readonly("num_drafts", &RowCounts::num_drafts)
      .def_readonly("decode_s", &RowCounts::decode_s)
      .def_readonly("measured_decode_s", &RowCounts::measured_decode_s)
      .def_readonly("plain_decode_s", &RowCounts::plain_decode_s)
      .def_readonly("drafted", &RowCounts::drafted)
      .def_readonly("accepted", &RowCounts::accepted);
  py::class_<LiveRows>(module, "LiveRows",
                       "A core's requests as rows of an engine's batch. Safe from several threads.")
      .def(py::init<ForestCore&>(), py::arg("core"), py::keep_alive<1, 2>())
      .def("add", &LiveRows::add, py::arg("name"), py::arg("num_prompt_tokens"), py::arg("most_tokens"),
           py::arg("stops"), Unlocked(),
           "Add or replace a row. Prompt and output together have at most `most_tokens` tokens; any\n"
           "of `stops` ends the output.")
      .def("enter", &LiveRows::enter, py::arg("name"), py::arg("request"), Unlocked(),
           "Connect a row with a request of the core, which then drafts for it.")
      .def("remove", &LiveRows::remove, py::arg("name"), Unlocked(),
           "Remove a row, if it exists. Returns its counts since they were last taken.")
      .def("take_counts", &LiveRows::take_counts, py::arg("name"), Unlocked(),
           "Return a row's counts since the last call, and reset them.")
      .def("count_saving", &LiveRows::count_saving, py::arg("measured_s"), py::arg("fixed_s"),
           py::arg("per_token_s"), Unlocked(),
           "Count the last step for each row that was decoding. It took measured_s; without drafts n\n"
           "tokens would have taken fixed_s + n * per_token_s.")
      .def("step", &step, py::arg("names"), py::arg("sampled"), py::arg("ends").noconvert(),
           py::arg("texts").noconvert(), py::arg("verified"), py::arg("max_tokens"), py::arg("min_prob"),
           py::arg("now_s"),
           "Ingest a step's output and draft for the next step. Shared indices and models are updated\n"
           "later, in the background. names[i], sampled[i]: name and new tokens of row i. Rows\n"
           "without new tokens, and rows that were not added, are ignored. ends[i]: tokens in\n"
           "texts[i], including the new ones. verified[name]: the draft that the step verified.\n"
           "Returns (drafts by row, sum of their scores, rows that were decoding, their verified\n"
           "draft tokens, their new tokens).");
}

}  // namespace agentspec
