#include "core/drafting/scored_token.hpp"

namespace agentspec {

std::size_t learn_from(std::span<const ScoredToken> scored, std::span<const std::int32_t> tokens,
                       AcceptanceModel& model) {
  std::size_t num_learned = 0;
  std::size_t begin = 0;
  for (const std::int32_t token : tokens) {
    if (begin == scored.size()) break;
    const std::uint32_t place = scored[begin].place;
    std::size_t next = 0;
    for (std::size_t i = begin; i < scored.size() && scored[i].place == place; ++i) {
      const bool is_right = scored[i].token == token;
      model.learn(scored[i].evidence, is_right);
      ++num_learned;
      if (is_right) next = scored[i].next;
    }
    if (next == 0) break;
    begin = next;
  }
  return num_learned;
}

}  // namespace agentspec
