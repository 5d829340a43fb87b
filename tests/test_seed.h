// The seed of tests on random inputs: fresh at every run; ZEROPLAN_TEST_SEED repeats one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace zeroplan {

inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("ZEROPLAN_TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{std::random_device{}()};
  }();
  return seed;
}

}  // namespace zeroplan
