// Fails every allocation in turn: test_out_of_memory [most runs per script and mode].
//
// Repeats fixed scripts of calls; in each run another allocation fails. A call that runs out of memory may
// lose data, as suffix_index.hpp and forest_core.hpp state, but everything stays consistent and usable.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "core/forest/forest_core.hpp"
#include "finding.hpp"
#include "forest_pair.hpp"
#include "memory_faults.hpp"

using namespace agentspec;

namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::uint32_t kDepth = 12;
constexpr std::size_t kNever = ~std::size_t{0};
constexpr std::size_t kMostPeriods = 60;
constexpr DraftOptions kChain{.max_tokens = 8};
constexpr DraftOptions kTree{.is_tree = true, .max_tokens = 12, .min_prob = 0.01};

/// Returns the same text for the same seed. Phrases repeat, and between them are tokens that seldom do.
Tokens text(std::uint32_t seed, std::size_t size, std::uint32_t num_phrases = 8) {
  Tokens tokens;
  std::uint32_t state = seed * 2654435761u + 1;
  while (tokens.size() < size) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t phrase = (state >> 12) % num_phrases;
    for (std::uint32_t i = 0; i < 12; ++i) {
      tokens.push_back(static_cast<std::int32_t>((phrase * 12 + i) * 2246822519u >> 26));
    }
    tokens.push_back(static_cast<std::int32_t>(state >> 20));
  }
  tokens.resize(size);
  return tokens;
}

/// Makes a call that may throw std::bad_alloc, but only after a failed allocation. Returns false if it did.
template <typename Call>
bool try_call(Call call) {
  const std::size_t before = num_faults();
  try {
    const FaultScope scope;
    call();
    return true;
  } catch (const std::bad_alloc&) {
    require(num_faults() > before, "a call ran out of memory, but there was memory");
    return false;
  }
}

// ---- one index ----------------------------------------------------------------------------------------

/// A SuffixIndex and the texts that it must hold: all of them, or after a failure possibly none.
class IndexScript {
 public:
  void run() {
    const auto make = [this] { index_.emplace(kDepth, SuffixIndex::kUnlimited); };
    if (!try_call(make)) make();
    grow_and_shrink();
    outgrow_the_heap();
    evict();
  }

  /// Checks that it learns and counts as before when memory is available again.
  void recover() {
    const Tokens added = text(99, 150);
    const SequenceId id = index_->open();
    require(index_->append(id, added), "an index does not learn any more");
    texts_[id] = added;
    check();
    check_counts();
    index_->remove(id);
    index_->enforce(0);
    require_equal<std::size_t>(index_->num_tokens(), 0, "tokens left in an empty index");
    index_->check_integrity();
  }

 private:
  void grow_and_shrink() {
    std::vector<SequenceId> ids;
    for (int i = 0; i < 6; ++i) ids.push_back(open());
    for (std::uint32_t round = 0; round < 4; ++round) {
      for (std::uint32_t i = 0; i < 6; ++i) append(ids[i], text(i % 4 * 10 + round, 30 + 30 * (i % 4)));
    }
    close(ids[0]);
    close(ids[4]);  // an equal text
    remove(ids[1]);
    for (std::uint32_t i = 0; i < 8; ++i) close(opened_with(text(20 + i, 60)));
    shrink_towards(100);
    stop(ids[2]);
    remove(ids[2]);
    remove(ids[0]);
    shrink_towards(1000);
    append(ids[3], text(77, 30));
    close(ids[3]);
    remove(ids[5]);
    check_counts();
  }

  // Arrays are mappings from here on.
  void outgrow_the_heap() {
    const SequenceId id = open();
    for (std::uint32_t i = 0; i < 16; ++i) append(id, text(100 + i, 256, 4000));
    close(id);
    close(opened_with(text(90, 50)));
    remove(id);
    shrink_towards(1000);
  }

  void evict() {
    for (std::uint32_t i = 0; i < 12; ++i) {
      const SequenceId id = opened_with(text(200 + i, 100));
      if (i % 4 != 0) close(id);
    }
    is_evicting_ = true;
    const std::size_t half_bytes = index_->memory_bytes() / 2;
    call([&] { index_->enforce(half_bytes); });
    call([this] { index_->enforce(0); });
    is_evicting_ = false;
    require_equal<std::size_t>(index_->num_tokens(), 0, "tokens left in an empty index");
    texts_.clear();
  }

  SequenceId open() {
    SequenceId id = 0;
    if (!call([&] { id = index_->open(); })) id = index_->open();
    texts_[id] = {};
    return id;
  }
  SequenceId opened_with(const Tokens& tokens) {
    const SequenceId id = open();
    append(id, tokens);
    return id;
  }
  void append(SequenceId id, const Tokens& tokens) {
    bool is_learned = true;
    call([&] { is_learned = index_->append(id, tokens); });
    if (!is_learned) return require(num_faults() > 0, "a sequence is not learned");
    texts_[id].insert(texts_[id].end(), tokens.begin(), tokens.end());
    check_size();
  }
  void close(SequenceId id) {
    if (index_->is_live(id)) call([&] { index_->close(id); });
  }
  void stop(SequenceId id) {
    if (index_->is_live(id)) call([&] { index_->stop(id); });
  }
  void remove(SequenceId id) {
    if (!index_->is_live(id)) return;
    texts_.erase(id);
    call([&] { index_->remove(id); });
    require(!index_->is_live(id), "a sequence that was removed is live");
    check_size();
  }
  void shrink_towards(std::size_t num_changed) {
    call([&] { index_->shrink_towards(SuffixIndex::kUnlimited, num_changed, SuffixIndex::kMostWork); });
  }

  template <typename Call>
  bool call(Call made) {
    const std::size_t before = num_faults();
    const bool is_done = try_call(made);
    if (num_faults() == before) return is_done;
    if (!is_evicting_ && index_->num_tokens() == 0) texts_.clear();
    check();
    return is_done;
  }

  void check_size() const {
    std::size_t num_tokens = 0;
    for (const auto& [id, tokens] : texts_) num_tokens += tokens.size();
    if (!is_evicting_) require_equal(index_->num_tokens(), num_tokens, "number of tokens");
  }
  void check() const {
    index_->check_integrity();
    require_at_most(index_->used_bytes(), index_->memory_bytes(), "bytes in use");
  }
  void check_counts() const {
    for (const std::uint32_t seed : {0u, 10u, 99u}) {
      const Tokens tokens = text(seed, 60);
      for (const std::size_t begin : {0, 3, 20, 45}) {
        const auto string = std::span(tokens).subspan(begin, 2 + begin % 4);
        require_equal<std::size_t>(index_->count(string), occurrences(string), "count");
      }
    }
  }
  std::size_t occurrences(std::span<const std::int32_t> string) const {
    std::size_t num_found = 0;
    for (const auto& [id, tokens] : texts_) {
      auto at = std::search(tokens.begin(), tokens.end(), string.begin(), string.end());
      for (; at != tokens.end(); ++num_found) {
        at = std::search(at + 1, tokens.end(), string.begin(), string.end());
      }
    }
    return num_found;
  }

  std::optional<SuffixIndex> index_;
  std::map<SequenceId, Tokens> texts_;
  bool is_evicting_ = false;
};

// With as many sequences as the index counts, open() evicts, but not if it then can't open one.
void check_open_of_a_full_index() {
  SuffixIndex index(kDepth, SuffixIndex::kUnlimited);
  for (std::uint32_t i = 0; i < Automaton::kMaxEnds / SuffixIndex::kMaxUses; ++i) {
    const SequenceId id = index.open(SuffixIndex::kMaxUses);
    index.append(id, text(i, 20));
    index.close(id);
  }
  for (int i = 0; i < 16; ++i) index.open();  // the array of live sequences is full
  const std::size_t num_tokens = index.num_tokens();
  const std::size_t num_sequences = index.num_sequences();
  plan_faults(FaultMode::kFromThenOn, 1);
  const bool is_opened = try_call([&] { index.open(SuffixIndex::kMaxUses); });
  end_faults();
  require(!is_opened, "a sequence was opened without memory");
  require_equal(index.num_tokens(), num_tokens, "tokens after a failed open()");
  require_equal(index.num_sequences(), num_sequences, "sequences after a failed open()");
  const SequenceId id = index.open(SuffixIndex::kMaxUses);
  require(index.is_learned(id), "a sequence is not learned after an eviction");
  require(index.num_tokens() < num_tokens, "nothing was evicted");
  require_at_most<std::size_t>(index.num_sequences(), Automaton::kMaxEnds, "sequences");
}

// ---- a forest -----------------------------------------------------------------------------------------

class ForestScript {
 public:
  explicit ForestScript(std::size_t num_threads) : num_threads_(num_threads) {}

  void run() {
    const auto make = [this] { core_.emplace(kDepth, kForestBytes, num_threads_); };
    if (!try_call(make)) make();
    for (const std::size_t limit_bytes : kGroupBytes) {
      must([&] { core_->create_group(limit_bytes); });
      ++num_groups_;
    }
    for (const auto& [group, limit_bytes] : kIndices) {
      must([&] { core_->create_index(group, limit_bytes); });
    }
    serve_a_few();
    overflow();
    if (num_threads_ > 1) serve_a_crowd();
  }

  /// Checks that live requests continue and new ones work as in a new forest when memory is available again.
  void recover() {
    while (!live_.empty()) finish(*live_.begin(), *live_.begin() % 2 == 0);
    for (const IndexId index : {0, 1, 3}) require_goes_on_learning(index);
    const IndexId added = core_->create_index(0, kUnlimited);
    require_drafts_as_in_a_new_forest(added);
    for (IndexId index = 0; index <= added; ++index) {
      if (index != kDropped) core_->drop_index(index);
    }
    core_->drop_model(*model_);
    require_equal<std::size_t>(core_->memory_bytes(), 0, "bytes of nothing");
    check();
  }

 private:
  static constexpr std::size_t kUnlimited = SuffixIndex::kUnlimited;
  static constexpr std::size_t kForestBytes = 300'000 + sizeof(Model);
  static constexpr std::array<std::size_t, 2> kGroupBytes{200'000 + sizeof(Model), 60'000};
  static constexpr std::array<std::pair<GroupId, std::size_t>, 4> kIndices{
      {{0, 100'000}, {0, 16'384}, {1, 30'000}, {1, kUnlimited}}};
  static constexpr IndexId kDropped = 2;

  void serve_a_few() {
    const IndexId all[] = {0, 1, 2};
    must([learned = text(1, 300), &all, this] { core_->learn(all, learned); });
    must([this] { model_ = core_->create_model(0); });
    start(1, 0, text(2, 100), text(3, 40), true, kTree, false);
    start(2, 0, text(4, 100), {}, true, kChain, true);
    wait(2);
    start_while_others_decode(3);
    for (std::uint32_t turn = 0; turn < 10; ++turn) step({1, 2, 3}, turn, 1 + turn % 3);
    observe({2, 3}, 3, 20);
    finish(1, true);
    finish(2, false);
    start(4, 0, text(5, 60), text(5, 60), false, kTree, false);
    for (std::uint32_t turn = 0; turn < 4; ++turn) step({3, 4}, turn, 4);
  }

  // Tokens for the request's own index wait, since the index can't be built yet.
  void start_while_others_decode(RequestId id) {
    {
      const HoldOthers hold;
      start(id, 1, text(6, 120), text(7, 50), true, kChain, true);
      step({1, id}, 50, 5);
    }
    wait(id);
  }

  void overflow() {
    for (std::uint32_t i = 0; i < 12; ++i) {
      const IndexId indices[] = {i % 4, (i + 1) % 4};
      must([&, learned = text(300 + i, 150, 40)] { core_->learn(indices, learned); });
    }
    start(5, 1, text(8, 200, 40), {}, true, kChain, false);
    start(6, 1, text(9, 200, 40), {}, true, kTree, true);
    wait(6);
    for (std::uint32_t turn = 0; turn < 6; ++turn) step({3, 4, 5, 6}, turn, 12);
    require(call([this] { core_->drop_index(kDropped); }), "an index could not be dropped");
    step({3, 5, 6}, 60, 3);
    for (std::uint32_t turn = 61; turn < 66; turn += 2) step({3, 5, 6}, turn, 40);
    save_and_restore();
    finish(5, false);
    finish(3, true);
  }

  void save_and_restore() {
    Outputs outputs;
    must([&] { outputs = core_->read_outputs(0, true); });
    if (!outputs.sizes.empty()) {
      const auto oldest = std::span(outputs.tokens).first(outputs.sizes[0]);
      must([&] { core_->learn(std::array{IndexId{1}}, oldest, {3}); });
      require(call([&] { core_->forget(std::array{IndexId{0}, IndexId{1}}, oldest); }),
              "an output could not be forgotten");
    }
    std::vector<std::byte> state;
    must([&] { state = core_->model_state(*model_); });
    ModelId restored = 0;
    must([&] { restored = core_->restore_model(0, state); });
    core_->drop_model(restored);
  }

  void serve_a_crowd() {
    std::vector<RequestId> crowd;
    for (RequestId id = 100; id < 120; ++id) {
      start(id, id % 2, text(static_cast<std::uint32_t>(id), 30), {}, true, kChain, id % 3 == 0);
      crowd.push_back(id);
    }
    for (std::uint32_t turn = 0; turn < 4; ++turn) step(crowd, turn, 3);
    for (const RequestId id : crowd) finish(id, id % 2 == 0);
  }

  void start(RequestId id, GroupId group, const Tokens& prompt, const Tokens& prediction, bool learns,
             const DraftOptions& options, bool in_background) {
    const SharedSource sources[] = {{0, 5}, {group == 0 ? IndexId{1} : IndexId{2}, 3}, {3, 4}};
    const std::optional<ModelId> model = group == 0 ? model_ : std::nullopt;
    must([&] {
      core_->start({.id = id, .group = group, .prompt = prompt, .prediction = prediction, .sources = sources,
                    .options = options, .model = model, .learn = learns, .in_background = in_background});
    });
    live_.insert(id);
    require_equal(core_->num_requests(), live_.size(), "number of requests");
  }
  void wait(RequestId id) {
    require(call([&] { core_->wait(id); }), "waiting took memory");
  }
  void finish(RequestId id, bool keep) {
    require(call([&] { core_->finish(id, keep); }), "a request could not be finished");
    live_.erase(id);
    require_equal(core_->num_requests(), live_.size(), "number of requests");
  }
  void step(const std::vector<RequestId>& ids, std::uint32_t seed, std::size_t size) {
    const Batch batch = batch_of(ids, seed, size);
    BatchDrafts drafts;
    if (!call([&] { drafts = core_->step(batch.update(), 12, 0, seed % 2 == 1); })) return;
    require_equal(drafts.offsets.size(), ids.size() + 1, "number of drafts");
    require_equal(drafts.sources.size(), ids.size(), "number of sources");
    for (const std::int32_t token : drafts.token_ids) require(token >= 0, "a draft holds no token");
  }
  void observe(const std::vector<RequestId>& ids, std::uint32_t seed, std::size_t size) {
    const Batch batch = batch_of(ids, seed, size);
    must([&] { core_->observe(batch.update()); });
  }
  static Batch batch_of(const std::vector<RequestId>& ids, std::uint32_t seed, std::size_t size) {
    Batch batch;
    for (const RequestId id : ids) batch.add(id, text(seed + static_cast<std::uint32_t>(id), size));
    return batch;
  }

  // Repeats the call if it threw.
  template <typename Call>
  void must(Call made) {
    if (!call(made)) made();
  }
  template <typename Call>
  bool call(Call made) {
    const std::size_t before = num_faults();
    const bool is_done = try_call(made);
    if (num_faults() > before) check();
    return is_done;
  }

  // check_integrity() adds up the groups: a request may be built meanwhile.
  void check() const {
    core_->check_integrity();
    for (GroupId group = 0; group < num_groups_; ++group) {
      require_at_most(core_->group_bytes(group), kGroupBytes[group], "bytes of a group");
    }
    require_at_most(core_->memory_bytes(), kForestBytes, "bytes of the forest");
  }

  // Checks that a unique text is drafted by the index that learned its beginning.
  void require_goes_on_learning(IndexId index) {
    constexpr RequestId kReader = 900;
    Tokens tokens(40);
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(1'000'000 + index * 1000));
    core_->learn(std::span(&index, 1), tokens);
    const SharedSource source{index, 4};
    core_->start({.id = kReader, .group = 0, .prompt = Tokens{1, 2, 3}, .sources = {&source, 1}, .options = kChain,
                  .learn = false});
    Batch batch;
    batch.add(kReader, std::span(tokens).first(3));
    const BatchDrafts drafts = core_->step(batch.update(), 8);
    require(drafts.token_ids == Tokens(tokens.begin() + 3, tokens.begin() + 11), "a text was not learned");
    require(drafts.sources[0] == source.source, "a draft comes from elsewhere");
    core_->finish(kReader, false);
  }

  void require_drafts_as_in_a_new_forest(IndexId index) {
    ForestCore other(kDepth, kUnlimited);
    const IndexId others = other.create_index(other.create_group(kUnlimited), kUnlimited);
    prepare(*core_, index);
    prepare(other, others);
    for (std::uint32_t turn = 0; turn < 6; ++turn) {
      const Batch batch = batch_of({901, 902}, turn, 4);
      const BatchDrafts drafts = core_->step(batch.update(), 12);
      const BatchDrafts expected = other.step(batch.update(), 12);
      require(drafts.token_ids == expected.token_ids && drafts.parents == expected.parents &&
                  drafts.probs == expected.probs && drafts.sources == expected.sources,
              "a draft differs from a new forest's");
    }
    for (const RequestId id : {901, 902}) core_->finish(id, id == 901);
    require(core_->index_size(index) == std::pair<std::size_t, std::size_t>(2, 224), "an output was lost");
  }
  static void prepare(ForestCore& core, IndexId index) {
    const SharedSource source{index, 3};
    core.learn(std::span(&index, 1), text(400, 200));
    core.start({.id = 901, .group = 0, .prompt = text(401, 50), .prediction = text(402, 50), .sources = {&source, 1}, .options = kTree});
    core.start({.id = 902, .group = 0, .prompt = text(403, 50), .sources = {&source, 1}, .options = kChain, .in_background = true});
    core.wait(902);
  }

  std::size_t num_threads_;
  std::optional<ForestCore> core_;
  GroupId num_groups_ = 0;
  std::set<RequestId> live_;
  std::optional<ModelId> model_;  // of the first group's requests
};

// ---- the runs -----------------------------------------------------------------------------------------

struct Coverage {
  std::size_t num_allocations = 0;  // of a run without failures
  std::size_t num_runs = 0;
  std::size_t num_faults = 0;
};

template <typename Script, typename... Arguments>
void run_script(FaultMode mode, std::size_t n, Arguments... arguments) {
  plan_faults(mode, n);
  Script script(arguments...);
  script.run();
  end_faults();
  script.recover();
}

/// Makes one run in a thread of its own, which ends its thread-local scratch. Any other block left allocated
/// is a finding.
template <typename Script, typename... Arguments>
void run_once(Coverage& coverage, FaultMode mode, std::size_t n, Arguments... arguments) {
  const std::size_t before = num_live_blocks();
  std::string finding;
  std::thread([&] {
    try {
      run_script<Script>(mode, n, arguments...);
    } catch (const std::exception& error) {
      end_faults();
      finding = error.what();
    }
  }).join();
  if (!finding.empty()) {
    throw Finding("allocation " + std::to_string(n) + ", mode " + std::to_string(static_cast<int>(mode)) +
                  ": " + finding);
  }
  require_equal(num_live_blocks(), before, "blocks that were never freed");
  ++coverage.num_runs;
  coverage.num_faults += num_faults();
}

/// Fails up to `most_runs` of the script's allocations in turn, evenly spread.
template <typename Script, typename... Arguments>
void run_all(const char* name, std::size_t most_runs, Arguments... arguments) {
  Coverage coverage;
  run_once<Script>(coverage, FaultMode::kOnce, kNever, arguments...);
  coverage.num_allocations = num_allocations();
  for (const FaultMode mode : {FaultMode::kOnce, FaultMode::kFromThenOn}) {
    const std::size_t num_runs = std::min(most_runs, coverage.num_allocations);
    for (std::size_t i = 0; i < num_runs; ++i) {
      run_once<Script>(coverage, mode, 1 + i * coverage.num_allocations / num_runs, arguments...);
    }
  }
  for (std::size_t n = 2; n < 2 + std::min<std::size_t>(most_runs, kMostPeriods); ++n) {
    run_once<Script>(coverage, FaultMode::kEvery, n, arguments...);
  }
  std::printf("%s: %zu of %zu allocations failed in turn; %zu failures in %zu runs\n", name,
              std::min(most_runs, coverage.num_allocations), coverage.num_allocations, coverage.num_faults,
              coverage.num_runs);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most_runs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 5000;
  try {
    check_open_of_a_full_index();
    run_all<IndexScript>("index", most_runs);
    run_all<ForestScript>("forest", most_runs, 1);
    run_all<ForestScript>("forest of 2 threads", most_runs / 8, 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
