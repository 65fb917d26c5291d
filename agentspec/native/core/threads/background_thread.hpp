// A thread that runs jobs in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace agentspec {

/// Starts with the first job, or before. The destructor waits for the running job and drops the others. A
/// job's exception is lost.
class BackgroundThread {
 public:
  BackgroundThread() = default;
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  /// Starts the thread, if it has not started. Returns false if the system can't start one.
  bool start();
  /// Queues the job, or runs it in the calling thread if the system can't start a thread.
  void submit(std::function<void()> job);
  /// Queues a job that can wait for the next submit(): it does not wake the thread, and runs after all other
  /// jobs. Runs it in the calling thread if the thread has not started.
  void submit_idly(std::function<void()> job);

 private:
  void work();
  std::function<void()> next_job();
  bool start_locked();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::deque<std::function<void()>> idle_jobs_;
  std::thread thread_;
  bool is_stopping_ = false;
};

}  // namespace agentspec
