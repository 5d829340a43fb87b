#include "planner/search/crew.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "planner/request/resolve.h"

namespace zeroplan {
namespace {

using Tasks = std::vector<std::function<void()>>;

// A task that works until nobody waits for it.
void WorkOn(const Crew& crew) {
  while (true) {
    crew.CheckStopped();
    std::this_thread::yield();
  }
}

TEST_CASE("crew: every task runs once, and what is told is told by the caller") {
  Crew crew;
  std::vector<std::atomic<int>> runs(200);
  Tasks tasks;
  std::atomic<bool> told = false;
  for (std::atomic<int>& one : runs) tasks.emplace_back([&one] { ++one; });
  tasks.emplace_back([&told] {
    while (!told) std::this_thread::yield();
  });
  const std::thread::id caller = std::this_thread::get_id();
  crew.Run(tasks, [&] {
    CHECK(std::this_thread::get_id() == caller);
    told = true;
  });
  for (const std::atomic<int>& one : runs) CHECK(one == 1);
  crew.Run({}, nullptr);
}

TEST_CASE("crew: a task's error ends the others, and is the caller's") {
  Crew crew;
  CHECK_THROWS_WITH_AS(
      crew.Run({[] { throw std::runtime_error("the disk is full"); }, [&] { WorkOn(crew); }},
               nullptr),
      "the disk is full", std::runtime_error);
  // The same crew once more: of two errors the first in the list.
  std::atomic<int> failing = 0;
  const auto fail = [&](const char* what) {
    ++failing;
    while (std::thread::hardware_concurrency() > 1 && failing < 2) std::this_thread::yield();
    throw std::runtime_error(what);
  };
  CHECK_THROWS_WITH_AS(crew.Run({[&] { fail("one"); }, [&] { fail("two"); }}, nullptr), "one",
                       std::runtime_error);
}

TEST_CASE("crew: what is thrown while it is told ends the tasks") {
  Crew crew;
  CHECK_THROWS_WITH_AS(
      crew.Run({[&] { WorkOn(crew); }}, [] { throw std::runtime_error("interrupted"); }),
      "interrupted", std::runtime_error);
}

TEST_CASE("a machine is looked at once for a question of many") {
  int looks = 0;
  HardwareFields fields;
  fields.find = [&looks](bool) {
    FoundMachine found;
    found.gpus = ++looks;
    return found;
  };
  const HardwareFields once = FoundOnce(fields);
  const HardwareFields copy = once;
  CHECK(once.find(true).gpus == 1);
  CHECK(copy.find(false).gpus == 1);
  CHECK(fields.find(true).gpus == 2);
  CHECK_FALSE(FoundOnce({}).find);
}

}  // namespace
}  // namespace zeroplan
