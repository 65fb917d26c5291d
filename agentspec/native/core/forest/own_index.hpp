// The index of one live request: its prompt and output as one sequence, and its predicted output as another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/index/automaton.hpp"
#include "core/pod_array.hpp"

namespace agentspec {

/// An index without removal. It is freed as a whole, so it keeps no text. Not thread-safe.
class RequestIndex {
 public:
  explicit RequestIndex(std::uint32_t depth) : automaton_(depth) {}

  /// Starts another sequence for the next append(). O(1).
  void begin_sequence() { tail_ = {}; }
  /// Appends to the current sequence. O(tokens * chain). Throws std::bad_alloc or CapacityError; the index is
  /// unusable afterwards.
  void append(std::span<const std::int32_t> tokens) {
    const Cursor tail = automaton_.settle(tail_);
    automaton_.unmark_end(tail);
    tail_ = automaton_.append(tail, tokens);
    automaton_.mark_end(tail_);
  }

  const Automaton& automaton() const { return automaton_; }
  /// The last min(n, depth - 1) tokens of the current sequence.
  Cursor tail() const { return automaton_.settle(tail_); }
  /// Prefetches the object itself, not the memory it points to.
  void prefetch() const {
    for (std::size_t i = 0; i < sizeof(*this); i += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(this) + i);
    }
  }
  std::size_t memory_bytes() const { return sizeof(*this) + automaton_.memory_bytes(); }

 private:
  Automaton automaton_;
  Cursor tail_;
};

/// Appends to a vector. Returns false if memory runs out.
inline bool try_append(std::vector<std::int32_t>& to, std::span<const std::int32_t> tokens) noexcept {
  try {
    to.insert(to.end(), tokens.begin(), tokens.end());
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// A request's index, from the text that waits for it to its end. Output that arrives before the index is
/// ready waits, too. When memory runs out the request continues without an index. Only its builder uses
/// text() and building(), without the forest's lock; everything else needs the lock.
class OwnIndex {
 public:
  /// What end_build() leaves to be freed, and the number of output tokens that had waited.
  struct Leftovers {
    std::unique_ptr<RequestIndex> index;
    PodArray<std::int32_t> text;
    std::size_t num_pending = 0;
  };

  explicit OwnIndex(std::uint32_t depth) : index_(std::make_unique<RequestIndex>(depth)) {}

  /// True if drafts can be made from it.
  explicit operator bool() const { return state_ == State::kReady && index_ != nullptr; }
  const RequestIndex* operator->() const { return index_.get(); }
  const Automaton& automaton() const { return index_->automaton(); }
  /// The end of the text in it; a cursor of length 0 without an index.
  Cursor tail() const { return *this ? index_->tail() : Cursor{}; }

  bool is_queued() const { return state_ == State::kQueued; }
  bool is_ready() const { return state_ == State::kReady; }
  bool is_dropped() const { return state_ == State::kDropped; }
  bool has_to_come() const { return is_queued() || state_ == State::kBuilding; }
  /// True after an append() for which memory ran out: drop() has to follow.
  bool has_failed() const { return is_ready() && index_ == nullptr; }
  /// Bytes of the index as of the last append().
  std::size_t num_bytes() const { return num_bytes_; }
  /// Bytes of the text that waits.
  std::size_t text_bytes() const { return text_.memory_bytes(); }

  /// Copies the text of an index that is built later. Throws std::bad_alloc.
  void queue(std::span<const std::int32_t> prediction, std::span<const std::int32_t> prompt) {
    text_.reserve(prediction.size() + prompt.size());
    text_.append(prediction);
    text_.append(prompt);
    num_predicted_ = prediction.size();
    state_ = State::kQueued;
  }
  /// The text that was queued: prediction and prompt.
  std::pair<std::span<const std::int32_t>, std::span<const std::int32_t>> text() const {
    return {text_.span().first(num_predicted_), text_.span().subspan(num_predicted_)};
  }
  /// Begins the build of a queued index. Returns false if it is not needed any more.
  bool begin_build() {
    if (!is_queued()) return false;
    state_ = State::kBuilding;
    return true;
  }
  RequestIndex& building() { return *index_; }
  /// Ends the build: the index is ready, and has the output that had waited, unless it is not wanted.
  Leftovers end_build(bool is_wanted) noexcept {
    const std::vector<std::int32_t> pending = std::move(pending_);
    Leftovers left{nullptr, std::move(text_), pending.size()};
    if (is_wanted && !is_dropped()) {
      state_ = State::kReady;
      append(pending);
    } else {
      left.index = std::move(index_);
    }
    return left;
  }
  /// Adds output, or keeps it until the index is ready. O(tokens * chain).
  void append(std::span<const std::int32_t> tokens) noexcept {
    if (has_to_come() && !try_append(pending_, tokens)) state_ = State::kDropped;
    if (!is_ready()) return;
    try {
      index_->append(tokens);
      num_bytes_ = index_->memory_bytes();
    } catch (const std::bad_alloc&) {
      index_.reset();
    } catch (const CapacityError&) {
      index_.reset();
    }
  }
  /// Drops the index, or its text. While it is built, its builder frees it.
  void drop() noexcept {
    if (is_at_rest()) {
      index_.reset();
      text_.release();
    }
    state_ = State::kDropped;
  }
  /// Ends the use of the index without freeing it. Returns the bytes that are to be freed; 0 while it is
  /// built.
  std::size_t retire() noexcept {
    if (!is_at_rest()) return 0;
    state_ = State::kDropped;
    return (index_ == nullptr ? 0 : index_->memory_bytes()) + text_.memory_bytes();
  }

 private:
  enum class State : std::uint8_t {
    kQueued,    // its text waits for the thread that builds in the background
    kBuilding,  // by one thread, outside the lock
    kReady,
    kDropped  // no memory was left for it, or the request is finished
  };

  /// True if no thread works on the index, or on its text, outside the lock.
  bool is_at_rest() const { return is_queued() || is_ready(); }

  std::unique_ptr<RequestIndex> index_;
  State state_ = State::kBuilding;
  PodArray<std::int32_t> text_;  // prediction and prompt
  std::size_t num_predicted_ = 0;
  std::vector<std::int32_t> pending_;  // output from before the index was ready
  std::size_t num_bytes_ = 0;
};

}  // namespace agentspec
