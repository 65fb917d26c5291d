// _native.StepCost, PlainStep, StepMeter: what decode steps cost, and what their drafts save.

#include <pybind11/stl.h>

#include <mutex>
#include <optional>
#include <utility>

#include "bindings/bindings.hpp"
#include "steps/step_cost.hpp"
#include "steps/step_meter.hpp"

namespace agentspec {
namespace {

/// An object and its lock: without the GIL, several Python threads may use it.
template <typename T>
struct Locked {
  template <typename... Args>
  explicit Locked(Args... args) : object(args...) {}

  T object;
  mutable std::mutex mutex;
};

/// The member function, which then runs under the object's lock.
template <typename T, typename Result, typename... Args>
auto locked(Result (T::*method)(Args...)) {
  return [method](Locked<T>& self, Args... args) {
    const std::lock_guard lock(self.mutex);
    return (self.object.*method)(args...);
  };
}
template <typename T, typename Result, typename... Args>
auto locked(Result (T::*method)(Args...) const) {
  return [method](const Locked<T>& self, Args... args) {
    const std::lock_guard lock(self.mutex);
    return (self.object.*method)(args...);
  };
}

void register_step_saving(py::module_& module) {
  py::class_<StepSaving>(
      module, "StepSaving",
      "One step as each of its decoding requests saw it, and its estimate without drafts. It took\n"
      "measured_s. A request that gained n tokens would have waited fixed_s + n * per_token_s.")
      .def(py::init<double, double, double>(), py::arg("measured_s"), py::arg("fixed_s"),
           py::arg("per_token_s"))
      .def_readonly("measured_s", &StepSaving::measured_s)
      .def_readonly("fixed_s", &StepSaving::fixed_s)
      .def_readonly("per_token_s", &StepSaving::per_token_s)
      .def("plain_s", &StepSaving::plain_s, py::arg("num_tokens"),
           "Return the estimated seconds without drafts for a request that gained num_tokens tokens.");
}

void register_step_cost(py::module_& module) {
  module.attr("FIRST_PRICE") = StepCost::kFirstPrice;
  module.attr("COST_WINDOW") = StepCost::kWindow;
  py::class_<Locked<StepCost>>(
      module, "StepCost",
      "The cost of a draft token, learned from the decode steps. O(1) per step; stores only the last\n"
      "step. Fitted by least squares over the changes between steps, fading over COST_WINDOW steps. With\n"
      "little evidence the price is drawn to FIRST_PRICE. The same steps give the same price.")
      .def(
          py::init<bool>(), py::arg("has_stair") = false,
          "has_stair: the first draft token of a step may cost more than the others. Otherwise the price is\n"
          "the mean of all.")
      .def_property_readonly("price", locked(&StepCost::price),
                             "The cost of one more draft token, in accepted tokens: between 0 and 1.")
      .def_property_readonly("stair", locked(&StepCost::stair),
                             "What the first draft token of a step costs beyond the price, in accepted\n"
                             "tokens: at least 0.")
      .def_property_readonly("token_s", locked(&StepCost::token_s),
                             "Seconds of an output token of late, without those of prompts; 0 before the\n"
                             "first step.")
      .def("drafts_s", locked(&StepCost::drafts_s), py::arg("num_drafted"),
           "Return the seconds that num_drafted draft tokens of a step take; None while the steps give too\n"
           "little evidence. TypeError: the number is negative or beyond 32 bits.")
      .def("observe", locked(&StepCost::observe), py::arg("seconds"), py::arg("num_requests"),
           py::arg("num_drafted"), py::arg("num_tokens"), py::arg("num_prompt_tokens") = 0,
           "Take one decode step of num_requests requests. It verified num_drafted draft tokens and added\n"
           "num_tokens tokens to the outputs, at least one per request. num_prompt_tokens were processed in\n"
           "the same pass. Steps without requests and implausible seconds are ignored. TypeError: a number\n"
           "is negative or beyond 32 bits.");
}

void register_plain_step(py::module_& module) {
  py::class_<Locked<PlainStep>>(
      module, "PlainStep",
      "The cost of a step without drafts, by the number of requests that decode in it. Steps without\n"
      "drafts are measured. Between two known sizes it is interpolated; beyond them it is unknown.")
      .def(py::init<bool>(), py::arg("estimates") = true,
           "estimates: if several requests decode, take the time of steps with drafts, less the cost of\n"
           "these, where no steps without drafts were measured.")
      .def("seconds", locked(&PlainStep::seconds), py::arg("num_requests"),
           "Return the seconds of a step without drafts and prompts; None if unknown.")
      .def("observe", locked(&PlainStep::observe), py::arg("seconds"), py::arg("drafting_s"),
           py::arg("num_requests"), py::arg("num_drafted"), py::arg("num_prompt_tokens"), py::arg("drafts_s"),
           "Take one decode step and return its saving by the costs known before; None if they do not\n"
           "suffice. seconds: from the end of the last step to the end of this one. drafting_s: the part of\n"
           "it spent on drafting, not on the model. num_requests decoded, num_drafted draft tokens were\n"
           "verified, num_prompt_tokens processed in the same pass. drafts_s: current cost of these draft\n"
           "tokens; None if unknown. TypeError: a number is negative or beyond 32 bits.");
}

void register_step_meter(py::module_& module) {
  py::class_<Locked<StepMeter>>(
      module, "StepMeter",
      "Measures the steps of one engine: the price of a draft token, and the time saved. Has no clock:\n"
      "times are seconds on any clock that never goes back.")
      .def(py::init<std::optional<double>>(), py::arg("price"),
           "price: the operator's; None = learn it from the steps.")
      .def_property_readonly("price", locked(&StepMeter::price),
                             "The present least chance of acceptance for a draft token.")
      .def_property_readonly("num_slots", locked(&StepMeter::num_slots),
                             "Slots that all steps verified, padding included.")
      .def("idle", locked(&StepMeter::idle), py::arg("now_s"),
           "Begin a step with no other before it: the time until now belongs to no request.")
      .def("observe", locked(&StepMeter::observe), py::arg("begin_s"), py::arg("end_s"),
           py::arg("num_scheduled"), py::arg("num_decoding"), py::arg("num_slots"), py::arg("num_new"),
           "Take a step. Return the time that its drafts saved; None if no steps without drafts tell.\n"
           "begin_s, end_s: when drafting for the next step began and ended; the forward pass is before it.\n"
           "num_scheduled: tokens that the step processed. num_decoding: rows that were decoding before it.\n"
           "num_slots: slots that it verified for them, padding included. num_new: their new tokens.\n"
           "TypeError: a number is negative or beyond 32 bits.");
}

}  // namespace

void register_steps(py::module_& module) {
  register_step_saving(module);
  register_step_cost(module);
  register_plain_step(module);
  register_step_meter(module);
}

}  // namespace agentspec
