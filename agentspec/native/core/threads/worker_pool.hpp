// Threads that share the tasks of one call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace agentspec {

/// run() is called by one thread at a time, which takes part; others join in as soon as they are awake, and
/// nobody waits for one that is not. They start with the first run(), and stay awake for some microseconds
/// after each, since a step has several.
class WorkerPool {
 public:
  static constexpr std::size_t kMostThreads = 64;

  /// Throws ConfigError.
  explicit WorkerPool(std::size_t num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  std::size_t num_threads() const { return num_threads_; }
  /// Tells sleeping threads that a run is near, so that they are awake when it comes.
  void wake();
  /// Tells them that none is: a thread that waits awake slows down the one it shares a core with.
  void rest() { is_resting_.store(true, std::memory_order_relaxed); }
  /// Calls task(i, thread) once for every i < num_tasks, on any thread < num_threads(): the caller begins
  /// with the first, the others with the last, so that from run to run most tasks stay with the thread whose
  /// caches know them. Rethrows the first exception when all are done.
  void run(std::size_t num_tasks, const std::function<void(std::size_t, std::size_t)>& task);

 private:
  void work(std::size_t thread);
  void take_tasks(std::size_t thread);
  std::optional<std::size_t> next_task(bool is_first);
  bool join_run(std::uint64_t& seen);
  void start_threads();

  const std::size_t num_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards what follows, as far as it is not atomic; task and error also by who is busy
  std::condition_variable changed_;
  std::atomic<std::uint64_t> num_runs_ = 0;
  std::uint64_t num_wakes_ = 0;
  std::atomic<bool> is_resting_ = false;  // nobody has to wait awake
  bool is_open_ = false;                  // the run can be joined
  bool is_stopping_ = false;
  std::atomic<std::size_t> num_busy_ = 0;      // threads that have joined the run
  std::atomic<std::uint64_t> tasks_left_ = 0;  // the first one, and in the upper half the end
  const std::function<void(std::size_t, std::size_t)>* task_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace agentspec
