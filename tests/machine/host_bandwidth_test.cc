#include "machine/host_bandwidth.h"

#include <doctest/doctest.h>

#include <chrono>

#include "machine/detect.h"

namespace zeroplan {
namespace {

TEST_CASE("a triad over more than the caches gives what memory can") {
  const int threads = QueryHost().cores;
  const auto begin = std::chrono::steady_clock::now();
  const double rate = MeasureTriad(TriadBytes(threads), threads);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  MESSAGE("triad on ", threads, " threads: ", rate / 1e9, " GB/s in ", took.count(), " s");
  CHECK(rate > 1e5);  // a busy machine is slow, wrong units are far below
  CHECK(rate < 20e12);
}

TEST_CASE("any number of threads works, also more than there are cores") {
  for (const int threads : {1, 2, 3, 17}) {
    CAPTURE(threads);
    CHECK(MeasureTriad(uint64_t{8} << 20, threads) > 1e5);
  }
}

TEST_CASE("what is measured over exceeds the caches, within bounds") {
  CHECK(TriadBytes(1) <= uint64_t{192} << 20);
  CHECK(TriadBytes(1) >= uint64_t{1} << 20);
  CHECK(TriadBytes(64) >= TriadBytes(1));
  CHECK(TriadBytes(1000) <= uint64_t{1536} << 20);
}

}  // namespace
}  // namespace zeroplan
