// What a stop signal stops, and that nothing comes before the save.
#include <doctest/doctest.h>

#include <csignal>

#include "core/base/stop_signals.h"
#include "tests/executor/train/train_fixture.h"

namespace zeroplan {
namespace {

TEST_CASE("a stop signal: saved at once, without validation, whichever signal") {
  const TrainFixture fixture;
  const Program program = fixture.Lowered(2, true);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    CAPTURE(signal);
    TrainOptions options =
        fixture.Options(fixture.WriteText("text", 30, {}), 20, "stop" + std::to_string(signal));
    options.shuffle = true;  // with a validation part
    options.validate_every = 3;
    const InterruptScope scope;
    Recorder recorder;
    recorder.on_step = [&](const StepReport& step) {
      if (step.step == 6) std::raise(signal);
    };
    const RunReport report = Train(program, options, recorder);
    CHECK(report.interrupted);
    CHECK(report.steps == 6);
    CHECK(recorder.validated == std::vector<int64_t>{3});
    CHECK(recorder.saved == std::vector<int64_t>{6});
  }
}

TEST_CASE("a stop signal while a checkpoint is saved: no step follows, no second save") {
  const TrainFixture fixture;
  const Program program = fixture.Lowered(0, false);
  TrainOptions options = fixture.Options(fixture.WriteText("text", 8, {}), 8, "stop");
  options.save_every = 2;
  const InterruptScope scope;
  Recorder recorder;
  recorder.on_saved = [](int64_t step) {
    if (step == 4) std::raise(SIGTERM);
  };
  const RunReport report = Train(program, options, recorder);
  CHECK(report.interrupted);
  CHECK(report.steps == 4);
  CHECK(recorder.saved == std::vector<int64_t>{2, 4});
}

TEST_CASE("a preemption notice does not make the stop signal behind it a second one") {
  const InterruptScope scope;
  std::raise(SIGUSR1);
  CHECK(StopRequested());
  std::raise(SIGUSR1);
  std::raise(SIGTERM);  // a second one would end this process
  CHECK(StopRequested());
}

}  // namespace
}  // namespace zeroplan
