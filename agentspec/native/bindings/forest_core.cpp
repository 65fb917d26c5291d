// _native.ForestCore: the batch layer, as agentspec.Forest calls it.

#include "core/forest/forest_core.hpp"

#include <pybind11/stl.h>

#include <string_view>

#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

using Tokens = ArrayView<std::int32_t>;
using Ids = ArrayView<std::uint64_t>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

Origin origin_of(std::size_t number) {
  if (number >= kNumOrigins) throw py::value_error("there is no origin " + std::to_string(number));
  return static_cast<Origin>(number);
}

void start(ForestCore& self, RequestId request, GroupId group, const Tokens& prompt, const Tokens& prediction,
           const std::vector<std::pair<IndexId, SourceId>>& trees, const DraftOptions& options, bool learn,
           bool in_background, std::optional<ModelId> model, bool is_private) {
  std::vector<SharedSource> sources;
  sources.reserve(trees.size());
  for (const auto& [index, source] : trees) sources.push_back({index, source});
  const NewRequest made{.id = request,
                        .group = group,
                        .prompt = span_of(prompt),
                        .prediction = span_of(prediction),
                        .sources = sources,
                        .options = options,
                        .model = model,
                        .learn = learn,
                        .in_background = in_background,
                        .is_private = is_private};
  const py::gil_scoped_release unlocked;
  self.start(made);
}

void def_requests(ForestCoreClass& cls) {
  cls.def("start", &start, py::arg("request"), py::arg("group"), py::arg("prompt").noconvert(),
          py::arg("prediction").noconvert(), py::arg("trees"), py::arg("options"), py::kw_only(),
          py::arg("learn") = true, py::arg("in_background") = false, py::arg("model") = py::none(),
          py::arg("is_private") = false,
          "Admit a request and index its prompt without holding the lock: O(prompt * chain). trees:\n"
          "(index, source) of each shared index. With in_background the call only copies the prompt;\n"
          "until the index is ready, only the shared indices draft. The model learns nothing from a\n"
          "request that is_private.");
  cls.def("wait", &ForestCore::wait, py::arg("request"), Unlocked(),
          "Return once the request's own index is ready or dropped, or the request is finished.");
  cls.def("start_threads", &ForestCore::start_threads, Unlocked(),
          "Start all threads now, on the calling thread's cores.");
  cls.def("settle", &ForestCore::settle, Unlocked(), "Return once all deferred updates are applied.");
  cls.def(
      "observe",
      [](ForestCore& self, RequestId request, const Tokens& tokens) {
        const auto view = span_of(tokens);
        const std::int64_t offsets[] = {0, static_cast<std::int64_t>(view.size())};
        const py::gil_scoped_release unlocked;
        self.observe({{&request, 1}, view, offsets});
      },
      py::arg("request"), py::arg("tokens").noconvert(),
      "Ingest new output of a request without drafting. O(new tokens * sources * chain).");
  cls.def("finish", &ForestCore::finish, py::arg("request"), py::arg("keep"), Unlocked(),
          "Finish a live request; its output stays in the shared indices or is removed from them.\n"
          "O(sources), or the cost of appending the output.");
}

std::span<const std::byte> bytes_of(const py::bytes& bytes) {
  return std::as_bytes(std::span(std::string_view(bytes)));
}

// The saved and restored parts of a forest; outputs are restored by learn().
void def_saved(ForestCoreClass& cls) {
  cls.def(
      "read_outputs",
      [](ForestCore& self, IndexId index, bool is_begin) {
        Outputs outputs;
        {
          const py::gil_scoped_release unlocked;
          outputs = self.read_outputs(index, is_begin);
        }
        return py::make_tuple(array_of(std::move(outputs.tokens)), array_of(std::move(outputs.sizes)),
                              array_of(std::move(outputs.uses)));
      },
      py::arg("index"), py::arg("is_begin"),
      "Return the next unread outputs of an index, oldest first, about 16,384 tokens at a time; none\n"
      "at the end. Returns (tokens, sizes, uses), tokens concatenated. Outputs that stay meanwhile\n"
      "are read once. O(tokens).");
  cls.def(
      "model_state",
      [](ForestCore& self, ModelId model) {
        std::vector<std::byte> state;
        {
          const py::gil_scoped_release unlocked;
          state = self.model_state(model);
        }
        return py::bytes(reinterpret_cast<const char*>(state.data()), state.size());
      },
      py::arg("model"), "Return the state of a model. O(its size).");
  cls.def(
      "restore_model",
      [](ForestCore& self, GroupId group, const py::bytes& state) {
        const std::span<const std::byte> bytes = bytes_of(state);
        const py::gil_scoped_release unlocked;
        return self.restore_model(group, bytes);
      },
      py::arg("group"), py::arg("state"),
      "Create a model with a state returned by model_state(). Raises ConfigError for any other value.\n"
      "O(its size).");
  cls.def_static(
      "untrained_model_state",
      [] {
        const AcceptanceModel untrained = AcceptanceModel::without_prior();
        const auto state = untrained.state();
        return py::bytes(reinterpret_cast<const char*>(state.data()), state.size());
      },
      "Return the state of a model that starts without the shipped prior.");
  cls.def_static(
      "check_model_state", [](const py::bytes& state) { AcceptanceModel(bytes_of(state)); }, py::arg("state"),
      "ConfigError if it can't be what model_state() returns. O(its size).");
}

}  // namespace

void register_forest_core(py::module_& module) {
  py::class_<DraftOptions>(module, "DraftOptions",
                           "Drafting options of one request; max_tokens = 0: no drafts.")
      .def(py::init(&make_draft_options), py::arg("is_tree"), py::arg("max_tokens"), py::arg("alpha"),
           py::arg("min_match"), py::arg("min_prob"), py::arg("doubt") = 0.0);
  module.attr("MODEL_BYTES") = sizeof(Model);
  ForestCoreClass cls(module, "ForestCore",
                      "Live requests and shared indices by integer ids. Safe from several threads.",
                      py::release_gil_before_calling_cpp_dtor());  // it joins threads
  cls.def(py::init<std::uint32_t, std::size_t, std::size_t>(), py::arg("depth"), py::arg("limit_bytes"),
          py::arg("threads") = 1);
  cls.def("create_group", &ForestCore::create_group, py::arg("limit_bytes"), Unlocked(),
          "Create a group of indices with a common byte budget. O(1).");
  cls.def("create_index", &ForestCore::create_index, py::arg("group"), py::arg("limit_bytes"),
          py::arg("weight") = 1, Unlocked(),
          "Create an empty shared index. Eviction counts `weight` times its size. O(1).");
  cls.def("drop_index", &ForestCore::drop_index, py::arg("index"), Unlocked(),
          "Drop an index; live requests continue without it. O(states).");
  cls.def("create_model", &ForestCore::create_model, py::arg("group"), Unlocked(),
          "Create a model of draft acceptance that requests share. It starts from the shipped prior. O(its "
          "size).");
  cls.def("drop_model", &ForestCore::drop_model, py::arg("model"), Unlocked(),
          "Drop a model; live requests keep it.");
  cls.def(
      "learn",
      [](ForestCore& self, const Ids& indices, const Tokens& tokens, std::uint32_t uses, std::size_t origin,
         bool is_awaited) {
        const auto index_view = span_of(indices);
        const auto token_view = span_of(tokens);
        const Origin written = origin_of(origin);
        const py::gil_scoped_release unlocked;
        self.learn(index_view, token_view, {uses, written}, is_awaited);
      },
      py::arg("indices").noconvert(), py::arg("tokens").noconvert(), py::arg("uses") = 1,
      py::arg("origin") = 0, py::arg("is_awaited") = false,
      "Add a finished sequence, which counts as `uses` equal ones (65535 at most), to each index. origin: a\n"
      "value of agentspec.draft.Origin. Without is_awaited, other threads go first.\n"
      "O(indices * tokens * chain).");
  cls.def(
      "forget",
      [](ForestCore& self, const Ids& indices, const Tokens& tokens) {
        const auto index_view = span_of(indices);
        const auto token_view = span_of(tokens);
        const py::gil_scoped_release unlocked;
        self.forget(index_view, token_view);
      },
      py::arg("indices").noconvert(), py::arg("tokens").noconvert(),
      "Remove the outputs of exactly these tokens from each index, in pieces. Live requests keep theirs.\n"
      "O(indices * tokens * chain).");
  def_saved(cls);
  def_requests(cls);
  register_named_batch(cls);
  cls.def("index_bytes", &ForestCore::index_bytes, py::arg("index"), Unlocked(), "Bytes of one index. O(1).");
  cls.def("group_bytes", &ForestCore::group_bytes, py::arg("group"), Unlocked(),
          "Bytes of a group, its live requests included. O(1).");
  cls.def("memory_bytes", &ForestCore::memory_bytes, Unlocked(), "Bytes of everything. O(1).");
  cls.def("index_size", &ForestCore::index_size, py::arg("index"), Unlocked(),
          "(sequences, tokens) of an index. O(1).");
  cls.def("num_requests", &ForestCore::num_requests, Unlocked(), "Live requests. O(1).");
  cls.def("check_integrity", &ForestCore::check_integrity, Unlocked(),
          "Recount every index; AssertionError if an invariant is broken.");
}

}  // namespace agentspec
