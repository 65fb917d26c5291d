#include "check.hpp"
#include "core/error.hpp"
#include "steps/row_step.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

using namespace agentspec;

namespace {

constexpr std::size_t kWidth = 4; // of a draft
const Tokens kText{10, 11, 12, 13, 14, 15};

// A core that has learned kText, a request in row 0 of two, and the memory of
// one step.
struct Device {
  Device() : core(16, 1 << 20), rows(core) {
    const GroupId group = core.create_group(1 << 20);
    index = core.create_index(group, 1 << 20);
    core.learn(std::span(&index, 1), kText);
    const SharedSource sources[] = {{index, 3}};
    core.start({.id = 0, .group = group, .prompt = Tokens{1}, .sources = sources,
                .options = {.max_tokens = 8, .min_prob = 0}});
    rows.add("r", {1, 1 << 20});
    rows.enter("r", 0);
  }

  std::unique_ptr<RowStep> plan(std::size_t num_slots, Tokens dictated = {}) {
    const StepBuffers buffers{num_sampled.data(), sampled.data(), kWidth + 1,
                              drafts.data(),      chances.data(), kWidth};
    return std::make_unique<RowStep>(
        rows,
        std::vector<RowStep::Row>{{"r", num_slots, 0, std::move(dictated)},
                                  {"other", 0}},
        buffers, 0);
  }

  ForestCore core;
  LiveRows rows;
  IndexId index = 0;
  std::array<std::int32_t, 2> num_sampled{1, 1};
  std::array<std::int64_t, 2 * (kWidth + 1)> sampled{10, -1, -1, -1, -1, 7};
  std::array<std::int64_t, 2 * kWidth> drafts{};
  std::array<float, 2 * kWidth> chances{};
};

void a_step_runs_later_in_another_thread() {
  Device device;
  const auto step = device.plan(0);
  CHECK(!step->is_done());
  std::thread stream([&] { run_row_step(step.get()); });
  stream.join();
  CHECK(step->is_done() && step->error().empty());
  CHECK((device.drafts ==
         std::array<std::int64_t, 8>{11, 12, 13, 14, 7, 7, 7, 7}));
  CHECK(device.chances[0] > 0.5F && device.chances[4] == 0);
  CHECK(step->made().rows[0].size == 4 && step->made().rows[1].size == 0);
  CHECK(step->sampled(0).size() == 1 && step->num_rows() == 2);
}

void a_step_that_fails_pads_and_loses_its_rows() {
  for (const std::int32_t num_sampled : {6, 1}) {
    Device device;
    device.num_sampled[0] = num_sampled;
    device.sampled[0] = num_sampled == 1 ? -3 : 10;
    const auto step = device.plan(0);
    step->run();
    CHECK(step->is_done() && !step->error().empty());
    CHECK(step->made().of(0).empty() && device.chances[0] == 0);
    device.num_sampled[0] = 1;
    device.sampled[0] = 11;
    const auto next = device.plan(0);
    next->run();
    CHECK(next->error().empty() && next->made().of(0).empty());
    CHECK(device.rows.take_counts("r").num_output_tokens == 1);
  }
  Device device;
  CHECK_THROWS(RowStep(device.rows, {}, {}, 0), ConfigError);
}

// One thread plans while the stream runs the steps before, and requests come
// and go.
void steps_are_planned_while_others_run() {
  Device device;
  std::deque<std::unique_ptr<RowStep>> steps;
  for (int i = 0; i < 200; ++i) {
    steps.push_back(device.plan(kWidth));
    RowStep *step = steps.back().get();
    std::thread stream([step] { step->run(); });
    device.rows.add("other", {0, 9});
    device.rows.remove("other");
    device.rows.count_row_saving("r", 1, {1, 1, 1});
    stream.join();
    CHECK(step->is_done() && step->error().empty());
    step->count_saving({1, 0.5, 0});
  }
  CHECK(device.rows.take_counts("r").num_output_tokens == 200);
  device.core.check_integrity();
}

} // namespace

int main() {
  a_step_runs_later_in_another_thread();
  a_step_that_fails_pads_and_loses_its_rows();
  steps_are_planned_while_others_run();
}
