#include "check.hpp"
#include "steps/step_meter.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <random>

using namespace agentspec;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();

bool is_near(double value, double expected, double share) {
  return std::abs(value - expected) <= share * std::abs(expected);
}

// 2 ms a step, 1 ms a request, 0.1 ms a draft token. Each of 8 requests gains
// 4 tokens. One step in 16 has no drafts: it tells the time without them.
void the_cost_of_a_draft_token_gives_price_and_saving() {
  StepMeter meter(std::nullopt);
  CHECK(meter.price() == StepCost::kFirstPrice);
  std::mt19937 random(1);
  double now_s = 100;
  meter.idle(now_s);
  std::optional<StepSaving> saving;
  double mean_s = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool has_drafts = i % 16 != 0;
    const std::uint32_t num_drafted = has_drafts ? 8 + random() % 100 : 0;
    const double step_s = 0.002 + 8 * 0.001 + num_drafted * 0.0001;
    now_s += step_s;
    mean_s += step_s / 1000;
    saving = meter.observe(now_s, now_s + 0.0005, 8 + num_drafted, 8,
                           num_drafted, has_drafts ? 32 : 8);
    now_s += 0.0005;
    if (i < 900 || !has_drafts)
      continue;
    CHECK(saving && is_near(saving->measured_s, step_s + 0.0005, 1e-6));
    CHECK(is_near(saving->plain_s(4), 4 * 0.010, 0.1));
  }
  CHECK(is_near(meter.price(), 0.0001 * 32 / mean_s, 0.1));
  CHECK(StepMeter(0.7).price() == 0.7);
}

void a_size_between_two_known_ones_is_interpolated() {
  PlainStep plain;
  const auto run = [&plain](std::uint32_t num_requests, double step_s) {
    for (int i = 0; i < 4; ++i)
      plain.observe(step_s, 0, num_requests, 0, 0, std::nullopt);
  };
  CHECK(!plain.seconds(1) && !plain.seconds(kMost));
  run(2, 2);
  CHECK(plain.seconds(2) == 2.0 && !plain.seconds(1) && !plain.seconds(3));
  run(6, 4);
  run(16, 9);
  CHECK(plain.seconds(4) == 3.0 && plain.seconds(17) == 9.0);
  CHECK(!plain.seconds(20) && !plain.seconds(0));
  for (int i = 0; i < 2000; ++i)
    plain.observe(5, 0, 6, 0, 0, std::nullopt);
  CHECK(is_near(plain.seconds(6).value(), 5, 1e-12));
  CHECK(!plain.seconds(2) && !plain.seconds(4)); // not seen for too long
}

// No input breaks anything: what can't be a step is ignored.
void any_step_leaves_a_price_between_0_and_1() {
  constexpr std::array kSeconds{0.0,    -1.0,  5e-324, 1e-9,      1e-8,
                                0.001,  0.002, 1.0,    3600.0,    1e300,
                                -1e300, 5.0,   0.003,  kInfinity, -kInfinity,
                                std::numeric_limits<double>::quiet_NaN()};
  constexpr std::array<std::uint32_t, 8> kCounts{0, 1,  2,         7,
                                                 8, 33, kMost / 3, kMost};
  std::mt19937 random(2);
  const auto seconds = [&] { return kSeconds[random() % kSeconds.size()]; };
  const auto count = [&] { return kCounts[random() % kCounts.size()]; };
  for (int run = 0; run < 200; ++run) {
    StepMeter meter(std::nullopt);
    StepCost cost(run % 2 == 0);
    PlainStep plain;
    for (int i = 0; i < 200; ++i) {
      cost.observe(seconds(), count(), count(), count(), count());
      CHECK(cost.price() >= 0 && cost.price() <= 1);
      CHECK(cost.stair() >= 0 && cost.stair() < kInfinity);
      const auto num_drafted = count();
      const auto drafts_s = cost.drafts_s(num_drafted);
      if (drafts_s)
        CHECK(*drafts_s >= 0 && *drafts_s < kInfinity);
      const auto saving = plain.observe(seconds(), seconds(), count(),
                                        num_drafted, count(), drafts_s);
      if (saving)
        CHECK(saving->measured_s > 0 && saving->plain_s(kMost) >= 0);
      meter.observe(seconds(), seconds(), count(), count(), count(), count());
      if (random() % 16 == 0)
        meter.idle(seconds());
      CHECK(meter.price() >= 0 && meter.price() <= 1);
    }
  }
}

} // namespace

int main() {
  the_cost_of_a_draft_token_gives_price_and_saving();
  a_size_between_two_known_ones_is_interpolated();
  any_step_leaves_a_price_between_0_and_1();
}
