// agentspec.Draft objects, made without a line of Python per request.
#pragma once

#include <vector>

#include "bindings/bindings.hpp"

namespace agentspec {

/// Never changes, so it needs no lock.
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

}  // namespace agentspec
