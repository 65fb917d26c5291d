#include "core/suffix_index.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "core/error.hpp"

namespace agentspec {

SuffixIndex::SuffixIndex(std::uint32_t depth, std::size_t limit_bytes)
    : automaton_(depth), limit_bytes_(limit_bytes) {}

// False if memory ran out: what is half done is of no use, and is forgotten with all the rest.
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

SequenceId SuffixIndex::open() {
  if (slots_.num_used() >= Automaton::kMaxEnds) throw CapacityError("the index holds too many sequences");
  if (slots_.num_used() == sequences_.size()) sequences_.push_back(Sequence{});  // first: either may fail
  const std::uint32_t slot = slots_.acquire();
  sequences_[slot] = Sequence{};
  sequences_[slot].serial = num_opened_++;
  return (static_cast<SequenceId>(sequences_[slot].serial) << 32) | slot;
}

bool SuffixIndex::append(SequenceId id, std::span<const std::int32_t> tokens) {
  const std::uint32_t slot = slot_of(id);
  if (sequences_[slot].status == Status::kFinished)
    throw UnknownIdError("sequence " + std::to_string(id) + " is finished");
  if (sequences_[slot].status == Status::kMuted) return false;
  if (tokens.empty()) return true;
  return change_or_clear([&] { learn(sequences_[slot], tokens); });
}

void SuffixIndex::learn(Sequence& sequence, std::span<const std::int32_t> tokens) {
  if (sequence.text == kNone) {
    if (free_live_texts_.empty()) {
      free_live_texts_.push_back(static_cast<std::uint32_t>(live_texts_.size()));
      live_texts_.emplace_back();
    }
    sequence.text = free_live_texts_.back();
    free_live_texts_.pop_back();
  }
  PodArray<std::int32_t>& text = live_texts_[sequence.text];
  live_text_bytes_ -= text.memory_bytes();
  text.append(tokens);
  live_text_bytes_ += text.memory_bytes();
  sequence.size += static_cast<std::uint32_t>(tokens.size());
  num_tokens_ += tokens.size();
  Cursor tail = automaton_.settle(sequence.tail);
  automaton_.unmark_end(tail);
  for (const std::int32_t token : tokens) tail = automaton_.extend(tail, token);
  automaton_.mark_end(tail);
  sequence.tail = tail;
}

void SuffixIndex::close(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  if (sequences_[slot].status == Status::kFinished) return;
  if (sequences_[slot].status == Status::kLive && sequences_[slot].size > 0) {
    change_or_clear([&] {
      store(slot);
      link_newest(slot);
    });
  }
  if (sequences_[slot].size == 0) return release(slot);
  sequences_[slot].status = Status::kFinished;
}

void SuffixIndex::remove(SequenceId id) {
  while (!remove_piece(id)) {
  }
}

bool SuffixIndex::remove_piece(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  change_or_clear([&] {
    mute(slot);
    if (sequences_[slot].size > 0) retract_piece(slot);
  });
  if (!is_known(id)) return true;  // forgotten with all that was finished
  if (sequences_[slot].size > 0) return false;
  release(slot);
  return true;
}

void SuffixIndex::stop(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  change_or_clear([&] { mute(slot); });
}

void SuffixIndex::clear() noexcept {
  automaton_.clear();
  texts_ = TextStore();
  live_texts_.clear();
  free_live_texts_.clear();
  live_text_bytes_ = num_tokens_ = 0;
  oldest_ = newest_ = kNone;
  for (std::uint32_t slot = slots_.end(); slot-- > 0;) {
    if (!slots_.is_used(slot)) continue;
    Sequence& sequence = sequences_[slot];
    const bool is_finished = sequence.status == Status::kFinished;
    const std::uint32_t serial = sequence.serial;
    sequence = Sequence{};
    sequence.serial = serial;
    sequence.status = Status::kMuted;
    if (is_finished) release(slot);
  }
}

// A live sequence is not learned any more; what was learned goes first.
void SuffixIndex::mute(std::uint32_t slot) {
  if (sequences_[slot].status != Status::kLive) return;
  sequences_[slot].status = Status::kMuted;
  if (sequences_[slot].size == 0) return;
  store(slot);
  link_oldest(slot);
}

// Packs the text of a live sequence away; nothing is appended to it any more.
void SuffixIndex::store(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  const std::uint32_t live = sequence.text;
  sequence.text = texts_.put(live_texts_[live].span());
  sequence.tail = {};
  live_text_bytes_ -= live_texts_[live].memory_bytes();
  live_texts_[live].release();
  free_live_texts_.push_back(live);
}

// Takes the last tokens of a sequence that is not live out of the automaton.
void SuffixIndex::retract_piece(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  const std::size_t num_gone = std::min<std::size_t>(sequence.size, kPieceTokens);
  const std::size_t num_before = std::min<std::size_t>(sequence.size - num_gone, automaton_.depth() - 1);
  piece_.resize(num_before + num_gone);
  texts_.read(sequence.text, sequence.size - piece_.size(), piece_);
  const std::span<const std::int32_t> tokens = piece_;
  automaton_.retract(match(tokens.first(num_before)), tokens.last(num_gone));
  num_tokens_ -= num_gone;
  sequence.size -= static_cast<std::uint32_t>(num_gone);
  if (sequence.size > 0) return;
  unlink(slot);
  texts_.drop(sequence.text);
}

void SuffixIndex::release(std::uint32_t slot) {
  slots_.release(slot);
  sequences_.truncate(slots_.end());
}

void SuffixIndex::link_newest(std::uint32_t slot) {
  sequences_[slot].older = newest_;
  (newest_ == kNone ? oldest_ : sequences_[newest_].newer) = slot;
  newest_ = slot;
}

void SuffixIndex::link_oldest(std::uint32_t slot) {
  sequences_[slot].newer = oldest_;
  (oldest_ == kNone ? newest_ : sequences_[oldest_].older) = slot;
  oldest_ = slot;
}

void SuffixIndex::unlink(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  (sequence.older == kNone ? oldest_ : sequences_[sequence.older].newer) = sequence.newer;
  (sequence.newer == kNone ? newest_ : sequences_[sequence.newer].older) = sequence.older;
  sequence.older = sequence.newer = kNone;
}

// ---- budget -------------------------------------------------------------------------------------------

bool SuffixIndex::evict_piece() {
  if (oldest_ == kNone && !mute_longest()) return false;
  const std::uint32_t slot = oldest_;
  retract_piece(slot);
  if (sequences_[slot].size == 0 && sequences_[slot].status == Status::kFinished) release(slot);
  return true;
}

bool SuffixIndex::mute_longest() {
  std::uint32_t longest = kNone;
  for (std::uint32_t slot = 0; slot < slots_.end(); ++slot) {
    if (!slots_.is_used(slot)) continue;
    if (sequences_[slot].size > (longest == kNone ? 0 : sequences_[longest].size)) longest = slot;
  }
  if (longest == kNone) return false;
  mute(longest);
  return true;
}

std::size_t SuffixIndex::approach(std::size_t limit_bytes, std::size_t num_changed, std::size_t max_work) {
  std::size_t work = max_work;
  change_or_clear([&] { work = evict_and_compact(limit_bytes, num_changed, max_work); });
  return work;
}

// The harder, the nearer the budget is.
std::size_t SuffixIndex::evict_and_compact(std::size_t limit_bytes, std::size_t num_changed,
                                           std::size_t max_work) {
  const std::size_t target_bytes = limit_bytes - limit_bytes / 8;
  const std::size_t used = used_bytes();
  std::size_t work = 0;
  if (used > target_bytes) {
    const std::size_t urgency = 2 + 30 * (used - target_bytes) / (limit_bytes / 8 + 1);
    work =
        evict_some(std::min(num_changed * urgency, max_work / kWorkPerToken), target_bytes) * kWorkPerToken;
  }
  if (work < max_work && (automaton_.is_compacting() || needs_compaction(limit_bytes))) {
    const std::size_t num_states = std::min(num_changed * 16, max_work - work);
    compact_some(num_states);
    work += num_states;
  }
  return work;
}

void SuffixIndex::uphold(std::size_t num_changed) {
  approach(limit_bytes_, num_changed, kMostWork);
  if (memory_bytes() > limit_bytes_) enforce(limit_bytes_);
}

std::size_t SuffixIndex::evict_some(std::size_t num_tokens, std::size_t target_bytes) {
  std::size_t evicted = 0;
  while (evicted < num_tokens && used_bytes() > target_bytes && evict_piece()) evicted += kPieceTokens;
  return evicted;
}

bool SuffixIndex::make_holes(std::size_t num_tokens) {
  const std::size_t wanted = num_tokens * kBytesPerToken;
  for (std::size_t evicted = 0; hole_bytes() < wanted && evicted < 4 * num_tokens && evict_piece();) {
    evicted += kPieceTokens;
  }
  return hole_bytes() >= wanted;
}

// Holes are closed once they are a fifth of the memory, or before the arrays outgrow the budget.
bool SuffixIndex::needs_compaction(std::size_t limit_bytes) const {
  const bool is_tight = memory_bytes() > limit_bytes - limit_bytes / 16;
  return automaton_.is_fragmented() || (is_tight && hole_bytes() > limit_bytes / 32);
}

void SuffixIndex::compact_some(std::size_t num_states) {
  automaton_.compact_some(num_states, [this] {
    for (std::uint32_t slot = 0; slot < slots_.end(); ++slot) {
      if (slots_.is_used(slot)) sequences_[slot].tail = automaton_.settle(sequences_[slot].tail);
    }
  });
}

void SuffixIndex::enforce(std::size_t limit_bytes) {
  change_or_clear([&] {
    for (std::size_t target = limit_bytes; memory_bytes() > limit_bytes; target -= target / 8) {
      evict_some(num_tokens_, target);
      do {
        compact_some(automaton_.num_states());
      } while (automaton_.is_compacting());
      trim();
      if (num_tokens_ == 0) return;
    }
  });
}

void SuffixIndex::trim() {
  automaton_.trim();
  sequences_.shrink_to_fit();
  slots_.trim();
}

// ---- reading ------------------------------------------------------------------------------------------

bool SuffixIndex::is_known(SequenceId id) const {
  const auto slot = static_cast<std::uint32_t>(id);
  return slot < slots_.end() && slots_.is_used(slot) && sequences_[slot].serial == id >> 32;
}

bool SuffixIndex::is_learned(SequenceId id) const {
  return is_known(id) && sequences_[slot_of(id)].status != Status::kMuted;
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

std::size_t SuffixIndex::memory_bytes() const {
  return sizeof(*this) + automaton_.memory_bytes() + texts_.memory_bytes() + sequences_.memory_bytes() +
         slots_.memory_bytes() + live_text_bytes_ + live_texts_.capacity() * sizeof(PodArray<std::int32_t>) +
         free_live_texts_.capacity() * sizeof(std::uint32_t);
}

std::size_t SuffixIndex::used_bytes() const {
  return sizeof(*this) + automaton_.used_bytes() + texts_.used_bytes() + live_text_bytes_ +
         slots_.num_used() * sizeof(Sequence);
}

void SuffixIndex::check_integrity() const {
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<std::span<const std::int32_t>> views;
  std::vector<Cursor> tails;
  std::size_t num_tokens = 0;
  std::size_t live_text_bytes = 0;
  std::size_t num_stored = 0;
  for (const PodArray<std::int32_t>& text : live_texts_) live_text_bytes += text.memory_bytes();
  for (std::uint32_t slot = 0; slot < slots_.end(); ++slot) {
    const Sequence& sequence = sequences_[slot];
    if (!slots_.is_used(slot) || sequence.size == 0) continue;
    num_tokens += sequence.size;
    std::vector<std::int32_t> text(sequence.size);
    if (sequence.status == Status::kLive) {
      std::copy_n(live_texts_[sequence.text].data(), text.size(), text.begin());
      tails.push_back(sequence.tail);
    } else {
      ++num_stored;
      texts_.read(sequence.text, 0, text);
      tails.push_back(match(text));
    }
    texts.push_back(std::move(text));
  }
  for (const auto& text : texts) views.emplace_back(text);
  if (num_tokens != num_tokens_ || live_text_bytes != live_text_bytes_)
    throw IntegrityError("texts are miscounted");
  for (std::uint32_t slot = oldest_; slot != kNone; slot = sequences_[slot].newer) --num_stored;
  if (num_stored != 0) throw IntegrityError("the list of stored sequences is wrong");
  automaton_.check_integrity(views, tails);
}

std::uint32_t SuffixIndex::slot_of(SequenceId id) const {
  if (!is_known(id)) throw UnknownIdError("no sequence has the id " + std::to_string(id));
  return static_cast<std::uint32_t>(id);
}

}  // namespace agentspec
