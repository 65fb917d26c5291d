// A mutex that is acquired in order of request (a ticket lock).
#pragma once

#include <atomic>
#include <cstdint>

namespace agentspec {

/// A thread takes a ticket and waits for its turn, so a thread that locks again right after unlock() queues
/// behind all waiting threads. Long work done in pieces, each under the lock, delays a decode step by one
/// piece per such thread.
class FairMutex {
 public:
  void lock() {
    const std::uint32_t number = num_asked_.fetch_add(1, std::memory_order_relaxed);
    for (std::uint32_t turn = turn_.load(std::memory_order_acquire); turn != number;
         turn = turn_.load(std::memory_order_acquire)) {
      turn_.wait(turn, std::memory_order_acquire);
    }
  }
  void unlock() {
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();  // each waits for a different turn: only sleeping threads need it
  }

  /// Number of threads that hold the lock or wait for it, at some moment during the call.
  std::uint32_t num_inside() const {
    const std::uint32_t turn = turn_.load(std::memory_order_acquire);
    return num_asked_.load(std::memory_order_acquire) - turn;
  }

 private:
  std::atomic<std::uint32_t> num_asked_ = 0;
  std::atomic<std::uint32_t> turn_ = 0;
};

}  // namespace agentspec
