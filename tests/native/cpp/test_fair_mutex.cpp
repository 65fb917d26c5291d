#include "check.hpp"
#include "core/threads/fair_mutex.hpp"

#include <mutex>
#include <thread>

using namespace agentspec;

namespace {

void wait_until_inside(const FairMutex &mutex, std::uint32_t num_threads) {
  while (mutex.num_inside() < num_threads)
    std::this_thread::yield();
}

// Three threads wait while the lock is held. Its holder locks it again
// immediately, and so does each of them.
void turns_come_in_the_order_of_asking() {
  FairMutex mutex;
  std::vector<int> turns;
  mutex.lock();
  std::vector<std::thread> threads;
  for (int name = 1; name <= 3; ++name) {
    threads.emplace_back([&, name] {
      for (int turn = 0; turn < 5; ++turn) {
        const std::lock_guard lock(mutex);
        turns.push_back(name);
        if (turn == 0)
          wait_until_inside(mutex, 4); // the one before waits again by now
      }
    });
    wait_until_inside(mutex, static_cast<std::uint32_t>(name) + 1);
  }
  mutex.unlock();
  mutex.lock();
  CHECK((turns == std::vector<int>{1, 2, 3}));
  mutex.unlock();
  for (std::thread &thread : threads)
    thread.join();
  CHECK(turns.size() == 15 && mutex.num_inside() == 0);
}

void only_one_is_inside() {
  FairMutex mutex;
  int num_turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5000; ++turn) {
        const std::lock_guard lock(mutex);
        ++num_turns;
      }
    });
  }
  for (std::thread &thread : threads)
    thread.join();
  CHECK(num_turns == 4 * 5000);
}

} // namespace

int main() {
  turns_come_in_the_order_of_asking();
  only_one_is_inside();
}
