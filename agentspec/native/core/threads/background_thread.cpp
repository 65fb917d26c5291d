#include "core/threads/background_thread.hpp"

#include <system_error>
#include <utility>

namespace agentspec {

BackgroundThread::~BackgroundThread() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool BackgroundThread::start() {
  const std::lock_guard lock(mutex_);
  return start_locked();
}

bool BackgroundThread::start_locked() {
  if (thread_.joinable()) return true;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void BackgroundThread::submit(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  if (!start_locked()) {
    lock.unlock();
    return job();
  }
  jobs_.push_back(std::move(job));
  lock.unlock();
  changed_.notify_all();
}

void BackgroundThread::submit_idly(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) {
    lock.unlock();
    return job();
  }
  idle_jobs_.push_back(std::move(job));
}

void BackgroundThread::work() {
  while (const std::function<void()> job = next_job()) {
    try {
      job();
    } catch (...) {  // the next job may succeed; a job has to catch its own errors
    }
  }
}

// Waits for a job. Returns none if the thread is stopping.
std::function<void()> BackgroundThread::next_job() {
  std::unique_lock lock(mutex_);
  if (jobs_.empty() && idle_jobs_.empty()) {
    changed_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
  }
  if (is_stopping_) return nullptr;
  auto& queue = jobs_.empty() ? idle_jobs_ : jobs_;
  std::function<void()> job = std::move(queue.front());
  queue.pop_front();
  return job;
}

}  // namespace agentspec
