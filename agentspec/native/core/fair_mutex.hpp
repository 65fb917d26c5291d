// A mutex that a thread which takes it again and again can't keep from others.
#pragma once

#include <mutex>

namespace agentspec {

/// Whoever waits holds the entrance, so a thread that comes back right after unlock() queues behind it: long
/// work done in pieces, each under the lock, delays a decode step by one piece.
class FairMutex {
 public:
  void lock() {
    const std::lock_guard waiting(entrance_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex entrance_;
  std::mutex mutex_;
};

}  // namespace agentspec
