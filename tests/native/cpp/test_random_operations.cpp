// Random operations over small alphabets for the sanitizers, compared with
// naive counts and checked with check_integrity(). The full comparison with
// Algorithm 1 is in tests/native/test_suffix_index.py.

#include "check.hpp"
#include "core/drafting/drafter.hpp"
#include "core/index/suffix_index.hpp"

#include <algorithm>
#include <map>
#include <random>

using namespace agentspec;

namespace {

struct Output { // equal outputs share one entry
  Tokens text;
  std::vector<SequenceId> ids;
};

class RandomOperations {
public:
  RandomOperations(std::uint32_t depth, std::uint32_t alphabet)
      : depth_(depth), alphabet_(alphabet), random_(depth * 1000 + alphabet),
        index_(depth, SuffixIndex::kUnlimited) {}

  void run(int num_operations, int check_every) {
    for (int done = 0; done < num_operations; ++done) {
      operate();
      if (done % check_every == 0)
        index_.check_integrity();
    }
    while (!live_.empty())
      remove();
    while (!finished_.empty())
      evict();
    index_.check_integrity();
    CHECK(index_.automaton().num_states() == 1);
  }

private:
  std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>(random_() % limit);
  }
  Tokens tokens(std::uint32_t most) {
    Tokens made(below(most) + 1);
    for (std::int32_t &token : made)
      token = static_cast<std::int32_t>(
          std::min(below(alphabet_), below(alphabet_)));
    return made;
  }

  void operate() {
    const std::uint32_t roll = below(100);
    if (roll < 8 || live_.empty()) {
      live_.push_back(index_.open());
      texts_[live_.back()];
    } else if (roll < 13) {
      close();
    } else if (roll < 15) {
      remove();
    } else if (roll < 20 && finished_.size() > 4) {
      evict();
    } else if (roll < 22) {
      index_.shrink_towards(SuffixIndex::kUnlimited, below(20),
                      SuffixIndex::kMostWork); // closes holes
    } else if (roll < 70) {
      append();
    } else if (roll < 85) {
      count();
    } else {
      draft();
    }
  }

  void append() {
    const SequenceId id =
        live_[below(static_cast<std::uint32_t>(live_.size()))];
    const Tokens added = tokens(5);
    CHECK(index_.append(id, added));
    texts_[id].insert(texts_[id].end(), added.begin(), added.end());
  }

  void close() {
    const std::size_t i = below(static_cast<std::uint32_t>(live_.size()));
    const SequenceId id = live_[i];
    index_.close(id);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    if (texts_[id].empty()) {
      texts_.erase(id);
      return;
    }
    Output output{texts_[id], {}};
    const auto equal =
        std::find_if(finished_.begin(), finished_.end(),
                     [&](const Output &old) { return old.text == output.text; });
    if (equal != finished_.end()) {
      output = *equal;
      finished_.erase(equal);
    }
    output.ids.push_back(id);
    finished_.push_back(output);
  }

  void remove() {
    const auto chosen =
        live_.begin() + below(static_cast<std::uint32_t>(live_.size()));
    index_.remove(*chosen);
    texts_.erase(*chosen);
    live_.erase(chosen);
  }

  void evict() {
    const Output &oldest = finished_.front();
    const std::size_t num_tokens = oldest.text.size() * oldest.ids.size();
    CHECK(index_.evict(num_tokens) == num_tokens);
    for (const SequenceId id : oldest.ids)
      texts_.erase(id);
    finished_.erase(finished_.begin());
  }

  void count() {
    const Tokens wanted = tokens(depth_);
    std::uint32_t occurrences = 0;
    for (const auto &[id, text] : texts_) {
      auto from = text.begin();
      while ((from = std::search(from, text.end(), wanted.begin(),
                                 wanted.end())) != text.end()) {
        ++occurrences;
        ++from;
      }
    }
    CHECK(index_.count(wanted) == occurrences);
  }

  void draft() {
    const DraftOptions options{
        .is_tree = below(2) == 0, .max_tokens = 12, .min_prob = below(2) * 0.1};
    DraftTokens best;
    drafter_.improve(index_.automaton(), index_.match(tokens(2 * depth_)),
                     options, best);
    double score = 0.0;
    for (const double prob : best.probs) {
      CHECK(prob >= options.min_prob && prob <= 1.0);
      score += prob;
    }
    CHECK(score == best.score && best.probs.size() <= options.max_tokens);
  }

  std::uint32_t depth_;
  std::uint32_t alphabet_;
  std::mt19937 random_;
  SuffixIndex index_;
  Drafter drafter_;
  std::map<SequenceId, Tokens> texts_;
  std::vector<SequenceId> live_;
  std::vector<Output> finished_; // oldest first
};

} // namespace

int main() {
  RandomOperations(2, 2).run(3000, 1);
  RandomOperations(3, 2).run(3000, 1);
  RandomOperations(5, 3).run(3000, 1);
  RandomOperations(8, 60).run(3000, 1);
  RandomOperations(6, 3).run(30000, 100);
  RandomOperations(20, 200).run(30000, 100);
}
