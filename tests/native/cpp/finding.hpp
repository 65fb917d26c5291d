// The error of the randomized tests: the core broke one of its rules.
#pragma once

#include <stdexcept>
#include <string>

namespace agentspec {

struct Finding : std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Finding(what);
}

template <typename T>
void require_equal(const T& actual, const T& expected, const char* what) {
  if (actual == expected) return;
  throw Finding(std::string(what) + ": " + std::to_string(actual) + " instead of " +
                std::to_string(expected));
}

template <typename T>
void require_at_most(const T& actual, const T& limit, const char* what) {
  if (actual <= limit) return;
  throw Finding(std::string(what) + ": " + std::to_string(actual) + " where the most is " +
                std::to_string(limit));
}

}  // namespace agentspec
