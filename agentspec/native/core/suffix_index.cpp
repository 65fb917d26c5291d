#include "core/suffix_index.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"

namespace agentspec {

SuffixIndex::SuffixIndex(std::uint32_t depth, std::size_t limit_bytes)
    : automaton_(depth), limit_bytes_(limit_bytes) {}

SequenceId SuffixIndex::open() {
  std::uint32_t slot = free_slot_;
  if (slot == kNone) {
    if (sequences_.size() >= Automaton::kMaxEnds) throw CapacityError("the index holds too many sequences");
    slot = static_cast<std::uint32_t>(sequences_.size());
    sequences_.emplace_back();
  } else {
    free_slot_ = sequences_[slot].newer;
    sequences_[slot].newer = kNone;
  }
  sequences_[slot].status = Status::kLive;
  ++num_live_;
  return (static_cast<SequenceId>(sequences_[slot].generation) << 32) | slot;
}

bool SuffixIndex::append(SequenceId id, std::span<const std::int32_t> tokens) {
  const std::uint32_t slot = slot_of(id);
  Sequence& sequence = sequences_[slot];
  if (sequence.status == Status::kFinished)
    throw UnknownIdError("sequence " + std::to_string(id) + " is finished");
  if (sequence.status == Status::kMuted) return false;
  if (tokens.empty()) return true;
  text_bytes_ -= sequence.text.capacity_bytes();
  sequence.text.append(tokens);
  text_bytes_ += sequence.text.capacity_bytes();
  num_tokens_ += tokens.size();
  Cursor tail = automaton_.settle(sequence.tail);
  automaton_.unmark_end(tail);
  for (const std::int32_t token : tokens) tail = automaton_.extend(tail, token);
  automaton_.mark_end(tail);
  sequence.tail = tail;
  ++version_;
  enforce(limit_bytes_);
  return sequence.status == Status::kLive;
}

void SuffixIndex::close(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  Sequence& sequence = sequences_[slot];
  if (sequence.status == Status::kFinished) return;
  if (sequence.text.size() == 0) return release(slot);
  text_bytes_ -= sequence.text.capacity_bytes();
  sequence.text.shrink_to_fit();
  text_bytes_ += sequence.text.capacity_bytes();
  sequence.status = Status::kFinished;
  sequence.older = newest_;
  if (newest_ != kNone) sequences_[newest_].newer = slot;
  newest_ = slot;
  if (oldest_ == kNone) oldest_ = slot;
  --num_live_;
  ++num_finished_;
}

void SuffixIndex::remove(SequenceId id) {
  const std::uint32_t slot = slot_of(id);
  withdraw(sequences_[slot]);
  release(slot);
}

void SuffixIndex::clear() {
  automaton_ = Automaton(automaton_.depth());
  for (std::uint32_t slot = 0; slot < sequences_.size(); ++slot) {
    Sequence& sequence = sequences_[slot];
    sequence.text.release();
    sequence.tail = {};
    if (sequence.status == Status::kLive) sequence.status = Status::kMuted;
    if (sequence.status == Status::kFinished) release(slot);
  }
  num_tokens_ = 0;
  text_bytes_ = 0;
  ++version_;
}

// Evicts to 85 %, so that free lists serve what comes next and arrays, which grow by an eighth, stay within
// the limit. Only if the mix of states and edges has drifted does the memory have to be moved together.
void SuffixIndex::enforce(std::size_t limit_bytes) {
  const std::size_t target_bytes = limit_bytes - limit_bytes / 20 * 3;
  while (used_bytes() > target_bytes && evict_one()) {
  }
  if (memory_bytes() > limit_bytes) compact();
}

bool SuffixIndex::is_known(SequenceId id) const {
  const std::uint32_t slot = static_cast<std::uint32_t>(id);
  return slot < sequences_.size() && sequences_[slot].generation == id >> 32 &&
         sequences_[slot].status != Status::kFree;
}

Cursor SuffixIndex::tail(SequenceId id) const { return automaton_.settle(sequences_[slot_of(id)].tail); }

bool SuffixIndex::is_learned(SequenceId id) const {
  return is_known(id) && sequences_[slot_of(id)].status != Status::kMuted;
}

std::span<const std::int32_t> SuffixIndex::text(SequenceId id) const {
  return sequences_[slot_of(id)].text.span();
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
  return id == kNoState ? 0 : automaton_.state(id).count;
}

std::size_t SuffixIndex::memory_bytes() const {
  return sizeof(*this) + automaton_.capacity_bytes() + text_bytes_ + sequences_.capacity() * sizeof(Sequence);
}

std::size_t SuffixIndex::used_bytes() const {
  return sizeof(*this) + automaton_.used_bytes() + text_bytes_ + num_sequences() * sizeof(Sequence);
}

void SuffixIndex::check_integrity() const {
  std::vector<std::span<const std::int32_t>> texts;
  std::vector<Cursor> tails;
  std::size_t num_tokens = 0;
  std::size_t text_bytes = 0;
  for (const Sequence& sequence : sequences_) {
    num_tokens += sequence.text.size();
    text_bytes += sequence.text.capacity_bytes();
    if (sequence.text.size() == 0) continue;
    texts.push_back(sequence.text.span());
    tails.push_back(sequence.tail);
  }
  if (num_tokens != num_tokens_ || text_bytes != text_bytes_) throw IntegrityError("texts are miscounted");
  std::size_t num_finished = 0;
  for (std::uint32_t slot = oldest_; slot != kNone; slot = sequences_[slot].newer) ++num_finished;
  if (num_finished != num_finished_) throw IntegrityError("finished sequences are miscounted");
  automaton_.check_integrity(texts, tails);
}

std::uint32_t SuffixIndex::slot_of(SequenceId id) const {
  if (!is_known(id)) throw UnknownIdError("no sequence has the id " + std::to_string(id));
  return static_cast<std::uint32_t>(id);
}

// Takes the text out of the automaton; the sequence itself stays.
void SuffixIndex::withdraw(Sequence& sequence) {
  if (sequence.text.size() == 0) return;
  automaton_.unmark_end(automaton_.settle(sequence.tail));
  automaton_.retract(sequence.text.span());
  num_tokens_ -= sequence.text.size();
  text_bytes_ -= sequence.text.capacity_bytes();
  sequence.text.release();
  sequence.tail = {};
  ++version_;
}

void SuffixIndex::release(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  if (sequence.status == Status::kFinished) {
    unlink(slot);
    --num_finished_;
  } else {
    --num_live_;
  }
  sequence.status = Status::kFree;
  ++sequence.generation;
  sequence.newer = free_slot_;
  free_slot_ = slot;
}

void SuffixIndex::unlink(std::uint32_t slot) {
  Sequence& sequence = sequences_[slot];
  (sequence.older == kNone ? oldest_ : sequences_[sequence.older].newer) = sequence.newer;
  (sequence.newer == kNone ? newest_ : sequences_[sequence.newer].older) = sequence.older;
  sequence.older = sequence.newer = kNone;
}

bool SuffixIndex::evict_one() {
  if (oldest_ != kNone) {
    withdraw(sequences_[oldest_]);
    release(oldest_);
    return true;
  }
  const std::uint32_t slot = longest_live();
  if (slot == kNone) return false;
  withdraw(sequences_[slot]);
  sequences_[slot].status = Status::kMuted;
  return true;
}

std::uint32_t SuffixIndex::longest_live() const {
  std::uint32_t longest = kNone;
  for (std::uint32_t slot = 0; slot < sequences_.size(); ++slot) {
    const std::size_t size = sequences_[slot].text.size();
    if (size > (longest == kNone ? 0 : sequences_[longest].text.size())) longest = slot;
  }
  return longest;
}

void SuffixIndex::compact() {
  for (Sequence& sequence : sequences_) sequence.tail = automaton_.settle(sequence.tail);
  const std::vector<StateId> moved = automaton_.compact();
  text_bytes_ = 0;
  for (Sequence& sequence : sequences_) {
    sequence.tail.state = moved[sequence.tail.state];
    sequence.text.shrink_to_fit();
    text_bytes_ += sequence.text.capacity_bytes();
  }
  ++version_;
}

}  // namespace agentspec
