#include "bindings/bindings.hpp"

// Needs no GIL: the bindings have no state, and every class has its own lock or never changes.
PYBIND11_MODULE(_native, module, pybind11::mod_gil_not_used()) {
  module.doc() =
      "AgentSpec's native core: suffix indices over int32 tokens, drafts from them, and what steps cost.";
  agentspec::register_cpu_features(module);
  agentspec::register_errors(module);
  agentspec::register_suffix_index(module);
  agentspec::register_draft_maker(module);
  agentspec::register_forest_core(module);
  agentspec::register_steps(module);
  agentspec::register_live_rows(module);
  agentspec::register_row_step(module);
}
