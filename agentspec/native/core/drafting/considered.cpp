#include "core/drafting/considered.hpp"

namespace agentspec {

void learn_from(std::span<const Considered> considered, std::span<const std::int32_t> tokens,
                AcceptanceModel& model) {
  std::size_t begin = 0;
  for (const std::int32_t token : tokens) {
    if (begin == considered.size()) return;
    const std::uint32_t place = considered[begin].place;
    std::size_t next = 0;
    for (std::size_t i = begin; i < considered.size() && considered[i].place == place; ++i) {
      const bool is_right = considered[i].token == token;
      model.learn(considered[i].evidence, is_right);
      if (is_right) next = considered[i].next;
    }
    if (next == 0) return;
    begin = next;
  }
}

}  // namespace agentspec
