#include "operations.hpp"

#include <algorithm>
#include <vector>

#include "byte_reader.hpp"
#include "core/error.hpp"
#include "forest_pair.hpp"

namespace agentspec {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kMaxRequestTokens = 80;  // longer texts would make the brute force slow
constexpr std::size_t kMaxIndices = 4;
constexpr std::size_t kMaxIndexTokens = 160;
constexpr std::size_t kMaxTokenShift = 25;
constexpr std::uint32_t kMaxAlphabet = 64;  // shifted, token ids have up to 31 bits
constexpr RequestId kNobody = ~RequestId{0};

struct Setup {
  explicit Setup(ByteReader& bytes) {
    const std::size_t kind = bytes.below(3);
    depth = bytes.one_of({2u, 3u, 4u, 5u, 6u, 8u, 12u, 20u});
    alphabet = bytes.one_of({1u, 2u, 2u, 3u, 3u, 4u, 6u, 9u, 16u, 30u, kMaxAlphabet});
    token_shift = bytes.below(kMaxTokenShift + 1);
    is_crowded = bytes.below(4) == 3;
    num_threads = bytes.one_of({1u, 2u, 3u});
    if (kind == kExactRun) return;
    budgets.index_bytes = 2560 + 32 * bytes.byte();
    if (kind == 1) return;
    budgets.group_bytes = 10240 + 128 * bytes.byte();
    budgets.forest_bytes = 10240 + 256 * bytes.byte();
  }

  std::uint32_t depth;
  std::uint32_t alphabet;
  std::size_t token_shift;
  bool is_crowded;  // threads share a batch from 16 requests on
  std::size_t num_threads;
  Budgets budgets;

  std::size_t max_requests() const { return is_crowded ? 24 : 6; }
};

struct Live {
  RequestId id;
  std::size_t reading;  // position in the history where its next copy continues
  std::ptrdiff_t num_prompt;
};

class Operations {
 public:
  explicit Operations(ByteReader bytes)
      : bytes_(bytes), setup_(bytes_), forests_(setup_.depth, setup_.budgets, setup_.num_threads) {
    for (std::size_t group = 0; group < ForestPair::kNumGroups; ++group) forests_.create_index(group);
  }

  OperationCounts run() {
    while (!bytes_.is_empty()) {
      operate();
      ++counts_.num_operations;
    }
    forests_.check_integrity();
    return counts_;
  }

 private:
  void operate() {
    const std::uint32_t roll = bytes_.byte();
    if (live_.empty() || roll < 24) return start();
    if (roll < 31) return finish(read_live());
    if (roll < 32) return forests_.wait(live_[read_live()].id);
    if (roll < 44) return learn();
    if (roll < 46) return forget();
    if (roll < 47) return replace_index();
    if (roll < 56) return call_wrongly();
    if (roll < 60) return forests_.check_integrity();
    if (roll < 76) return observe();
    if (roll < 128 && setup_.is_crowded && live_.size() < setup_.max_requests()) return start();
    step();
  }

  // ---- choices from the bytes --------------------------------------------------------------------------

  // Chooses from few tokens, small ones often, or copies a piece of the history, so that matches get long.
  Tokens read_tokens(std::size_t most, std::size_t& reading) {
    const std::uint32_t form = bytes_.byte();
    const bool is_copy = form >= 96 && !history_.empty();
    if (is_copy && form < 144) reading = bytes_.below(256) * history_.size() / 256;
    Tokens made;
    for (std::size_t n = form % (most + 1); n > 0; --n)
      made.push_back(is_copy ? history_[reading++ % history_.size()] : read_token());
    history_.insert(history_.end(), made.begin(), made.end());
    return made;
  }

  std::int32_t read_token() {
    const std::uint32_t byte = bytes_.byte();
    return static_cast<std::int32_t>((setup_.alphabet * byte * byte >> 16) << setup_.token_shift);
  }

  DraftOptions read_options() {
    DraftOptions options;
    options.is_tree = bytes_.below(3) == 0;
    options.max_tokens = bytes_.one_of({16u, 16u, 16u, 12u, 12u, 8u, 8u, 8u, 5u, 5u, 2u, 1u, 0u});
    options.alpha = bytes_.one_of({4.0, 4.0, 4.0, 2.5, 2.0, 1.0, 0.5, 1e9});
    options.min_match = bytes_.one_of({1u, 1u, 1u, 1u, 1u, 1u, 1u, 2u, 4u});
    options.min_prob = bytes_.one_of({0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.02, 0.02, 0.3, 1.0});
    options.doubt = bytes_.one_of({0.0, 0.0, 1.0, 2.5});
    return options;
  }

  // Chooses from the latest indices, including dropped ones, which the core ignores.
  std::vector<IndexId> read_indices() {
    const std::uint32_t chosen = bytes_.byte();
    const std::vector<IndexId>& created = forests_.created();
    std::vector<IndexId> indices;
    for (std::size_t i = 0; i < std::min<std::size_t>(created.size(), 8); ++i) {
      if ((chosen >> i & 1) != 0) indices.push_back(created[created.size() - 1 - i]);
    }
    return indices;
  }

  std::vector<SharedSource> read_sources() {
    std::vector<SharedSource> sources;
    for (const IndexId index : read_indices())
      sources.push_back({index, static_cast<SourceId>(kRequestSource + 1 + bytes_.below(4))});
    return sources;
  }

  std::size_t read_group() { return bytes_.below(ForestPair::kNumGroups); }
  std::size_t read_live() { return bytes_.below(live_.size()); }

  Batch read_batch() {
    std::uint32_t left_out = bytes_.byte() & bytes_.byte();
    left_out |= left_out << 11;
    const std::size_t first = read_live();
    Batch batch;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      Live& live = live_[(first + i) % live_.size()];
      if ((left_out >> i & 1) == 0) batch.add(live.id, read_tokens(5, live.reading));
    }
    return batch;
  }

  // ---- operations -------------------------------------------------------------------------------------

  void start() {
    if (live_.size() == setup_.max_requests()) return finish(read_live());
    RequestId id = bytes_.below(2 * setup_.max_requests());  // ids of finished requests are used again
    while (forests_.naive().is_live(id)) ++id;
    const std::size_t group = read_group();
    std::size_t reading = 0;
    const Tokens prediction = read_tokens(12, reading);
    const Tokens prompt = read_tokens(24, reading);
    const std::vector<SharedSource> sources = read_sources();
    const bool learns = bytes_.below(3) != 0;
    const DraftOptions options = read_options();
    const bool in_background = bytes_.below(4) == 1;
    const bool is_learned = bytes_.below(3) == 1;
    forests_.start(id, group, prompt, prediction, sources, learns, options, in_background, is_learned);
    live_.push_back({id, reading, static_cast<std::ptrdiff_t>(prompt.size())});
  }

  void finish(std::size_t place) {
    const TokenSpan text = forests_.naive().text(live_[place].id);
    remember({text.begin() + live_[place].num_prompt, text.end()});
    forests_.finish(live_[place].id, bytes_.below(3) != 0);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(place));
  }

  void learn() {
    const std::vector<IndexId> indices = read_indices();
    std::size_t reading = 0;
    const Tokens output = read_tokens(15, reading);
    forests_.learn(indices, output);
    remember(output);
    bound_texts();
  }

  // Often outputs that were learned, in some of their indices.
  void forget() {
    if (forgettable_.empty()) return;
    forests_.forget(read_indices(), forgettable_[bytes_.below(forgettable_.size())]);
  }

  void remember(const Tokens& output) {
    if (forgettable_.size() == 16) forgettable_.erase(forgettable_.begin());
    forgettable_.push_back(output);
  }

  void replace_index() {
    const auto& indices = forests_.naive().indices();
    if (indices.size() == kMaxIndices || bytes_.flag()) {
      const auto place = static_cast<std::ptrdiff_t>(bytes_.below(indices.size()));
      forests_.drop_index(std::next(indices.begin(), place)->first);
    }
    forests_.create_index(read_group());
  }

  void observe() {
    forests_.observe(read_batch());
    bound_texts();
  }

  void step() {
    const Batch batch = read_batch();
    const std::uint32_t max_tokens = bytes_.one_of({16u, 16u, 16u, 16u, 16u, 16u, 16u, 16u, 6u, 1u, 0u});
    count(forests_.step(batch, max_tokens, bytes_.one_of({false, true})));
    bound_texts();
  }

  void bound_texts() {
    for (std::size_t place = live_.size(); place-- > 0;) {
      if (forests_.naive().text(live_[place].id).size() > kMaxRequestTokens) finish(place);
    }
    const std::vector<IndexId> created = forests_.created();
    for (const IndexId id : created) {
      const auto found = forests_.naive().indices().find(id);
      if (found == forests_.naive().indices().end() || found->second.num_tokens() <= kMaxIndexTokens)
        continue;
      forests_.drop_index(id);
      forests_.create_index(read_group());
    }
  }

  void count(const BatchDrafts& drafts) {
    counts_.num_drafts += drafts.scores.size();
    counts_.num_tokens += drafts.token_ids.size();
    for (std::size_t i = 0; i < drafts.scores.size(); ++i) {
      if (drafts.sources[i] == kNoSource) continue;
      ++counts_.num_drafted;
      counts_.num_shared += drafts.sources[i] != kRequestSource;
      counts_.num_matched += static_cast<std::size_t>(drafts.match_lengths[i]);
    }
  }

  // ---- wrong calls ------------------------------------------------------------------------------------

  void call_wrongly() {
    ++counts_.num_wrong_calls;
    switch (bytes_.below(4)) {
      case 0:
        return start_wrongly();
      case 1:
        return update_wrongly();
      default:
        return name_the_unknown();
    }
  }

  Tokens some_tokens() {
    Tokens made;
    while (made.size() < 4 && bytes_.flag()) made.push_back(read_token());
    return made;
  }

  Tokens with_negative(Tokens tokens) {
    const auto place = static_cast<std::ptrdiff_t>(bytes_.below(tokens.size() + 1));
    tokens.insert(tokens.begin() + place, -1 - static_cast<std::int32_t>(bytes_.byte()));
    return tokens;
  }

  void start_wrongly() {
    const Tokens right = some_tokens();
    const Tokens wrong = with_negative(right);
    const std::vector<SharedSource> sources = read_sources();
    const auto start = [&](RequestId id, GroupId group, const Tokens& prompt, const Tokens& prediction) {
      return [=](ForestCore& core) { core.start({.id = id, .group = group, .prompt = prompt, .prediction = prediction, .sources = sources}); };
    };
    const GroupId group = forests_.group(read_group());
    switch (bytes_.below(4)) {
      case 0:
        return forests_.refuses<DuplicateIdError>(start(live_[read_live()].id, group, right, right));
      case 1:
        return forests_.refuses<TokenError>(start(kNobody, group, wrong, right));
      case 2:
        return forests_.refuses<TokenError>(start(kNobody, group, right, wrong));
      default:
        return forests_.refuses<UnknownIdError>(start(kNobody, unknown_group(), right, right));
    }
  }

  void update_wrongly() {
    const RequestId live = live_[read_live()].id;
    const Tokens right = some_tokens();
    Batch batch;
    batch.add(live, right);
    switch (bytes_.below(3)) {
      case 0:
        batch.add(kNobody, right);
        return refuses_batch<UnknownIdError>(batch);
      case 1:
        batch.add(live, right);
        return refuses_batch<DuplicateIdError>(batch);
      default:
        batch = {};
        batch.add(live, with_negative(right));
        return refuses_batch<TokenError>(batch);
    }
  }

  template <typename Error>
  void refuses_batch(const Batch& batch) {
    if (bytes_.flag()) {
      forests_.refuses<Error>([&](ForestCore& core) { core.observe(batch.update()); });
    } else {
      forests_.refuses<Error>([&](ForestCore& core) { core.step(batch.update(), 16); });
    }
  }

  void name_the_unknown() {
    const IndexId index = forests_.created().back() + 1 + bytes_.byte();
    const std::vector<IndexId> indices = read_indices();
    const Tokens wrong = with_negative({});
    switch (bytes_.below(8)) {
      case 0:
        return forests_.refuses<UnknownIdError>([](ForestCore& core) { core.finish(kNobody, true); });
      case 1:
        return forests_.refuses<UnknownIdError>([](ForestCore& core) { core.finish(kNobody, false); });
      case 2:
        return forests_.refuses<UnknownIdError>([=](ForestCore& core) { core.drop_index(index); });
      case 3:
        return forests_.refuses<UnknownIdError>([=](ForestCore& core) { core.index_bytes(index); });
      case 4:
        return forests_.refuses<UnknownIdError>([=](ForestCore& core) { core.index_size(index); });
      case 5:
        return forests_.refuses<UnknownIdError>([](ForestCore& core) { core.wait(kNobody); });
      case 6:
        return forests_.refuses<TokenError>([&](ForestCore& core) { core.learn(indices, wrong); });
      default:
        return forests_.refuses<UnknownIdError>(
            [&](ForestCore& core) { core.create_index(unknown_group(), setup_.budgets.index_bytes); });
    }
  }

  GroupId unknown_group() const { return forests_.group(ForestPair::kNumGroups - 1) + 1; }

  ByteReader bytes_;
  Setup setup_;
  ForestPair forests_;
  std::vector<Live> live_;
  Tokens history_;  // every token so far
  std::vector<Tokens> forgettable_;  // the latest outputs
  OperationCounts counts_;
};

}  // namespace

OperationCounts& OperationCounts::operator+=(const OperationCounts& other) {
  num_operations += other.num_operations;
  num_wrong_calls += other.num_wrong_calls;
  num_drafts += other.num_drafts;
  num_drafted += other.num_drafted;
  num_shared += other.num_shared;
  num_tokens += other.num_tokens;
  num_matched += other.num_matched;
  return *this;
}

OperationCounts run_operations(std::span<const std::uint8_t> bytes) {
  return Operations(ByteReader(bytes)).run();
}

}  // namespace agentspec
