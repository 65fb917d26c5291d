// _native.SuffixIndex: one index with a lock, for tests, benchmarks and tools.

#include "core/index/suffix_index.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

using Tokens = ArrayView<std::int32_t>;

class LockedIndex {
 public:
  LockedIndex(std::uint32_t depth, std::size_t limit_bytes) : index_(depth, limit_bytes) {}

  /// Runs a call on the index without the GIL and under the lock.
  template <typename Call>
  auto run(Call call) {
    const py::gil_scoped_release unlocked;
    const std::lock_guard lock(mutex_);
    return call(index_);
  }
  template <typename Call>
  auto run(Call call) const {
    const py::gil_scoped_release unlocked;
    const std::lock_guard lock(mutex_);
    return call(index_);
  }

 private:
  SuffixIndex index_;
  mutable std::mutex mutex_;
};

bool append(SuffixIndex& index, SequenceId id, std::span<const std::int32_t> tokens) {
  bool is_learned = index.append(id, {});
  while (is_learned && !tokens.empty()) {
    const auto piece = tokens.first(std::min(SuffixIndex::kPieceTokens, tokens.size()));
    index.append(id, piece);
    index.enforce_incrementally(piece.size());
    is_learned = index.is_learned(id);
    tokens = tokens.subspan(piece.size());
  }
  return is_learned;
}

void remove(SuffixIndex& index, SequenceId id) {
  while (!index.remove_piece(id)) index.enforce_incrementally(SuffixIndex::kPieceTokens);
  index.enforce_incrementally(SuffixIndex::kPieceTokens);
}

std::size_t evict(SuffixIndex& index, std::size_t num_tokens) {
  std::size_t num_evicted = 0;
  while (num_evicted < num_tokens && index.num_tokens() > 0) {
    const std::size_t piece = index.evict(1);
    index.enforce_incrementally(piece);
    num_evicted += piece;
  }
  return num_evicted;
}

py::tuple draft(const LockedIndex& self, const Tokens& context, bool is_tree, std::int64_t max_tokens,
                double alpha, std::int64_t min_match, double min_prob, double doubt) {
  const DraftOptions options = make_draft_options(is_tree, max_tokens, alpha, min_match, min_prob, doubt);
  const std::span<const std::int32_t> tokens = span_of(context);
  check_tokens(tokens);
  DraftTokens best;
  self.run([&](const SuffixIndex& index) {
    if (options.max_tokens > 0) Drafter().improve(index.automaton(), index.match(tokens), options, best);
  });
  return py::make_tuple(array_of(std::move(best.token_ids)), array_of(std::move(best.parents)),
                        array_of(std::move(best.probs)), best.score, best.match_length);
}

void def_sequences(py::class_<LockedIndex>& cls) {
  cls.def(
      "open_sequence",
      [](LockedIndex& self, std::uint32_t uses) {
        SuffixIndex::check_uses(uses);
        return self.run([uses](SuffixIndex& index) { return index.open(uses); });
      },
      py::arg("uses") = 1,
      "Open an empty live sequence that counts as `uses` equal ones (at most 65535). Returns its id.\n"
      "O(1) amortized.");
  cls.def(
      "append",
      [](LockedIndex& self, SequenceId id, const Tokens& tokens) {
        const auto view = span_of(tokens);
        check_tokens(view);
        return self.run([&](SuffixIndex& index) { return append(index, id, view); });
      },
      py::arg("sequence"), py::arg("tokens").noconvert(),
      "Append to a live sequence; False if the byte budget made the index stop learning it. Touches the "
      "states\n"
      "on the suffix-link chain per token: about five on real text, at most `depth`.");
  cls.def(
      "close_sequence",
      [](LockedIndex& self, SequenceId id) {
        self.run([&](SuffixIndex& index) {
          index.close(id);
          index.enforce_incrementally(SuffixIndex::kPieceTokens);
        });
      },
      py::arg("sequence"), "Finish a live sequence; it stays until it is evicted. O(tokens).");
  cls.def(
      "remove_sequence",
      [](LockedIndex& self, SequenceId id) { self.run([&](SuffixIndex& index) { remove(index, id); }); },
      py::arg("sequence"), "Remove a whole live sequence. Costs as much as appending it.");
  cls.def(
      "evict",
      [](LockedIndex& self, std::size_t num_tokens) {
        return self.run([&](SuffixIndex& index) { return evict(index, num_tokens); });
      },
      py::arg("num_tokens"),
      "Evict at least num_tokens tokens, the last ones of the oldest finished sequence first. Returns\n"
      "their number. Costs as much as appending them.");
}

void def_figures(py::class_<LockedIndex>& cls) {
  cls.def(
      "count",
      [](const LockedIndex& self, const Tokens& tokens) {
        const auto view = span_of(tokens);
        check_tokens(view);
        return self.run([&](const SuffixIndex& index) { return index.count(view); });
      },
      py::arg("tokens").noconvert(), "Occurrences of a string of at most `depth` tokens. O(length).");
  cls.def_property_readonly(
      "num_tokens",
      [](const LockedIndex& self) {
        return self.run([](const SuffixIndex& index) { return index.num_tokens(); });
      },
      "Tokens of all sequences. O(1).");
  cls.def_property_readonly(
      "num_sequences",
      [](const LockedIndex& self) {
        return self.run([](const SuffixIndex& index) { return index.num_sequences(); });
      },
      "Live and finished sequences. O(1).");
  cls.def_property_readonly(
      "num_states",
      [](const LockedIndex& self) {
        return self.run([](const SuffixIndex& index) { return index.automaton().num_states(); });
      },
      "States of the automaton. O(1).");
  cls.def_property_readonly(
      "memory_bytes",
      [](const LockedIndex& self) {
        return self.run([](const SuffixIndex& index) { return index.memory_bytes(); });
      },
      "Bytes allocated. O(1).");
  cls.def_property_readonly(
      "used_bytes",
      [](const LockedIndex& self) {
        return self.run([](const SuffixIndex& index) { return index.used_bytes(); });
      },
      "Bytes in use; the rest of memory_bytes is free for reuse. O(1).");
  cls.def(
      "enforce",
      [](LockedIndex& self, std::size_t limit) {
        self.run([&](SuffixIndex& index) { index.enforce(limit); });
      },
      py::arg("limit_bytes"),
      "Evict, oldest finished sequence first, until the index takes at most limit_bytes.");
  cls.def(
      "check_integrity",
      [](const LockedIndex& self) { self.run([](const SuffixIndex& index) { index.check_integrity(); }); },
      "Recount everything; AssertionError if an invariant is broken. O(tokens * chain).");
}

}  // namespace

DraftOptions make_draft_options(bool is_tree, std::int64_t max_tokens, double alpha, std::int64_t min_match,
                                double min_prob, double doubt) {
  constexpr std::int64_t kMost = 1 << 20;
  const auto check = [](bool is_right, const char* rule, double value) {
    if (!is_right) throw ConfigError(std::string(rule) + ", not " + std::to_string(value));
  };
  check(max_tokens >= 0 && max_tokens <= kMost, "max_tokens must be between 0 and 1048576",
        static_cast<double>(max_tokens));
  check(std::isfinite(alpha) && alpha > 0, "alpha must be positive and finite", alpha);
  check(min_match >= 1 && min_match <= kMost, "min_match must be between 1 and 1048576",
        static_cast<double>(min_match));
  check(min_prob >= 0 && min_prob <= 1, "min_prob must be between 0 and 1", min_prob);
  check(std::isfinite(doubt) && doubt >= 0, "doubt must be finite and not negative", doubt);
  return {is_tree,  static_cast<std::uint32_t>(max_tokens),
          alpha,    static_cast<std::uint32_t>(min_match),
          min_prob, doubt};
}

void register_suffix_index(py::module_& module) {
  py::class_<LockedIndex> cls(
      module, "SuffixIndex",
      "A suffix index over int32 sequences; every method is safe from several threads.",
      py::release_gil_before_calling_cpp_dtor());
  cls.def(py::init<std::uint32_t, std::size_t>(), py::arg("depth"),
          py::arg("limit_bytes") = SuffixIndex::kUnlimited);
  def_sequences(cls);
  def_figures(cls);
  const auto def_draft = [&cls](const char* name, bool is_tree, const char* doc) {
    cls.def(
        name,
        [is_tree](const LockedIndex& self, const Tokens& context, std::int64_t max_tokens, double alpha,
                  std::int64_t min_match, double min_prob, double doubt) {
          return draft(self, context, is_tree, max_tokens, alpha, min_match, min_prob, doubt);
        },
        py::arg("context").noconvert(), py::arg("max_tokens") = 32, py::arg("alpha") = 4.0,
        py::arg("min_match") = 1, py::arg("min_prob") = 0.1, py::arg("doubt") = 0.0, doc);
  };
  def_draft("draft_chain", false,
            "Algorithm 1 as a chain: (token_ids, parents, probs, score, match_length).\n"
            "O(depth + match lengths * max_tokens).");
  def_draft("draft_tree", true,
            "Algorithm 1 as a tree: (token_ids, parents, probs, score, match_length).\n"
            "O(depth + match lengths * max_tokens * children).");
}

}  // namespace agentspec
