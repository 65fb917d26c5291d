#include "check.hpp"
#include "core/error.hpp"
#include "steps/rows.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

using namespace agentspec;

namespace {

constexpr std::int32_t kEnd = 2;
constexpr SourceId kStage = 3;
constexpr std::size_t kWidth = 32;
constexpr std::size_t kStart = 1; // tokens in each row's prompt
const Tokens kText{10, 11, 12, 13, 14, 15, kEnd};

// A core with one shared index that has learned kText, and its rows.
struct Engine {
  explicit Engine(std::size_t num_rows = 1)
      : core(16, 1 << 20), rows(core),
        sampled(num_rows) {
    group = core.create_group(1 << 20);
    index = core.create_index(group, 1 << 20);
    core.learn(std::span(&index, 1), kText);
    for (std::size_t i = 0; i < num_rows; ++i)
      names.push_back("r" + std::to_string(i));
  }

  void start(std::size_t row, std::size_t most_tokens = kWidth) {
    const SharedSource sources[] = {{index, kStage}};
    core.start({.id = row, .group = group, .prompt = Tokens{1}, .sources = sources, .options = {.max_tokens = 8, .min_prob = 0}});
    rows.add(names[row], {kStart, most_tokens, {kEnd, 99}});
    rows.enter(names[row], row);
  }
  void sample(std::size_t row, const Tokens &tokens) {
    sampled[row] = tokens;
  }
  RowDrafts step(std::size_t num_slots = 0, double now_s = 0) {
    std::vector<RowBatch::Row> batch;
    for (std::size_t i = 0; i < names.size(); ++i)
      batch.push_back({names[i], sampled[i], num_slots});
    RowDrafts drafts = rows.step({batch}, {8, 0}, now_s);
    sampled.assign(names.size(), {});
    return drafts;
  }
  Tokens step_one(const Tokens &tokens, std::size_t num_slots = 0,
                  double now_s = 0) {
    sample(0, tokens);
    const RowDrafts drafts = step(num_slots, now_s);
    return {drafts.of(0).begin(), drafts.of(0).end()};
  }
  std::size_t num_learned() {
    core.settle();
    return core.index_size(index).second - kText.size();
  }

  ForestCore core;
  LiveRows rows;
  GroupId group = 0;
  IndexId index = 0;
  std::vector<std::string> names;
  std::vector<Tokens> sampled;
};

void a_row_is_drafted_for_and_counted() {
  Engine engine;
  engine.start(0);
  CHECK((engine.step_one({10}, 0, 1.0) == Tokens{11, 12, 13, 14}));
  engine.sample(0, {11, 12, 50});
  const RowDrafts drafts = engine.step(3, 3.5);
  CHECK(drafts.num_decoding == 1 && drafts.num_slots == 3);
  CHECK(drafts.num_new == 3);
  const RowCounts counts = engine.rows.take_counts("r0");
  CHECK(counts.num_output_tokens == 4 && counts.num_steps == 1);
  CHECK(counts.num_drafts == 1 && counts.decode_s == 2.5);
  CHECK(counts.drafted[kStage] == 3 && counts.accepted[kStage] == 2);
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 0);
  CHECK(engine.num_learned() == 4);
}

void rows_are_added_replaced_and_removed() {
  Engine engine;
  CHECK(engine.step_one({10}).empty()); // not added: ignored
  CHECK(engine.rows.remove("r0").counts().num_output_tokens == 0);
  engine.rows.enter("r0", 7);
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 0);
  engine.start(0);
  engine.step_one({10});
  CHECK(engine.rows.remove("r0").counts().num_output_tokens == 1);
  CHECK(engine.step_one({11}).empty());
  CHECK(engine.num_learned() == 1);
  engine.rows.add("r0", {3, kWidth}); // a new row begins where it is added
  CHECK(engine.step_one({12}).empty());
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 1);
  engine.rows.add("r0", {4, kWidth});
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 0);
}

void nothing_after_a_stop_token_is_learned_counted_or_drafted() {
  for (const std::int32_t stop : {kEnd, 99}) {
    Engine engine;
    engine.start(0);
    engine.step_one({10});
    CHECK(engine.step_one({11, stop, 12, 13}, 3).empty());
    CHECK(engine.rows.take_counts("r0").num_output_tokens == 3);
    CHECK(engine.num_learned() == 3);
  }
}

// Prompt and output together have at most `most` tokens. The bonus token of the
// next step needs one of them.
void a_draft_respects_the_limit() {
  const std::size_t cases[][2] = {{2, 0}, {3, 0}, {4, 1}, {6, 3}, {20, 4}};
  for (const auto &[most, num_drafted] : cases) {
    Engine engine;
    engine.start(0, most);
    CHECK(engine.step_one({10}).size() == num_drafted);
  }
  Engine engine;
  engine.start(0, 3);
  CHECK(engine.step_one({10, 11, 12, 13}).empty());
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 2);
  CHECK(engine.num_learned() == 2);
}

// A row is counted before its request is known to the core; the core then
// receives the output from its beginning.
void a_row_may_enter_the_core_late() {
  Engine engine;
  const SharedSource sources[] = {{engine.index, kStage}};
  engine.core.start({.id = 0, .group = engine.group, .prompt = Tokens{1}, .sources = sources, .options = {.max_tokens = 8, .min_prob = 0}});
  engine.rows.add("r0", {kStart, kWidth, {kEnd}});
  CHECK(engine.step_one({10}, 0, 1.0).empty());
  CHECK(engine.step_one({11}, 0, 2.0).empty());
  CHECK(engine.num_learned() == 0);
  engine.rows.enter("r0", 0);
  CHECK((engine.step_one({12}, 0, 4.0) == Tokens{13, 14, 15, kEnd}));
  const RowCounts counts = engine.rows.take_counts("r0");
  CHECK(counts.num_output_tokens == 3 && counts.num_steps == 2);
  CHECK(counts.decode_s == 3.0 && engine.num_learned() == 3);
}

void a_row_continues_after_a_stop_with_the_same_text() {
  for (const std::size_t num_tokens : {1, 2, 3}) {
    Engine engine;
    engine.start(0);
    engine.step_one({10});
    engine.rows.resume("r0", num_tokens);
    engine.rows.resume("stranger", num_tokens);
    CHECK(engine.step_one({11}, 4).empty() == (num_tokens != 2));
    CHECK(engine.rows.take_counts("r0").num_drafts == 0); // it was dropped
  }
  Engine engine;
  engine.start(0);
  engine.step_one({10, kEnd});
  engine.rows.resume("r0", 9); // after the end nothing matters
  CHECK(engine.num_learned() == 2);
}

void a_prompt_that_is_read_again_after_output_loses_the_row() {
  Engine engine;
  engine.start(0);
  engine.rows.prefill("r0");
  engine.rows.prefill("stranger");
  CHECK(!engine.step_one({10}).empty());
  engine.rows.prefill("r0");
  CHECK(engine.step_one({11}).empty() && engine.num_learned() == 1);
}

void padding_is_no_draft() {
  Engine engine;
  engine.start(0);
  engine.step_one({10});
  engine.step_one({11, 12, 13, 14, 14, 14}, 8); // two tokens of padding
  const RowCounts counts = engine.rows.take_counts("r0");
  CHECK(counts.drafted[kStage] == 4 && counts.accepted[kStage] == 4);
  engine.rows.lose("r0");
  engine.rows.lose("stranger");
  engine.step_one({15}, 8);
  engine.step_one({15}, 8);
  CHECK(engine.rows.take_counts("r0").num_drafts <= 1);
  CHECK(engine.num_learned() == 7);
}

void rows_without_samples_take_no_part() {
  Engine engine(3);
  engine.start(0);
  engine.start(2);
  engine.sampled[1] = {5};
  engine.sample(2, {10});
  const RowDrafts drafts = engine.step();
  CHECK(drafts.of(0).empty() && drafts.of(1).empty());
  CHECK(drafts.of(2).size() == 4 && drafts.rows.size() == 3);
}

// A wrong row stops the whole batch.
void a_wrong_batch_changes_nothing() {
  Engine engine(2);
  engine.start(0);
  engine.rows.add("r1", {kStart, kWidth});
  engine.sampled = {{-5}, {10}};
  CHECK_THROWS(engine.step(), TokenError);
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 0);
  CHECK(engine.num_learned() == 0);
  engine.sampled = {{10}, {10}};
  CHECK(engine.step().of(0).size() == 4);
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 1);
  CHECK(engine.rows.take_counts("r1").num_output_tokens == 1);
  CHECK(engine.num_learned() == 1);
}

void a_finished_request_is_an_error_that_names_it() {
  Engine engine;
  engine.start(0);
  engine.core.finish(0, true);
  std::string message;
  try {
    engine.step_one({10});
  } catch (const UnknownIdError &error) {
    message = error.what();
  }
  CHECK(message == "there is no live request 0");
  CHECK(engine.rows.remove("r0").counts().num_output_tokens == 0);
  CHECK(engine.step_one({11}).empty());
  engine.core.check_integrity();
}

void a_step_is_counted_with_drafts_and_without() {
  Engine engine;
  engine.start(0);
  engine.step_one({10});
  engine.step_one({11, 12, 13});
  engine.rows.count_row_saving("r0", 3, {1.0, 0.5, 0.25});
  engine.rows.count_row_saving("stranger", 3, {8.0, 0.5, 0.25});
  const RowCounts counts = engine.rows.take_counts("r0");
  CHECK(counts.measured_decode_s == 1.0 && counts.plain_decode_s == 1.25);
}

void a_row_keeps_its_output_if_it_is_asked_to() {
  Engine engine(2);
  engine.start(0);
  engine.rows.add("r0", {kStart, kWidth, {kEnd}, true});
  engine.step_one({10, 11}); // it has not entered yet
  engine.rows.enter("r0", 0);
  engine.step_one({12});
  engine.sampled[0] = {-1};
  CHECK_THROWS(engine.step(), TokenError);
  engine.step_one({13, kEnd, 14});
  const LiveRow ended = engine.rows.remove("r0");
  CHECK((ended.output() == Tokens{10, 11, 12, 13, kEnd}));
  CHECK(ended.is_ended() && ended.num_output_tokens() == 5);
  CHECK(engine.rows.remove("r0").output().empty());
  CHECK(!engine.rows.remove("stranger").is_ended());
  CHECK(engine.num_learned() == 5);
  engine.start(1);
  engine.sample(1, {10});
  engine.step();
  const LiveRow broken_off = engine.rows.remove("r1");
  CHECK(broken_off.output().empty() && !broken_off.is_ended());
}

// Its output may turn out to have ended at any of its tokens.
void a_held_row_has_its_counts_up_to_any_token() {
  Engine engine(2);
  engine.start(0);
  engine.rows.add("r0", {kStart, kWidth, {kEnd}, true, true, 0});
  engine.step_one({10});
  engine.step_one({11, 12, 13}, 2);
  engine.rows.count_row_saving("r0", 3, {1.0, 0.5, 0.25});
  engine.step_one({14, 15}, 1);
  CHECK(engine.rows.take_counts("r0").num_output_tokens == 0);
  const LiveRow row = engine.rows.remove("r0");
  for (std::size_t num_tokens = 0; num_tokens <= 6; ++num_tokens) {
    const RowCounts counts = row.counts(num_tokens);
    CHECK(counts.num_output_tokens == static_cast<std::int64_t>(num_tokens));
    CHECK(counts.num_steps == (num_tokens > 4 ? 2 : num_tokens > 1 ? 1 : 0));
    CHECK((counts.measured_decode_s > 0) == (num_tokens > 1));
  }
  CHECK(row.counts().num_output_tokens == 6);
}

void counts_of_a_part_of_a_step() {
  RowCounts step;
  step.num_output_tokens = 5;
  step.num_steps = step.num_drafts = 1;
  step.drafted[2] = 7;
  step.accepted[2] = 4;
  step.accepted_by_origin = {1, 2, 1};
  for (std::int64_t kept = 1; kept <= 6; ++kept) {
    const RowCounts part = step.first(kept);
    CHECK(part.num_output_tokens == std::min<std::int64_t>(kept, 5));
    CHECK(part.accepted[2] == part.num_output_tokens - 1);
    CHECK(std::accumulate(part.accepted_by_origin.begin(),
                          part.accepted_by_origin.end(),
                          std::int64_t{0}) == part.accepted[2]);
    CHECK(part.drafted[2] == 7 && part.num_steps == 1);
  }
  RowCounts sum = step;
  sum += step;
  CHECK(sum.num_output_tokens == 10 && sum.accepted[2] == 8 &&
        sum.accepted_by_origin[1] == 4);
}

// Each thread steps a row of its own; a third adds and removes others.
void threads_may_do_everything_at_once() {
  Engine shared(2);
  shared.start(0, 1 << 20);
  shared.start(1, 1 << 20);
  constexpr std::size_t kSteps = 300;
  const auto work = [&](const std::string &name) {
    for (std::size_t i = 0; i < kSteps; ++i) {
      const Tokens sampled{5 + static_cast<std::int32_t>(i % 3)};
      const RowBatch::Row row{name, sampled};
      const RowDrafts drafts = shared.rows.step({{&row, 1}}, {4, 0}, 0);
      CHECK(drafts.rows.size() == 1 && drafts.of(0).size() <= 4);
    }
  };
  std::thread first(work, shared.names[0]), second(work, shared.names[1]);
  std::int64_t num_counted = 0;
  for (int i = 0; i < 200; ++i) {
    shared.rows.add("other", {0, 1});
    shared.rows.count_row_saving("other", 1, {1, 1, 1});
    num_counted += shared.rows.take_counts(shared.names[0]).num_output_tokens;
    shared.rows.remove("other");
  }
  first.join();
  second.join();
  num_counted += shared.rows.remove(shared.names[0]).counts().num_output_tokens;
  CHECK(num_counted == kSteps);
  CHECK(shared.rows.remove(shared.names[1]).counts().num_output_tokens ==
        kSteps);
  CHECK(shared.num_learned() == 2 * kSteps);
  shared.core.check_integrity();
}

} // namespace

int main() {
  a_row_is_drafted_for_and_counted();
  rows_are_added_replaced_and_removed();
  nothing_after_a_stop_token_is_learned_counted_or_drafted();
  a_draft_respects_the_limit();
  a_row_may_enter_the_core_late();
  a_row_continues_after_a_stop_with_the_same_text();
  a_prompt_that_is_read_again_after_output_loses_the_row();
  padding_is_no_draft();
  rows_without_samples_take_no_part();
  a_wrong_batch_changes_nothing();
  a_finished_request_is_an_error_that_names_it();
  a_step_is_counted_with_drafts_and_without();
  a_row_keeps_its_output_if_it_is_asked_to();
  a_held_row_has_its_counts_up_to_any_token();
  counts_of_a_part_of_a_step();
  threads_may_do_everything_at_once();
}
