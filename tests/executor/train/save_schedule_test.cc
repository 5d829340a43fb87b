// When a run saves that goes by its interruptions: what it measures, and what all ranks do.
#include "executor/train/save_schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/base/save_interval.h"

namespace zeroplan {
namespace {

TEST_CASE("a fixed interval is one of all steps") {
  SaveSchedule schedule(4, 0);
  CHECK_FALSE(schedule.is_auto());
  std::vector<int64_t> due;
  for (int64_t step = 7; step < 20; ++step) {  // a resumed run
    schedule.NoteStep(1);
    if (schedule.IsDue(step)) due.push_back(step);
  }
  CHECK(due == std::vector<int64_t>{8, 12, 16});
  CHECK_FALSE(SaveSchedule(0, 0).IsDue(4));
}

// Steps of `step` seconds; each save is complete `after` steps later. Returns when it saved.
std::vector<int64_t> SavesOf(SaveSchedule& schedule, int64_t steps, double step, double save,
                             double write, int64_t after) {
  std::vector<int64_t> saves;
  int64_t complete = -1;
  for (int64_t done = 1; done <= steps; ++done) {
    schedule.NoteStep(step);
    if (done == complete) {
      schedule.NoteSaved(save, write);
      schedule.Take(SaveSchedule::Write(schedule.Choose()));
      complete = -1;
    }
    if (complete < 0 && schedule.IsDue(done)) {
      saves.push_back(done);
      schedule.NoteBegun();
      complete = done + after;
    }
  }
  return saves;
}

TEST_CASE("auto: the first save comes early, the next as its times make best") {
  SaveSchedule schedule(0, 1.0 / 3600);
  const std::vector<int64_t> saves = SavesOf(schedule, 400, 2, 18, 0, 1);
  REQUIRE(schedule.chosen());
  CHECK(schedule.chosen()->step_seconds == 2);
  CHECK(schedule.chosen()->save_seconds == 18);
  CHECK(schedule.chosen()->write_seconds == 0);
  const int64_t every =
      BestStepsBetweenSaves({.rate = 1.0 / 3600, .step_seconds = 2, .save_seconds = 18}, 1 << 30);
  CHECK(schedule.chosen()->steps == every);
  REQUIRE(saves.size() >= 2);
  CHECK(saves[0] == SaveSchedule::kFirst);
  for (size_t i = 1; i < saves.size(); ++i) CHECK(saves[i] - saves[i - 1] == every);
}

TEST_CASE("auto: a save beside the steps is over before the next") {
  // 40 steps of a second to write: more than sqrt(2 * 0.1 * 3600) = 27.
  SaveSchedule schedule(0, 1.0 / 3600);
  const std::vector<int64_t> saves = SavesOf(schedule, 300, 1, 0.1, 40, 40);
  CHECK(schedule.chosen()->steps == 40);
  REQUIRE(saves.size() >= 3);
  for (size_t i = 1; i < saves.size(); ++i) CHECK(saves[i] - saves[i - 1] == 40);
}

TEST_CASE("auto: medians of what was measured last") {
  SaveSchedule schedule(0, 1.0 / 3600);
  for (const double step : {30.0, 1.0, 1.0, 1.0, 2.0}) schedule.NoteStep(step);
  schedule.NoteBegun();
  for (const double save : {5.0, 50.0, 7.0}) schedule.NoteSaved(save, 3 * save);
  const ChosenInterval chosen = schedule.Choose();
  CHECK(chosen.step_seconds == 1);
  CHECK(chosen.save_seconds == 7);
  CHECK(chosen.write_seconds == 21);
  CHECK(chosen.rate == 1.0 / 3600);
  // What was measured long ago is forgotten.
  for (int i = 0; i < 40; ++i) {
    schedule.NoteStep(4);
    schedule.NoteSaved(9, 0);
  }
  CHECK(schedule.Choose().step_seconds == 4);
  CHECK(schedule.Choose().save_seconds == 9);
}

TEST_CASE("auto: ranks that measure other times take rank 0's, to the bit") {
  SaveSchedule first(0, 1.0 / 7), other(0, 1.0 / 7);
  for (int i = 0; i < 9; ++i) {
    first.NoteStep(0.1 + i / 7.0);
    other.NoteStep(0.3);
  }
  first.NoteBegun();
  other.NoteBegun();
  first.NoteSaved(0.123456789, 0.2);
  other.NoteSaved(2, 2);
  const std::string said = SaveSchedule::Write(first.Choose());
  for (SaveSchedule* schedule : {&first, &other}) {
    schedule->Take(said);
    CHECK(schedule->chosen()->steps == first.Choose().steps);
    CHECK(schedule->chosen()->save_seconds == 0.123456789);
    CHECK(schedule->chosen()->rate == 1.0 / 7);
  }
}

TEST_CASE("auto: a save before any step, and steps that no clock can measure") {
  SaveSchedule schedule(0, 1e-3);
  schedule.NoteBegun();
  schedule.NoteSaved(1, 1);
  CHECK(schedule.Choose().steps == SaveSchedule::kFirst);
  schedule.NoteStep(0);
  CHECK(schedule.Choose().steps == SaveSchedule::kFirst);
}

}  // namespace
}  // namespace zeroplan
