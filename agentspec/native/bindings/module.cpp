#include "bindings/bindings.hpp"

PYBIND11_MODULE(_native, module) {
  module.doc() = "AgentSpec's native core: suffix indices over int32 tokens, and drafts from them.";
  agentspec::register_errors(module);
  agentspec::register_suffix_index(module);
  agentspec::register_forest_core(module);
}
