// _native.LiveRows: a step of an engine with a matrix of rows, without Python code per row.

#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "core/forest/live_row.hpp"

namespace agentspec {
namespace {

using Texts = ArrayView<std::int32_t>;

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

struct Hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

/// A step's sampled tokens of each row, in the engine's layout.
struct Sampled {
  const py::list& names;
  const py::list& tokens;
  const ArrayView<std::int32_t>& ends;
  const Texts& texts;
  const py::dict& verified;

  void check() const {
    const auto num_rows = static_cast<py::ssize_t>(tokens.size());
    if (texts.ndim() != 2 || ends.ndim() != 1)
      throw py::value_error("the rows are a matrix and their ends an array");
    if (!is_aligned(texts) || !is_aligned(ends))
      throw py::value_error("expected arrays that are aligned in memory");
    if (static_cast<py::ssize_t>(names.size()) < num_rows || ends.size() < num_rows ||
        texts.shape(0) < num_rows)
      throw py::value_error("there are " + std::to_string(num_rows) + " rows, but not so many names or ends");
  }
  /// The row so far.
  std::span<const std::int32_t> text(std::size_t row, std::size_t num_sampled) const {
    const auto place = static_cast<py::ssize_t>(row);
    const std::int32_t end = ends.data()[row];
    if (end > texts.shape(1) || end < static_cast<std::int64_t>(num_sampled))
      throw py::value_error("row " + std::to_string(row) + " can't end at " + std::to_string(end));
    return {texts.data(place, 0), static_cast<std::size_t>(end)};
  }
  std::size_t num_verified(py::handle name) const {
    if (verified.empty()) return 0;
    PyObject* found = PyDict_GetItemWithError(verified.ptr(), name.ptr());
    if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
    return found == nullptr ? 0 : size_of(found);
  }
};

/// Sums over the rows of a step, from which the cost of a step is learned.
struct Sums {
  std::size_t num_decoding = 0;
  std::size_t num_verified = 0;
  std::size_t num_new = 0;
};

/// Has its own lock. A thread waits for it without the GIL, so that the owner of the lock can get the GIL.
class LiveRows {
 public:
  explicit LiveRows(py::object core) : owner_(std::move(core)), core_(owner_.cast<ForestCore&>()) {}

  void add(const std::string& name, std::size_t num_prompt_tokens, std::size_t most_tokens,
           std::vector<std::int32_t> stops) {
    const std::lock_guard lock(mutex_);
    rows_.insert_or_assign(name, LiveRow(num_prompt_tokens, most_tokens, std::move(stops)));
  }

  void enter(const std::string& name, RequestId request) {
    const std::lock_guard lock(mutex_);
    if (const auto found = rows_.find(name); found != rows_.end()) found->second.enter(request);
  }

  RowCounts remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    parts_.clear();  // they point to rows
    const auto found = rows_.find(name);
    if (found == rows_.end()) return {};
    const RowCounts counts = found->second.take_counts();
    rows_.erase(found);
    return counts;
  }

  RowCounts take_counts(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = rows_.find(name);
    return found == rows_.end() ? RowCounts{} : found->second.take_counts();
  }

  void count_saving(double measured_s, double fixed_s, double per_token_s) {
    const std::lock_guard lock(mutex_);
    for (const Part& part : parts_) {
      if (part.was_decoding && part.gain.num_new > 0)
        part.row->count_saving(part.gain.num_new, measured_s, fixed_s, per_token_s);
    }
  }

  py::tuple step(const py::list& names, const py::list& sampled, const ArrayView<std::int32_t>& ends,
                 const Texts& texts, const py::dict& verified, std::uint32_t max_tokens, double min_prob,
                 double now_s) {
    if (!core_.is_usable())
      throw ForkedError(
          "these rows are the parent process's: make some after the fork, of a forest made there");
    const Sampled rows{names, sampled, ends, texts, verified};
    rows.check();
    core_.expect(sampled.size());
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
      const py::gil_scoped_release unlocked;
      lock.lock();
    }
    gather(rows);
    const BatchDrafts drafts = draft(max_tokens, min_prob);
    double score = 0;
    for (const double one : drafts.scores) score += one;
    const Sums sums = sum();
    return py::make_tuple(take(sampled.size(), drafts, now_s), score, sums.num_decoding, sums.num_verified,
                          sums.num_new);
  }

 private:
  struct Part {  // a row that takes part in a step
    std::size_t place;
    LiveRow* row;
    LiveRow::Gain gain;
    std::size_t num_verified;
    bool was_decoding;  // before this step
  };

  // Changes only the state of the current step.
  void gather(const Sampled& rows) {
    parts_.clear();
    requests_.clear();
    tokens_.clear();
    offsets_.assign(1, 0);
    for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
      const std::size_t num_sampled = size_of(PyList_GET_ITEM(rows.tokens.ptr(), static_cast<Py_ssize_t>(i)));
      if (num_sampled == 0) continue;  // its prompt is not fully read
      const py::handle name = PyList_GET_ITEM(rows.names.ptr(), static_cast<Py_ssize_t>(i));
      const auto found = rows_.find(view_of(name));
      if (found == rows_.end()) continue;
      LiveRow& row = found->second;
      parts_.push_back({i, &row, row.gain(rows.text(i, num_sampled), num_sampled), rows.num_verified(name),
                        row.has_output()});
      if (!row.request()) continue;
      const auto& gained = parts_.back().gain.tokens;
      requests_.push_back(*row.request());
      tokens_.insert(tokens_.end(), gained.begin(), gained.end());
      offsets_.push_back(static_cast<std::int64_t>(tokens_.size()));
    }
  }

  // Drops rows from drafting if memory ran out while the core took their output.
  BatchDrafts draft(std::uint32_t max_tokens, double min_prob) {
    const py::gil_scoped_release unlocked;
    try {
      return core_.step({requests_, tokens_, offsets_}, max_tokens, min_prob, true);
    } catch (const std::bad_alloc&) {
      parts_.clear();
      std::erase_if(rows_, [this](const auto& row) {
        return row.second.request() && std::ranges::count(requests_, *row.second.request()) > 0;
      });
      throw;
    }
  }

  Sums sum() const {
    Sums sums;
    for (const Part& part : parts_) {
      if (!part.was_decoding) continue;
      ++sums.num_decoding;
      sums.num_verified += part.num_verified;
      sums.num_new += part.gain.num_new;
    }
    return sums;
  }

  // Returns one list per row: the tokens that the next step verifies.
  py::list take(std::size_t num_rows, const BatchDrafts& drafts, double now_s) {
    py::list made(num_rows);
    for (std::size_t i = 0; i < num_rows; ++i) {
      PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), py::list().release().ptr());
    }
    std::size_t number = 0;  // of the draft
    for (const Part& part : parts_) {
      if (!part.row->request()) {
        part.row->take(part.gain, part.num_verified, 0, kNoSource, now_s);
        continue;
      }
      const auto begin = static_cast<std::size_t>(drafts.offsets[number]);
      const auto size = static_cast<std::size_t>(drafts.offsets[number + 1]) - begin;
      py::list tokens(std::min(size, part.gain.room));
      for (std::size_t j = 0; j < tokens.size(); ++j) tokens[j] = py::int_(drafts.token_ids[begin + j]);
      part.row->take(part.gain, part.num_verified, tokens.size(), drafts.sources[number], now_s);
      made[part.place] = std::move(tokens);
      ++number;
    }
    return made;
  }

  py::object owner_;
  ForestCore& core_;
  std::mutex mutex_;  // guards everything below
  std::unordered_map<std::string, LiveRow, Hash, std::equal_to<>> rows_;
  std::vector<Part> parts_;  // of the current step
  std::vector<RequestId> requests_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace

void register_live_rows(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<RowCounts>(module, "RowCounts", "Sums over a request's steps; by source, the index is a Source.")
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
      .def(py::init<py::object>(), py::arg("core"))
      .def("add", &LiveRows::add, py::arg("name"), py::arg("num_prompt_tokens"), py::arg("most_tokens"),
           py::arg("stops"), Unlocked(),
           "From now on count the row named so: prompt and output `most_tokens` at most, any of the stops "
           "ends\n"
           "it.")
      .def("enter", &LiveRows::enter, py::arg("name"), py::arg("request"), Unlocked(),
           "The row is this request of the core: draft for it.")
      .def("remove", &LiveRows::remove, py::arg("name"), Unlocked(),
           "Forget a row, if there is one; returns what was counted since it was asked for.")
      .def("take_counts", &LiveRows::take_counts, py::arg("name"), Unlocked(),
           "What was counted for a row since it was asked for.")
      .def("count_saving", &LiveRows::count_saving, py::arg("measured_s"), py::arg("fixed_s"),
           py::arg("per_token_s"), Unlocked(),
           "Count for each row that decoded in the last step: it took measured_s; without drafts n tokens "
           "would\n"
           "have taken fixed_s + n * per_token_s.")
      .def("step", &LiveRows::step, py::arg("names"), py::arg("sampled"), py::arg("ends").noconvert(),
           py::arg("texts").noconvert(), py::arg("verified"), py::arg("max_tokens"), py::arg("min_prob"),
           py::arg("now_s"),
           "Take what a step gave each row, and draft for the next; what is shared learns beside what "
           "follows.\n"
           "names[i], sampled[i]: of row i, nothing sampled: it is left alone; so are rows that were not "
           "added.\n"
           "ends[i]: tokens in texts[i], those sampled included. verified[name]: the draft that was "
           "verified.\n"
           "Returns (a list of tokens per row, sum of the drafts' scores, rows that were decoding, draft "
           "tokens\n"
           "they verified, tokens they got).");
}

}  // namespace agentspec
