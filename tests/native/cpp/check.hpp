// Checks for tests: CHECK stops the program at the first condition that does
// not hold.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__,    \
                   #condition);                                                \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

#define CHECK_THROWS(expression, error)                                        \
  do {                                                                         \
    bool is_thrown = false;                                                    \
    try {                                                                      \
      expression;                                                              \
    } catch (const error &) {                                                  \
      is_thrown = true;                                                        \
    }                                                                          \
    CHECK(is_thrown);                                                          \
  } while (false)

using Tokens = std::vector<std::int32_t>;
