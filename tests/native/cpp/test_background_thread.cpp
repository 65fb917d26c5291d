#include "check.hpp"
#include "core/threads/background_thread.hpp"

#include <future>
#include <stdexcept>

using namespace agentspec;

namespace {

void jobs_are_done_in_order_also_after_one_that_throws() {
  std::vector<int> done;
  std::promise<void> last;
  BackgroundThread thread;
  for (int i = 0; i < 3; ++i) {
    thread.submit([&done, i] {
      done.push_back(i);
      throw std::runtime_error("lost");
    });
  }
  thread.submit([&last] { last.set_value(); });
  last.get_future().wait();
  CHECK((done == std::vector<int>{0, 1, 2}));
}

} // namespace

int main() {
  jobs_are_done_in_order_also_after_one_that_throws();
}
