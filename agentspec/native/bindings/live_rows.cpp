// _native.LiveRows: a step of an engine's rows, without Python code per row.

#include "core/forest/live_rows.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

using Tokens = ArrayView<std::int32_t>;

std::string_view view_of(py::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

py::list list_at(const py::list& items, std::size_t i) {
  const py::handle item = PyList_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
  if (!py::isinstance<py::list>(item)) throw py::type_error("the sampled tokens of a row are a list");
  return py::reinterpret_borrow<py::list>(item);
}

/// Returns the first `size` items as a new list, which keeps them alive.
py::list first_of(const py::list& items, std::size_t size) {
  PyObject* kept = PyList_GetSlice(items.ptr(), 0, static_cast<Py_ssize_t>(size));
  if (kept == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::list>(kept);
}

/// Counts the draft tokens. Ids below 0 are the engine's padding.
std::size_t num_slots(const py::dict& verified, py::handle name) {
  if (verified.empty()) return 0;
  PyObject* found = PyDict_GetItemWithError(verified.ptr(), name.ptr());
  if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
  if (found == nullptr) return 0;
  std::size_t num = 0;
  for (const py::handle token : py::handle(found)) num += token_of(token) >= 0 ? 1 : 0;
  return num;
}

/// A batch, and what it points to. The names point into the strings of `names`.
struct Rows {
  std::vector<std::int32_t> tokens;
  std::vector<RowBatch::Row> rows;

  Rows(const py::list& names, const py::list& sampled, std::span<const std::int32_t> ends,
       const py::dict& verified)
      : rows(sampled.size()) {
    std::vector<std::size_t> begins(rows.size() + 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const py::list row = list_at(sampled, i);
      for (const py::handle token : row) tokens.push_back(token_of(token));
      begins[i + 1] = tokens.size();
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (begins[i] == begins[i + 1]) continue;
      const py::handle name = PyList_GET_ITEM(names.ptr(), static_cast<Py_ssize_t>(i));
      if (ends[i] < 0)
        throw py::value_error("row " + std::to_string(i) + " can't end at " + std::to_string(ends[i]));
      rows[i] = {view_of(name), std::span(tokens).subspan(begins[i], begins[i + 1] - begins[i]),
                 num_slots(verified, name), static_cast<std::size_t>(ends[i])};
    }
  }
};

py::list lists_of(const RowDrafts& drafts) {
  py::list lists(drafts.rows.size());
  for (std::size_t i = 0; i < drafts.rows.size(); ++i) {
    const auto tokens = drafts.of(i);
    py::list made(tokens.size());
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(j), py::int_(tokens[j]).release().ptr());
    }
    PyList_SET_ITEM(lists.ptr(), static_cast<Py_ssize_t>(i), made.release().ptr());
  }
  return lists;
}

/// The chances of all draft tokens, row after row.
std::vector<float> chances_of(const RowDrafts& drafts) {
  std::vector<float> chances;
  chances.reserve(drafts.chances.size());
  for (const RowDrafts::Row& row : drafts.rows) {
    const float* begin = drafts.chances.data() + row.begin;
    chances.insert(chances.end(), begin, begin + row.size);
  }
  return chances;
}

py::list take_parts(LiveRows& self, std::size_t least, std::size_t most_more) {
  if (least == 0) throw py::value_error("a part has one token at least, not 0");
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> taken;
  {
    const py::gil_scoped_release unlocked;
    taken = self.take_parts(least, most_more);
  }
  py::list parts;
  for (auto& [name, part] : taken) parts.append(py::make_tuple(name, array_of(std::move(part))));
  return parts;
}

py::tuple step(LiveRows& self, const py::list& names, const py::list& sampled, const Tokens& ends,
               const py::dict& verified, std::uint32_t max_tokens, double min_prob, double now_s) {
  const auto known_ends = span_of(ends);
  self.expect(sampled.size());
  const py::list kept_sampled = first_of(sampled, sampled.size());
  const py::list kept_names = first_of(names, kept_sampled.size());
  if (kept_names.size() < kept_sampled.size() || known_ends.size() < kept_sampled.size())
    throw py::value_error("there are " + std::to_string(kept_sampled.size()) +
                          " rows, but fewer names or ends");
  const Rows batch(kept_names, kept_sampled, known_ends, verified);
  RowDrafts drafts;
  {
    const py::gil_scoped_release unlocked;
    drafts = self.step({batch.rows}, {max_tokens, min_prob}, now_s);
  }
  return py::make_tuple(lists_of(drafts), array_of(chances_of(drafts)), drafts.score, drafts.num_decoding,
                        drafts.num_slots, drafts.num_new);
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
      .def_readonly("accepted", &RowCounts::accepted)
      .def_readonly("accepted_by_origin", &RowCounts::accepted_by_origin);
  py::class_<LiveRow>(module, "EndedRow", "A row that was removed.")
      .def_property_readonly(
          "output", [](const LiveRow& self) { return array_of(std::vector(self.output())); },
          "The output that the core has received, int32 [tokens]; none if it is not kept or in doubt.")
      .def_property_readonly("is_ended", &LiveRow::is_ended,
                             "True if the output ended at a stop token, or at its greatest length.")
      .def_property_readonly("num_output_tokens", &LiveRow::num_output_tokens)
      .def(
          "counts",
          [](const LiveRow& self, std::optional<std::size_t> num_tokens) {
            return num_tokens ? self.counts(*num_tokens) : self.counts();
          },
          py::arg("num_tokens") = py::none(),
          "Return the counts that were not taken; of a held row, those up to this number of tokens.");
  py::class_<LiveRows>(module, "LiveRows",
                       "A core's requests as rows of an engine's batch. Safe from several threads.")
      .def(py::init<ForestCore&>(), py::arg("core"), py::keep_alive<1, 2>())
      .def("add", &LiveRows::add, py::arg("name"), py::arg("num_prompt_tokens"), py::arg("most_tokens"),
           py::arg("stops"), py::arg("keeps_output") = false, py::arg("request") = py::none(),
           py::arg("is_held") = false, Unlocked(),
           "Add or replace a row. Prompt and output together have at most `most_tokens` tokens; any\n"
           "of `stops` ends the output. keeps_output: for EndedRow.output. request: for enter().\n"
           "is_held: the output may turn out to have ended earlier. It has no parts, and its counts can't\n"
           "be taken before it is removed.")
      .def("enter", &LiveRows::enter, py::arg("name"), py::arg("request"), Unlocked(),
           "Connect a row with a request of the core, which then drafts for it.")
      .def("resume", &LiveRows::resume, py::arg("name"), py::arg("num_tokens"), Unlocked(),
           "Continue a row whose request the engine stopped and starts anew with so many tokens. A row\n"
           "with another number of tokens is lost.")
      .def("prefill", &LiveRows::prefill, py::arg("name"), Unlocked(),
           "The engine computes a row's prompt, or computes it again. A row that has output is lost.")
      .def("lose", &LiveRows::lose, py::arg("name"), Unlocked(),
           "Give a row up: it is counted, but nothing is learned or drafted for it.")
      .def("take_parts", &take_parts, py::arg("least"), py::arg("most_more") = 0,
           "Return the new tokens of each output that is kept and has enough: name and int32 [tokens].\n"
           "Enough is ``least`` tokens, and as many as were returned before, up to ``most_more``.\n"
           "O(rows + tokens).")
      .def("remove", &LiveRows::remove, py::arg("name"), Unlocked(),
           "Remove a row and return it; an empty one for an unknown name.")
      .def("take_counts", &LiveRows::take_counts, py::arg("name"), Unlocked(),
           "Return a row's counts since the last call, and reset them.")
      .def("last_gain", &LiveRows::last_gain, py::arg("name"), Unlocked(),
           "Return what the last step gave a row: its new tokens, and the source of the draft that the\n"
           "step verified.")
      .def("count_saving", &LiveRows::count_saving, py::arg("saving"), Unlocked(),
           "Count the time of the last step for each row that was decoding.")
      .def("step", &step, py::arg("names"), py::arg("sampled"), py::arg("ends").noconvert(),
           py::arg("verified"), py::arg("max_tokens"), py::arg("min_prob"), py::arg("now_s"),
           "Ingest a step's output and draft for the next step. Shared indices and models are updated\n"
           "later, in the background. names[i], sampled[i]: name and list of new tokens of row i. Rows\n"
           "without new tokens, and rows that were not added, are ignored. ends[i]: tokens in row i,\n"
           "including the new ones. A row that ends elsewhere is lost. verified[name]: the draft, or the\n"
           "part of it, that the step verified; ids below 0 are padding. Returns (drafts by row, the\n"
           "chance of each of their tokens, float32 [tokens], sum of\n"
           "their scores, rows that were decoding, their verified draft tokens, their new tokens).");
}

}  // namespace agentspec
