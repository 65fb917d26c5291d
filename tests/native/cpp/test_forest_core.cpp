#include "check.hpp"
#include "core/error.hpp"
#include "core/forest/forest_core.hpp"

#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

using namespace agentspec;

namespace {

constexpr DraftOptions kOptions{.max_tokens = 8};

BatchDrafts step_one(ForestCore &core, RequestId id, const Tokens &tokens,
                     bool learn_later = false) {
  const RequestId requests[] = {id};
  const std::int64_t offsets[] = {0, static_cast<std::int64_t>(tokens.size())};
  return core.step({requests, tokens, offsets}, 8, 0, learn_later);
}

void an_output_drafts_for_the_next_request() {
  ForestCore core(9, 1 << 20);
  const GroupId group = core.create_group(1 << 20);
  const SharedSource sources[] = {{core.create_index(group, 1 << 20), 3}};
  core.start({.id = 1, .group = group, .prompt = Tokens{7}, .sources = sources, .options = kOptions});
  step_one(core, 1, {20, 21, 22, 23});
  core.finish(1, true);
  core.start({.id = 2, .group = group, .prompt = Tokens{8}, .sources = sources, .options = kOptions});
  const BatchDrafts drafts = step_one(core, 2, {20, 21});
  CHECK((drafts.token_ids == Tokens{22, 23}));
  CHECK(drafts.sources[0] == 3 && drafts.match_lengths[0] == 2 &&
        drafts.scores[0] == 2.0);
  core.check_integrity();
}

void wrong_calls_throw() {
  ForestCore core(9, 1 << 20);
  const GroupId group = core.create_group(1 << 20);
  core.start({.id = 1, .group = group, .prompt = Tokens{7}, .options = kOptions});
  CHECK_THROWS(core.start(NewRequest(1, group)),
               DuplicateIdError);
  CHECK_THROWS(core.start(NewRequest(2, group, Tokens{-1})),
               TokenError);
  CHECK_THROWS(core.start(NewRequest(2, group + 1)),
               UnknownIdError);
  CHECK_THROWS(step_one(core, 2, {}), UnknownIdError);
  CHECK_THROWS(core.finish(2, true), UnknownIdError);
  CHECK(core.num_requests() == 1);
}

// Two indices learn the same outputs. The heavier one is evicted from first,
// and the other one when the heavier one is empty.
void heavy_indices_give_way_first() {
  ForestCore core(9, 1 << 20);
  const GroupId group = core.create_group(1 << 17);
  const IndexId wide = core.create_index(group, 1 << 20);
  const IndexId narrow = core.create_index(group, 1 << 20, 64);
  const IndexId both[] = {wide, narrow};
  for (std::int32_t i = 0; i < 40'000; i += 20) {
    Tokens output(20);
    std::iota(output.begin(), output.end(), i);
    core.learn(both, output);
    CHECK(core.group_bytes(group) <= 1 << 17);
  }
  CHECK(core.index_bytes(narrow) * 4 < core.index_bytes(wide));
  CHECK(core.group_bytes(group) > 3 << 15);
  core.check_integrity();
}

void what_a_model_has_learned_can_be_saved_and_restored() {
  ForestCore core(9, 1 << 20);
  const GroupId group = core.create_group(1 << 20);
  const IndexId index = core.create_index(group, 1 << 20);
  const SharedSource sources[] = {{index, 3}};
  const ModelId model = core.create_model(group);
  const std::vector<std::byte> unlearned = core.model_state(model);
  core.start({.id = 1, .group = group, .prompt = Tokens{7}, .sources = sources, .options = kOptions, .model = model});
  for (std::int32_t i = 0; i < 40; ++i)
    step_one(core, 1, {i % 4, i % 3});
  std::vector<std::byte> state = core.model_state(model);
  CHECK(state != unlearned);
  const std::size_t before = core.group_bytes(group);
  const ModelId restored = core.restore_model(group, state);
  CHECK(core.model_state(restored) == state);
  CHECK(core.group_bytes(group) == before + sizeof(Model));
  CHECK_THROWS(core.restore_model(group + 1, state), UnknownIdError);
  CHECK_THROWS(core.restore_model(group, std::span(state).first(100)),
               ConfigError);
  const float wrong[] = {std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::infinity(), 1e30f};
  for (const float value : wrong) {
    std::vector<std::byte> broken = state;
    std::memcpy(broken.data() + broken.size() - sizeof(value), &value,
                sizeof(value));
    CHECK_THROWS(core.restore_model(group, broken), ConfigError);
  }
  core.drop_model(restored);
  CHECK_THROWS(core.model_state(restored), UnknownIdError);
  core.check_integrity();
}

void outputs_are_read_of_an_index_that_there_is() {
  ForestCore core(9, 1 << 20);
  const IndexId index = core.create_index(core.create_group(1 << 20), 1 << 20);
  core.learn(std::span(&index, 1), Tokens{1, 2, 3}, {5});
  CHECK_THROWS(core.learn(std::span(&index, 1), Tokens{1}, SequenceKind{0}),
               ConfigError);
  const Outputs outputs = core.read_outputs(index, true);
  CHECK((outputs.tokens == Tokens{1, 2, 3}) && outputs.uses[0] == 5);
  CHECK(core.read_outputs(index, false).sizes.empty());
  CHECK(core.read_outputs(index, true).sizes.size() == 1);
  core.drop_index(index);
  CHECK_THROWS(core.read_outputs(index, false), UnknownIdError);
}

// A caller that reads the model before the thread does sees the tokens learned.
void a_model_learns_what_is_left_for_later() {
  ForestCore core(9, 1 << 20);
  const GroupId group = core.create_group(1 << 20);
  const SharedSource sources[] = {{core.create_index(group, 1 << 20), 3}};
  const ModelId model = core.create_model(group);
  core.start({.id = 1, .group = group, .prompt = Tokens{7}, .sources = sources, .options = kOptions, .model = model});
  for (std::int32_t i = 0; i < 12; ++i)
    step_one(core, 1, {i % 4}, true);
  for (std::int32_t i = 12; i < 40; ++i) {
    const std::vector<std::byte> before = core.model_state(model);
    step_one(core, 1, {}, true); // the next token is not known yet
    CHECK(core.model_state(model) == before);
    step_one(core, 1, {i % 4}, true);
    const std::vector<std::byte> after = core.model_state(model);
    CHECK(after != before);
    core.settle();
    CHECK(core.model_state(model) == after);
  }
  core.finish(1, true);
  core.check_integrity();
}

// Requests of several threads share two indices with small budgets. Another
// thread drops and adds indices.
void threads_may_do_everything_at_once() {
  ForestCore core(12, 1 << 18);
  const GroupId group = core.create_group(1 << 17);
  const SharedSource sources[] = {{core.create_index(group, 1 << 15), 3},
                                  {core.create_index(group, 1 << 17), 5}};
  std::vector<std::thread> threads;
  for (RequestId worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&core, &sources, group, worker] {
      for (RequestId turn = 0; turn < 40; ++turn) {
        const RequestId id = worker * 1000 + turn;
        core.start({.id = id,
                    .group = group,
                    .prompt = Tokens{1, 2, 3},
                    .sources = sources,
                    .options = kOptions,
                    .learn = turn % 4 != 0});
        for (std::int32_t i = 0; i < 20; ++i)
          step_one(core, id, {i, i % 3, static_cast<std::int32_t>(turn)},
                   turn % 2 == 0);
        core.finish(id, turn % 3 != 0);
      }
    });
  }
  for (int turn = 0; turn < 50; ++turn) {
    core.drop_index(core.create_index(group, 1 << 12));
    const IndexId indices[] = {sources[1].index};
    core.learn(indices, Tokens{1, 2, 3, turn}, {2});
    for (bool is_begin = true;
         !core.read_outputs(sources[1].index, is_begin).sizes.empty();)
      is_begin = false;
  }
  for (std::thread &thread : threads)
    thread.join();
  core.check_integrity();
  CHECK(core.num_requests() == 0 && core.memory_bytes() <= 1 << 17);
}

} // namespace

int main() {
  heavy_indices_give_way_first();
  an_output_drafts_for_the_next_request();
  wrong_calls_throw();
  what_a_model_has_learned_can_be_saved_and_restored();
  outputs_are_read_of_an_index_that_there_is();
  a_model_learns_what_is_left_for_later();
  threads_may_do_everything_at_once();
}
