#include "core/threads/worker_pool.hpp"

#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr int kSpins = 12000;  // some hundred microseconds: from wake() to run(), and between two runs

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

WorkerPool::WorkerPool(std::size_t num_threads) : num_threads_(num_threads) {
  if (num_threads < 1 || num_threads > kMostThreads) {
    throw ConfigError("threads must be between 1 and " + std::to_string(kMostThreads) + ", not " +
                      std::to_string(num_threads));
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    ++num_runs_;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(std::size_t num_tasks, const std::function<void(std::size_t, std::size_t)>& task) {
  if (num_threads_ == 1 || num_tasks < 2) {
    for (std::size_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  start_threads();
  {
    const std::lock_guard lock(mutex_);
    task_ = &task;
    tasks_left_ = std::uint64_t{num_tasks} << 32;
    error_ = nullptr;
    is_open_ = true;
    ++num_runs_;
  }
  changed_.notify_all();
  take_tasks(0);
  {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  for (int spin = 0; num_busy_.load(std::memory_order_acquire) > 0; ++spin) {
    spin < kSpins ? relax() : std::this_thread::yield();
  }
  if (error_) std::rethrow_exception(error_);
}

void WorkerPool::wake() {
  if (num_threads_ == 1) return;
  {
    const std::lock_guard lock(mutex_);
    ++num_wakes_;
    is_resting_ = false;
  }
  changed_.notify_all();
}

// If the system has no more threads or memory, fewer threads do the work.
void WorkerPool::start_threads() {
  try {
    while (threads_.size() + 1 < num_threads_) {
      threads_.emplace_back([this, thread = threads_.size() + 1] { work(thread); });
    }
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

void WorkerPool::work(std::size_t thread) {
  for (std::uint64_t seen = 0; join_run(seen);) {
    take_tasks(thread);
    num_busy_.fetch_sub(1, std::memory_order_release);
  }
}

void WorkerPool::take_tasks(std::size_t thread) {
  while (const std::optional<std::size_t> i = next_task(thread == 0)) {
    try {
      (*task_)(*i, thread);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

std::optional<std::size_t> WorkerPool::next_task(bool is_first) {
  std::uint64_t left = tasks_left_.load(std::memory_order_relaxed);
  while (true) {
    const std::uint64_t begin = left & 0xFFFFFFFFu;
    const std::uint64_t end = left >> 32;
    if (begin >= end) return std::nullopt;
    const std::uint64_t less = is_first ? left + 1 : left - (std::uint64_t{1} << 32);
    if (tasks_left_.compare_exchange_weak(left, less, std::memory_order_relaxed)) {
      return static_cast<std::size_t>(is_first ? begin : end - 1);
    }
  }
}

// Waits for an open run after `seen`, spinning at first. Returns false if the pool is stopping.
bool WorkerPool::join_run(std::uint64_t& seen) {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::uint64_t wakes = num_wakes_;
    lock.unlock();
    const auto is_awaiting = [&] {
      return num_runs_.load(std::memory_order_acquire) == seen && !is_resting_;
    };
    for (int spin = 0; spin < kSpins && is_awaiting(); ++spin) relax();
    lock.lock();
    const auto is_joinable = [&] { return is_open_ && num_runs_ != seen; };
    changed_.wait(lock, [&] { return is_stopping_ || is_joinable() || num_wakes_ != wakes; });
    if (is_stopping_) return false;
    const bool is_joined = is_joinable();
    seen = num_runs_;  // also if that run is over: wait for the next one
    if (!is_joined) continue;
    num_busy_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
}

}  // namespace agentspec
