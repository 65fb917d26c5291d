// A pool of threads that share the tasks of one call.
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

/// One thread at a time calls run() and takes part. The others join as soon as they are awake; run() does not
/// wait for sleeping ones. They start with the first run(), or before, and stay awake for some microseconds
/// after each, because a step has several.
class WorkerPool {
 public:
  static constexpr std::size_t kMostThreads = 64;

  /// Throws ConfigError.
  explicit WorkerPool(std::size_t num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  std::size_t num_threads() const { return num_threads_; }
  /// Starts the threads, as many as the system can start. Not while another thread is in run().
  void start_threads();
  /// Wakes sleeping threads before a run.
  void wake();
  /// Lets them sleep: a thread that spins slows down the thread that shares its core.
  void rest() { is_resting_.store(true, std::memory_order_relaxed); }
  /// Calls task(i, thread) once for every i < num_tasks, on any thread < num_threads(). The caller begins
  /// with the first task, the others with the last, so that most tasks stay with the thread that has them
  /// cached. Rethrows the first exception when all are done.
  void run(std::size_t num_tasks, const std::function<void(std::size_t, std::size_t)>& task);

 private:
  void work(std::size_t thread);
  void take_tasks(std::size_t thread);
  std::optional<std::size_t> next_task(bool is_first);
  bool join_run(std::uint64_t& seen);

  const std::size_t num_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards the non-atomic members below; busy threads also read task_ and error_
  std::condition_variable changed_;
  std::atomic<std::uint64_t> num_runs_ = 0;
  std::uint64_t num_wakes_ = 0;
  std::atomic<bool> is_resting_ = false;  // true if no thread has to spin
  bool is_open_ = false;                  // the run can be joined
  bool is_stopping_ = false;
  std::atomic<std::size_t> num_busy_ = 0;      // threads that have joined the run
  std::atomic<std::uint64_t> tasks_left_ = 0;  // lower half: the first one; upper half: the end
  const std::function<void(std::size_t, std::size_t)>* task_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace agentspec
