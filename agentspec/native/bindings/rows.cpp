// _native.LiveRows, RowStep: the steps of an engine's rows, without Python code per row.

#include "steps/rows.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "steps/row_step.hpp"

namespace agentspec {

namespace {

/// Returns the number of columns.
template <typename T>
std::size_t width_of(const ArrayView<T>& array, std::size_t num_rows, const char* name) {
  if (array.ndim() != 2 || static_cast<std::size_t>(array.shape(0)) < num_rows || !is_aligned(array))
    throw py::value_error(std::string(name) + " is an aligned matrix of at least " +
                          std::to_string(num_rows) + " rows");
  return static_cast<std::size_t>(array.shape(1));
}

bool is_known(std::int32_t token, std::uint32_t vocabulary_size) {
  return static_cast<std::uint32_t>(token) < vocabulary_size;  // negative ids become large
}

/// Several times faster than numpy's conversion, which asks each item for its type.
py::array_t<std::int32_t> known_in_list(const py::list& items, std::uint32_t vocabulary_size) {
  std::vector<std::int32_t> known;
  known.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int32_t token = token_of(PyList_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)));
    if (is_known(token, vocabulary_size)) known.push_back(token);
  }
  return array_of(std::move(known));
}

/// Returns the array itself if it has no other tokens.
py::object known_in_array(const ArrayView<std::int32_t>& tokens, std::uint32_t vocabulary_size) {
  const auto view = span_of(tokens);
  const auto is_of_model = [&](std::int32_t token) { return is_known(token, vocabulary_size); };
  if (std::ranges::all_of(view, is_of_model)) return tokens;
  std::vector<std::int32_t> known;
  std::ranges::copy_if(view, std::back_inserter(known), is_of_model);
  return array_of(std::move(known));
}

std::unique_ptr<RowStep> plan(LiveRows& rows, const py::list& names, const py::dict& verified,
                              const ArrayView<std::int32_t>& num_sampled,
                              const ArrayView<std::int64_t>& sampled, ArrayView<std::int64_t>& drafts,
                              ArrayView<float>& chances, double min_prob, std::size_t num_model,
                              const std::optional<ArrayView<float>>& least,
                              const std::optional<py::dict>& dictated) {
  if (least && span_of(*least).size() < names.size())
    throw py::value_error("there are " + std::to_string(names.size()) + " rows, but fewer values of least");
  std::vector<RowStep::Row> planned;
  planned.reserve(names.size());
  for (const py::handle name : names) {
    PyObject* slots = PyDict_GetItemWithError(verified.ptr(), name.ptr());
    if (slots == nullptr && PyErr_Occurred()) throw py::error_already_set();
    const float worth = least ? span_of(*least)[planned.size()] : 0.0F;
    planned.push_back({name.cast<std::string>(), slots == nullptr ? 0 : py::len(slots), worth, {}});
    if (dictated && dictated->contains(name))
      planned.back().dictated = (*dictated)[name].cast<std::vector<std::int32_t>>();
    check_tokens(planned.back().dictated);
  }
  if (span_of(num_sampled).size() < planned.size())
    throw py::value_error("there are " + std::to_string(planned.size()) +
                          " rows, but fewer numbers of samples");
  StepBuffers buffers;
  buffers.num_sampled = num_sampled.data();
  buffers.sampled_width = width_of(sampled, planned.size(), "sampled");
  buffers.sampled = sampled.data();
  buffers.draft_width = width_of(drafts, planned.size(), "drafts");
  buffers.drafts = drafts.mutable_data();
  if (width_of(chances, planned.size(), "chances") != buffers.draft_width)
    throw py::value_error("drafts and chances must have the same width");
  buffers.chances = chances.mutable_data();
  return std::make_unique<RowStep>(rows, std::move(planned), buffers, min_prob, num_model);
}

const RowDrafts& made(const RowStep& step) {
  if (!step.is_done()) throw py::value_error("this step has not run yet");
  return step.made();
}

void check_row(const RowStep& step, std::size_t row) {
  if (row >= made(step).rows.size()) throw py::index_error("there is no row " + std::to_string(row));
}

py::array_t<float> acceptance_of(const RowStep& step) {
  const RowDrafts& drafts = made(step);
  const std::size_t width = step.draft_width();
  std::vector<float> acceptance(drafts.rows.size() * width);
  for (std::size_t i = 0; i < drafts.rows.size(); ++i) {
    const auto& row = drafts.rows[i];
    std::copy_n(drafts.chances.data() + row.begin, row.size, acceptance.data() + i * width);
  }
  return array_of(std::move(acceptance)).reshape({drafts.rows.size(), width});
}

/// The rows with a verified draft of the model: its verified and accepted tokens, and the trees' worth.
py::list model_results_of(const RowStep& step) {
  py::list results;
  const auto& rows = made(step).rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [num_verified, num_accepted, forgone] = rows[i].model;
    if (num_verified > 0) results.append(py::make_tuple(i, num_verified, num_accepted, forgone));
  }
  return results;
}

py::list list_of(std::span<const std::int32_t> tokens) {
  py::list list(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), py::int_(tokens[i]).release().ptr());
  }
  return list;
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
      .def(
          "add",
          [](LiveRows& self, std::string_view name, std::size_t num_prompt_tokens, std::size_t most_tokens,
             std::vector<std::int32_t> stops, bool keeps_output, std::optional<RequestId> request,
             bool is_held) {
            self.add(name,
                     {num_prompt_tokens, most_tokens, std::move(stops), keeps_output, is_held, request});
          },
          py::arg("name"), py::arg("num_prompt_tokens"), py::arg("most_tokens"), py::arg("stops"),
          py::kw_only(), py::arg("keeps_output") = false, py::arg("request") = py::none(),
          py::arg("is_held") = false, Unlocked(),
          "Add or replace a row. Prompt and output together have at most `most_tokens` tokens; any\n"
          "of `stops` ends the output. keeps_output: for EndedRow.output. request: for enter().\n"
          "is_held: the output may turn out to have ended earlier. Its counts can't be taken before\n"
          "it is removed.")
      .def("enter", &LiveRows::enter, py::arg("name"), py::arg("request"), Unlocked(),
           "Connect a row with a request of the core, which then drafts for it.")
      .def("resume", &LiveRows::resume, py::arg("name"), py::arg("num_tokens"), Unlocked(),
           "Continue a row whose request the engine stopped and starts anew with so many tokens. A row\n"
           "with another number of tokens is lost.")
      .def("prefill", &LiveRows::prefill, py::arg("name"), Unlocked(),
           "The engine computes a row's prompt, or computes it again. A row that has output is lost.")
      .def("lose", &LiveRows::lose, py::arg("name"), Unlocked(),
           "Give a row up: it is counted, but nothing is learned or drafted for it.")
      .def("remove", &LiveRows::remove, py::arg("name"), Unlocked(),
           "Remove a row and return it; an empty one for an unknown name.")
      .def("take_counts", &LiveRows::take_counts, py::arg("name"), Unlocked(),
           "Return a row's counts since the last call, and reset them.");
}

void register_row_step(py::module_& module) {
  module.attr("RUN_ROW_STEP") = reinterpret_cast<std::uintptr_t>(&run_row_step);
  module.def(
      "check_tokens", [](const ArrayView<std::int32_t>& tokens) { check_tokens(span_of(tokens)); },
      py::arg("tokens").noconvert(), "Raise TokenError if an id is negative; tokens are int32 [tokens].");
  constexpr const char* kKnown = "Return the token ids of the vocabulary as int32 [tokens].";
  module.def("known_tokens", &known_in_list, py::arg("tokens"), py::arg("vocabulary_size"), kKnown);
  module.def("known_tokens", &known_in_array, py::arg("tokens").noconvert(), py::arg("vocabulary_size"),
             kKnown);
  py::class_<RowStep>(module, "RowStep", "A step of rows that one thread plans and another runs.")
      .def(py::init(&plan), py::arg("rows"), py::arg("names"), py::arg("verified"),
           py::arg("num_sampled").noconvert(), py::arg("sampled").noconvert(), py::arg("drafts").noconvert(),
           py::arg("chances").noconvert(), py::arg("min_prob"), py::arg("num_model") = 0,
           py::arg("least") = py::none(), py::arg("dictated") = py::none(), py::keep_alive<1, 2>(),
           py::keep_alive<1, 5>(), py::keep_alive<1, 6>(), py::keep_alive<1, 7>(), py::keep_alive<1, 8>(),
           "Plan a step. It reads num_sampled, int32 [rows], and sampled, int64 [rows, n], and writes\n"
           "drafts, int64 [rows, K], and chances, float32 [rows, K], when it runs. names[i]: name of\n"
           "row i. verified[name]: the slots that the step verifies.\n"
           "num_model: draft tokens that the engine's model offers. It drafts for the rows without a\n"
           "draft of the trees, and those whose draft is worth less than least, float32 [rows], in\n"
           "accepted tokens less their price. Their drafts begin with -1.\n"
           "dictated[name]: output from this step on as far as a grammar dictates it. If the sampled\n"
           "tokens begin it, the rest is drafted, unless the trees draft something likely.")
      .def("run", &RowStep::run, py::call_guard<py::gil_scoped_release>(), "Run it, once.")
      .def_property_readonly(
          "address", [](const RowStep& self) { return reinterpret_cast<std::uintptr_t>(&self); },
          "The argument of the C function at RUN_ROW_STEP, which runs the step without the GIL.")
      .def_property_readonly("is_done", &RowStep::is_done, "Whether it has run.")
      .def_property_readonly(
          "lengths",
          [](const RowStep& self) {
            py::list lengths;
            const auto& rows = made(self).rows;
            for (std::size_t i = 0; i < rows.size(); ++i)
              lengths.append(self.made().of(i).size() + rows[i].num_model);
            return lengths;
          },
          "Number of draft tokens of each row, without padding.")
      .def_property_readonly(
          "model_lengths",
          [](const RowStep& self) {
            py::list lengths;
            for (const auto& row : made(self).rows) lengths.append(row.num_model);
            return lengths;
          },
          "Number of tokens that the model is to draft for each row; 0 where the trees do.")
      .def_property_readonly(
          "model_results", &model_results_of,
          "For each row whose verified draft the model made: the row, its verified and its accepted\n"
          "tokens, and what the draft of the trees was worth.")
      .def_property_readonly(
          "acceptance", [](const RowStep& self) { return acceptance_of(self); },
          "The estimated chance that the draft tokens of a row up to each are all accepted, float32\n"
          "[rows, K]; 0 for padding and for dictated tokens.")
      .def_property_readonly(
          "sums",
          [](const RowStep& self) {
            const RowDrafts& drafts = made(self);
            return py::make_tuple(drafts.num_decoding, drafts.num_slots, drafts.num_new);
          },
          "Rows that were decoding, their verified slots, their new tokens.")
      .def(
          "sampled",
          [](const RowStep& self, std::size_t row) {
            check_row(self, row);
            return list_of(self.sampled(row));
          },
          py::arg("row"), "Return the tokens that the step sampled for a row.")
      .def(
          "draft",
          [](const RowStep& self, std::size_t row) {
            check_row(self, row);
            return list_of(self.made().of(row));
          },
          py::arg("row"), "Return the draft of a row, without padding.")
      .def(
          "gained",
          [](const RowStep& self, std::size_t row) {
            check_row(self, row);
            return py::make_tuple(self.made().rows[row].num_gained, self.made().rows[row].source);
          },
          py::arg("row"),
          "Return a row's new tokens up to the end of its output, and the source of its verified draft.")
      .def(
          "count_saving",
          [](RowStep& self, const StepSaving& saving) {
            made(self);
            self.count_saving(saving);
          },
          py::arg("saving"), "Count the time of the step for each row that was decoding.")
      .def_property_readonly("begin_s", &RowStep::begin_s, "When it began to run, on time.monotonic's clock.")
      .def_property_readonly("took_s", &RowStep::took_s, "How long it ran.")
      .def_property_readonly("error", &RowStep::error, "Why it made no drafts, if it failed; or empty.");
}

}  // namespace agentspec
