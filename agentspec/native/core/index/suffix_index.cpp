#include "core/index/suffix_index.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "core/error.hpp"

namespace agentspec {
namespace {

/// Budgets up to this size are enforced quickly.
constexpr std::size_t kTinyBytes = std::size_t{1} << 18;

/// From this limit on, the index learns only into holes.
std::size_t last_limit(std::size_t limit_bytes) { return limit_bytes - limit_bytes / 32; }

}  // namespace

SuffixIndex::SuffixIndex(std::uint32_t depth, std::size_t limit_bytes, bool marks_begins)
    : automaton_(depth), limit_bytes_(limit_bytes), marks_begins_(marks_begins) {}

// Returns false if memory ran out. A half-finished change is of no use, so the whole index is then cleared.
template <typename Change>
bool SuffixIndex::change_or_clear(Change change) {
  try {
    change();
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const CapacityError&) {
  }
  clear();
  return false;
}

// ---- sequences ----------------------------------------------------------------------------------------

void SuffixIndex::check_uses(std::uint32_t uses) {
  if (uses >= 1 && uses <= kMaxUses) return;
  throw ConfigError("a sequence counts as 1 to " + std::to_string(kMaxUses) + " equal ones, not " +
                    std::to_string(uses));
}

SequenceId SuffixIndex::open(std::uint32_t uses, Origin origin) {
  if (slots_.num_used() == live_.size()) live_.emplace_back();  // this and the next line may throw
  const std::uint32_t slot = slots_.acquire();
  live_[slot].serial = num_opened_++;
  live_[slot].uses = static_cast<std::uint16_t>(uses);
  live_[slot].origin = origin;
  num_sequences_ += uses;
  if (num_sequences_ > Automaton::kMaxEnds) change_or_clear([this] { evict_piece(); });
  live_[slot].is_learned = num_sequences_ <= Automaton::kMaxEnds;
  return (static_cast<SequenceId>(live_[slot].serial) << 32) | slot;
}

bool SuffixIndex::append(SequenceId id, std::span<const std::int32_t> tokens) {
  const std::uint32_t slot = slot_of(id);
  if (!live_[slot].is_learned || tokens.empty()) return live_[slot].is_learned;
  return change_or_clear([&] {
           if (!has_room(tokens.size(), live_[slot].uses)) stop_learning(slot);
           if (live_[slot].is_learned) learn(live_[slot], tokens);
         }) &&
         live_[slot].is_learned;
}

// At the budget there is room only if the tokens will fill holes. A hash table that would outgrow the budget
// has to wait until holes are closed.
bool SuffixIndex::has_room(std::size_t num_tokens, std::uint32_t uses) {
  if (num_tokens_ + num_tokens * uses > kMaxTokens) evict_some(kMostWork, 0);
  if (num_tokens_ + num_tokens * uses > kMaxTokens) return false;
  if (limit_bytes_ <= kTinyBytes) return true;
  if (memory_bytes() + automaton_.growth_bytes(num_tokens) > limit_bytes_) return false;
  if (memory_bytes() <= last_limit(limit_bytes_)) return true;
  make_holes(num_tokens);
  return has_holes(num_tokens);
}

void SuffixIndex::learn(Live& live, std::span<const std::int32_t> tokens) {
  if (marks_begins_ && live.text.size() == 0) mark_begin(live);
  live_text_bytes_ -= live.text.memory_bytes();
  live.text.append(tokens);
  live_text_bytes_ += live.text.memory_bytes();
  num_tokens_ += tokens.size() * live.uses;
  live.tail = automaton_.settle(live.tail);
  automaton_.unmark_end(live.tail, live.uses);
  live.tail = automaton_.append(live.tail, tokens, live.uses, live.origin);
  automaton_.mark_end(live.tail, live.uses);
}

void SuffixIndex::mark_begin(Live& live) {
  live.tail = automaton_.append({}, {&kBeginToken, 1}, live.uses, live.origin);
  automaton_.mark_end(live.tail, live.uses);
}

void SuffixIndex::close(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  Live& live = live_[slot];
  const bool is_kept = change_or_clear([&] {
    if (live.text.size() > 0) texts_.put(live.text.span(), live.uses);
    if (live.has_rest) texts_.owned_by(slot)->owner = Text::kNoOwner;
  });
  if (!is_kept || (live.text.size() == 0 && !live.has_rest)) num_sequences_ -= live.uses;
  release(slot);
}

void SuffixIndex::remove(SequenceId id) {
  while (!remove_piece(id)) {
  }
}

bool SuffixIndex::remove_piece(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  change_or_clear([&] {
    stop_learning(slot);
    if (live_[slot].has_rest) retract_piece(*texts_.owned_by(slot));
  });
  if (live_[slot].has_rest) return false;
  num_sequences_ -= live_[slot].uses;
  release(slot);
  return true;
}

// An index at its limit may have learned only the first pieces of an output.
bool SuffixIndex::forget_piece(std::span<const std::int32_t> tokens) {
  texts_.set_apart(tokens, kPieceTokens);
  Text* rest = texts_.find_rest(tokens);
  return rest != nullptr && change_or_clear([&] { retract_piece(*rest); });
}

void SuffixIndex::stop(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  change_or_clear([&] { stop_learning(slot); });
}

// The learned tokens become the oldest text, so they are evicted first.
void SuffixIndex::stop_learning(std::uint32_t slot) {
  Live& live = live_[slot];
  if (live.is_learned && live.text.size() > 0) {
    texts_.put_oldest(live.text.span(), slot, live.uses);
    live.has_rest = true;
  }
  live.is_learned = false;
  release_text(live);
}

void SuffixIndex::release_text(Live& live) noexcept {
  live_text_bytes_ -= live.text.memory_bytes();
  live.text.release();
  live.tail = {};
}

void SuffixIndex::release(std::uint32_t slot) noexcept {
  release_text(live_[slot]);
  live_[slot] = Live{};
  slots_.release(slot);
  while (live_.size() > slots_.end()) live_.pop_back();
}

void SuffixIndex::clear() noexcept {
  automaton_.clear();
  texts_.clear();
  for (Live& live : live_) {
    release_text(live);
    live.is_learned = false;
    live.has_rest = false;
  }
  num_sequences_ = num_live();
  num_tokens_ = live_text_bytes_ = 0;
}

// Removes some tokens at the end of a text from the automaton, and its begin mark with the first one. Returns
// the work done.
std::size_t SuffixIndex::retract_piece(Text& text) {
  thread_local std::vector<std::int32_t> end;
  const std::size_t piece = std::clamp<std::size_t>((1u << 15) / automaton_.depth(), 32, kPieceTokens);
  const std::size_t num_gone = std::min<std::size_t>(text.size, piece);
  const std::size_t num_left = text.size - num_gone;
  const std::size_t num_before = std::min<std::size_t>(num_left, automaton_.depth() - 1);
  const std::size_t num_marks = marks_begins_ && num_left == num_before ? 1 : 0;
  end.assign(num_marks + num_before + num_gone, kBeginToken);
  text.read(num_left - num_before, std::span(end).subspan(num_marks));
  const std::size_t num_kept = num_left == 0 ? 0 : num_marks + num_before;
  const std::span<const std::int32_t> tokens = end;
  std::size_t work = automaton_.retract(match(tokens.first(num_kept)), tokens.subspan(num_kept), text.uses);
  num_tokens_ -= num_gone * text.uses;
  if (num_left == 0 && text.owner != Text::kNoOwner) live_[text.owner].has_rest = false;
  if (num_left == 0 && text.owner == Text::kNoOwner) num_sequences_ -= text.uses;
  work += texts_.cut(&text, static_cast<std::uint32_t>(num_left)) * kWorkPerMove;
  return work + num_before + kWorkPerPiece;
}

// ---- budget -------------------------------------------------------------------------------------------

// Returns the work done, or 0 if there was nothing to evict.
std::size_t SuffixIndex::evict_piece() {
  if (texts_.oldest() == nullptr && !stop_longest()) return 0;
  return retract_piece(*texts_.oldest());
}

bool SuffixIndex::stop_longest() {
  const auto longest = std::max_element(
      live_.begin(), live_.end(), [](const Live& a, const Live& b) { return a.text.size() < b.text.size(); });
  if (longest == live_.end() || longest->text.size() == 0) return false;
  stop_learning(static_cast<std::uint32_t>(longest - live_.begin()));
  return true;
}

std::size_t SuffixIndex::evict_some(std::size_t max_work, std::size_t target_bytes) {
  std::size_t work = 0;
  while (work < max_work && used_bytes() > target_bytes) {
    const std::size_t more = evict_piece();
    if (more == 0) break;
    work += more;
  }
  return work;
}

std::size_t SuffixIndex::evict(std::size_t num_tokens) {
  const std::size_t before = num_tokens_;
  change_or_clear([&] {
    while (before - num_tokens_ < num_tokens && evict_piece() > 0) {
    }
  });
  return before - num_tokens_;
}

std::size_t SuffixIndex::shrink_towards(std::size_t limit_bytes, std::size_t num_changed,
                                        std::size_t max_work) {
  std::size_t work = max_work;
  change_or_clear([&] { work = evict_and_compact(limit_bytes, num_changed, max_work); });
  return work;
}

// Evicts more the nearer the index is to the budget.
std::size_t SuffixIndex::evict_and_compact(std::size_t limit_bytes, std::size_t num_changed,
                                           std::size_t max_work) {
  const std::size_t target_bytes = limit_bytes - limit_bytes / 8;
  const std::size_t used = used_bytes();
  std::size_t work = 0;
  if (used > target_bytes) {
    const std::size_t urgency = 2 + 30 * (used - target_bytes) / (limit_bytes / 8 + 1);
    work = evict_some(std::min(num_changed * urgency * kWorkPerToken, max_work), target_bytes);
  }
  if (work < max_work && (automaton_.is_compacting() || needs_compaction(limit_bytes))) {
    const std::size_t num_states = std::min(num_changed * 16, max_work - work);
    compact_some(num_states);
    work += num_states;
  }
  return work;
}

void SuffixIndex::enforce_incrementally(std::size_t num_changed) {
  shrink_towards(limit_bytes_, num_changed, kMostWork);
  if (memory_bytes() > limit_bytes_) enforce(limit_bytes_);
}

bool SuffixIndex::has_holes(std::size_t num_tokens) const {
  return hole_bytes() >= num_tokens * kBytesPerToken && automaton_.growth_bytes(num_tokens) == 0;
}

std::size_t SuffixIndex::make_holes(std::size_t num_tokens) {
  std::size_t work = 0;
  change_or_clear([&] {
    while (hole_bytes() < num_tokens * kBytesPerToken && work < 2 * num_tokens * kWorkPerToken) {
      const std::size_t more = evict_piece();
      if (more == 0) break;
      work += more;
    }
  });
  return work;
}

// True once holes take a fifth of the memory, or earlier if the arrays might outgrow the budget.
bool SuffixIndex::needs_compaction(std::size_t limit_bytes) const {
  const bool is_tight = memory_bytes() > limit_bytes - limit_bytes / 16;
  return automaton_.is_fragmented() || (is_tight && hole_bytes() > limit_bytes / 32);
}

void SuffixIndex::compact_some(std::size_t num_states) {
  automaton_.compact_some(num_states, [this] {
    for (Live& live : live_) live.tail = automaton_.settle(live.tail);
  });
}

void SuffixIndex::enforce(std::size_t limit_bytes) {
  change_or_clear([&] {
    for (std::size_t target = limit_bytes; memory_bytes() > limit_bytes; target -= target / 8) {
      evict_some(~std::size_t{0}, target);
      do {
        compact_some(automaton_.num_states());
      } while (automaton_.is_compacting());
      automaton_.trim();
      if (num_tokens_ == 0) return;
    }
  });
}

// ---- reading ------------------------------------------------------------------------------------------

bool SuffixIndex::is_live(SequenceId id) const {
  const auto slot = static_cast<std::uint32_t>(id);
  return slot < slots_.end() && slots_.is_used(slot) && live_[slot].serial == id >> 32;
}

Cursor SuffixIndex::match(std::span<const std::int32_t> tokens) const {
  Cursor cursor;
  const std::size_t longest = automaton_.depth() - 1;
  if (tokens.size() > longest) tokens = tokens.last(longest);
  for (const std::int32_t token : tokens) cursor = automaton_.advance(cursor, token);
  return cursor;
}

std::uint32_t SuffixIndex::count(std::span<const std::int32_t> tokens) const {
  if (tokens.size() > automaton_.depth()) {
    throw TokenError("strings of up to " + std::to_string(automaton_.depth()) +
                     " tokens are counted, not of " + std::to_string(tokens.size()));
  }
  if (tokens.empty()) return static_cast<std::uint32_t>(num_tokens_);
  const StateId id = automaton_.locate(tokens);
  return id == kNoState ? 0 : automaton_.count(id);
}

void SuffixIndex::read(Outputs& outputs) {
  for (std::size_t num_read = 0; num_read < kReadTokens;) {
    const Text* text = texts_.read_next();
    if (text == nullptr) return;
    const std::size_t begin = outputs.tokens.size();
    outputs.tokens.resize(begin + text->size);
    text->read(0, std::span(outputs.tokens).subspan(begin));
    outputs.sizes.push_back(text->size);
    outputs.uses.push_back(text->uses);
    num_read += kReadPerText + text->size;
  }
}

std::size_t SuffixIndex::memory_bytes() const {
  return sizeof(*this) + automaton_.memory_bytes() + texts_.memory_bytes() + slots_.memory_bytes() +
         live_.capacity() * sizeof(Live) + live_text_bytes_;
}

std::size_t SuffixIndex::used_bytes() const {
  return sizeof(*this) + automaton_.used_bytes() + texts_.memory_bytes() + slots_.memory_bytes() +
         live_.capacity() * sizeof(Live) + live_text_bytes_;
}

void SuffixIndex::check_integrity() const {
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<std::span<const std::int32_t>> views;
  std::vector<Cursor> tails;
  std::size_t num_tokens = 0;
  std::size_t num_sequences = num_live();
  std::size_t live_text_bytes = 0;
  const auto mark = [&](std::span<const std::int32_t> text) {
    texts.emplace_back(marks_begins_ ? 1 : 0, kBeginToken);
    texts.back().insert(texts.back().end(), text.begin(), text.end());
  };
  const auto add = [&](const std::vector<std::int32_t>& marked, Cursor tail) {
    views.push_back(marked);
    tails.push_back(tail);
    num_tokens += marked.size() - (marks_begins_ ? 1 : 0);
  };
  for (const Live& live : live_) {
    live_text_bytes += live.text.memory_bytes();
    if (live.text.size() > 0) mark(live.text.span());
    for (std::uint32_t use = 0; live.text.size() > 0 && use < live.uses; ++use) add(texts.back(), live.tail);
    if (live.text.size() > 0 && !live.is_learned) throw IntegrityError("a text is kept that is not learned");
  }
  for (const Text* text = texts_.oldest(); text != nullptr; text = text->newer) {
    if (text->owner == Text::kNoOwner) num_sequences += text->uses;
    if (text->owner != Text::kNoOwner && !live_[text->owner].has_rest)
      throw IntegrityError("a text has the wrong owner");
    std::vector<std::int32_t> tokens(text->size);
    text->read(0, tokens);
    mark(tokens);
    for (std::uint32_t use = 0; use < text->uses; ++use) add(texts.back(), match(texts.back()));
  }
  if (num_tokens != num_tokens_ || live_text_bytes != live_text_bytes_ || num_sequences != num_sequences_)
    throw IntegrityError("texts are miscounted");
  automaton_.check_integrity(views, tails);
}

// Number of live sequences, each counted `uses` times.
std::size_t SuffixIndex::num_live() const noexcept {
  std::size_t number = 0;
  for (std::uint32_t slot = 0; slot < slots_.end(); ++slot) {
    if (slots_.is_used(slot)) number += live_[slot].uses;
  }
  return number;
}

std::uint32_t SuffixIndex::slot_of(SequenceId id) const {
  if (!is_live(id)) throw UnknownIdError("no live sequence has the id " + std::to_string(id));
  return static_cast<std::uint32_t>(id);
}

}  // namespace agentspec
