// Builds requests' own indices, in pieces and outside the forest's lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <span>

#include "core/forest/memory_budget.hpp"
#include "core/forest/request.hpp"
#include "core/threads/background_thread.hpp"
#include "core/threads/fair_mutex.hpp"

namespace agentspec {

/// Thread-safe: takes the forest's lock for each piece, to count it in the budget. After any failure a
/// request continues without its own index. The destructor waits for the index in progress.
class OwnIndexBuilder {
 public:
  /// `own_changed` is notified when an index is ready or abandoned.
  OwnIndexBuilder(FairMutex& mutex, std::condition_variable_any& own_changed, MemoryBudget& budget)
      : mutex_(mutex), own_changed_(own_changed), budget_(budget) {}

  /// Builds the index from the texts. O(tokens * chain).
  void build(Request& request, std::span<const std::int32_t> prediction,
             std::span<const std::int32_t> prompt);
  /// Builds the index of a queued request in the background. O(1).
  void build_in_background(const std::shared_ptr<Request>& request);
  /// Frees a finished request in the background. `bytes`: its memory; a small one waits for the next build.
  void discard(std::shared_ptr<Request> request, std::size_t bytes) noexcept;
  void start_thread() { thread_.start(); }

 private:
  void build_queued(const std::shared_ptr<Request>& request);
  bool begin(Request& request);
  bool append_pieces(Request& request, std::span<const std::int32_t> tokens);
  void give_up(Request& request);
  void end(Request& request);

  FairMutex& mutex_;
  std::condition_variable_any& own_changed_;
  MemoryBudget& budget_;
  std::atomic<std::size_t> discarded_bytes_ = 0;  // that wait for the next build
  BackgroundThread thread_;                       // the last member: the thread uses the others
};

}  // namespace agentspec
