// The Timeline on sections written by hand, whose seconds can be worked out on paper.
#include "cost_models/timeline.h"

#include <doctest/doctest.h>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// A section of instructions on given streams; each with its seconds.
class Script {
 public:
  void Run(Stream stream, Op op, double seconds, Phase phase = Phase::kForward,
           uint8_t when = kEvery) {
    Instruction instruction{op};
    instruction.stream = stream;
    instruction.phase = phase;
    instruction.when = when;
    program_.section(Section::kMicroStep).push_back(instruction);
    seconds_.push_back(seconds);
  }
  void Compute(double seconds, Phase phase = Phase::kForward, uint8_t when = kEvery) {
    Run(Stream::kCompute, LaunchKernel{KernelId::kFill}, seconds, phase, when);
  }
  void Gather(double seconds) {
    Run(Stream::kGather, Collective{CollectiveKind::kAllGather, Dtype::kBF16}, seconds);
  }
  void Reduce(double seconds) {
    Run(Stream::kReduce, Collective{CollectiveKind::kReduceScatter, Dtype::kBF16}, seconds);
  }
  void CopyUp(double seconds) { Run(Stream::kHostToDevice, Copy{}, seconds); }
  void CopyDown(double seconds) { Run(Stream::kDeviceToHost, Copy{}, seconds); }
  void Host(double seconds) { Run(Stream::kHost, LaunchKernel{KernelId::kFill}, seconds); }
  EventId Record(Stream stream) {
    const EventId event = program_.event_count++;
    Run(stream, RecordEvent{event}, 0);
    return event;
  }
  void Wait(Stream stream, EventId event) { Run(stream, WaitEvent{event}, 0); }

  SectionTime Play(const OverlapRates& rates = {}, std::vector<PlayedSpan>* spans = nullptr,
                   uint8_t kinds = kOnly, const CarriedWork* before = nullptr,
                   CarriedWork* after = nullptr) {
    Timeline timeline;
    return timeline.Play(program_, Section::kMicroStep, kinds, seconds_, rates, spans, before,
                         after);
  }

  Program program_;

 private:
  std::vector<double> seconds_;
};

void CheckAddsUp(const SectionTime& time) {
  double sum = time.compute_seconds + time.optimizer_seconds;
  for (double exposed : time.exposed_seconds) sum += exposed;
  CHECK(sum == doctest::Approx(time.total_seconds));
}

TEST_CASE("Timeline: one stream adds up; phases tell compute from optimizer") {
  Script script;
  script.Compute(1);
  script.Compute(2, Phase::kBackward);
  script.Compute(0.5, Phase::kStep);
  const SectionTime time = script.Play();
  CHECK(time.total_seconds == doctest::Approx(3.5));
  CHECK(time.compute_seconds == doctest::Approx(3));
  CHECK(time.optimizer_seconds == doctest::Approx(0.5));
  CheckAddsUp(time);
}

TEST_CASE("Timeline: a gather is exposed as far as compute waits for it") {
  // gather 3 s beside compute 2 s, then a kernel that needs it: 1 s exposed.
  Script script;
  script.Gather(3);
  const EventId gathered = script.Record(Stream::kGather);
  script.Compute(2);
  script.Wait(Stream::kCompute, gathered);
  script.Compute(1);
  const SectionTime time = script.Play();
  CHECK(time.total_seconds == doctest::Approx(4));
  CHECK(time.exposed(Stream::kGather) == doctest::Approx(1));
  CHECK(time.busy(Stream::kGather) == doctest::Approx(3));
  CheckAddsUp(time);
}

TEST_CASE("Timeline: waiting is charged to the end of a chain of waits") {
  // compute waits for the gather, which waits for the copy that brings its shard: 2 s of the copy,
  // then 1 s of the gather.
  Script script;
  script.CopyUp(2);
  const EventId copied = script.Record(Stream::kHostToDevice);
  script.Wait(Stream::kGather, copied);
  script.Gather(1);
  const EventId gathered = script.Record(Stream::kGather);
  script.Wait(Stream::kCompute, gathered);
  script.Compute(1);
  const SectionTime time = script.Play();
  CHECK(time.total_seconds == doctest::Approx(4));
  CHECK(time.exposed(Stream::kHostToDevice) == doctest::Approx(2));
  CHECK(time.exposed(Stream::kGather) == doctest::Approx(1));
  CheckAddsUp(time);
}

TEST_CASE("Timeline: collective and compute slow each other") {
  // Side by side compute runs at 0.8, the collective at 0.5. Compute's 2 s take 2.5 s; by then the
  // collective has done 1.25 of its 2 s, the other 0.75 s at full speed.
  Script script;
  script.Reduce(2);
  const EventId reduced = script.Record(Stream::kReduce);
  script.Compute(2);
  script.Wait(Stream::kCompute, reduced);
  OverlapRates rates;
  rates.compute_beside_collective = 0.8;
  rates.collective_beside_compute = 0.5;
  const SectionTime time = script.Play(rates);
  CHECK(time.total_seconds == doctest::Approx(3.25));
  CHECK(time.compute_seconds == doctest::Approx(2));
  // 0.5 s of slowness, 0.75 s of waiting.
  CHECK(time.exposed(Stream::kReduce) == doctest::Approx(1.25));
  CheckAddsUp(time);
}

TEST_CASE("Timeline: two collectives share the link, two directions share PCIe") {
  Script script;
  script.Gather(1);
  script.Reduce(1);
  const SectionTime link = script.Play();
  CHECK(link.total_seconds == doctest::Approx(2));  // each at half speed
  Script copies;
  copies.CopyUp(1);
  copies.CopyDown(0.5);
  OverlapRates rates;
  rates.pcie_both = 0.5;
  // Down: 0.5 s of work in 1 s; up then has 0.5 s left at full speed.
  CHECK(copies.Play(rates).total_seconds == doctest::Approx(1.5));
}

TEST_CASE("Timeline: host kernels and copies share host memory") {
  Script script;
  script.Host(1);
  script.CopyUp(2);
  OverlapRates rates;
  rates.host_beside_copy = 0.5;
  rates.copy_beside_host = 0.75;
  // Host done at 2 s; the copy has done 1.5, and 0.5 s more alone.
  const SectionTime time = script.Play(rates);
  CHECK(time.total_seconds == doctest::Approx(2.5));
  CHECK(time.busy(Stream::kHost) == doctest::Approx(2));
  CheckAddsUp(time);
  // What the GPU writes is no slower for that.
  Script down;
  down.Host(1);
  down.CopyDown(2);
  CHECK(down.Play(rates).total_seconds == doctest::Approx(2));
}

TEST_CASE("Timeline: kinds pick instructions; an event that nothing records was carried over") {
  Script script;
  script.Compute(1, Phase::kForward, kFirst);
  script.Compute(10, Phase::kForward, kLast);
  const EventId carried = script.program_.event_count++;
  script.Wait(Stream::kCompute, carried);
  script.Compute(100);
  CHECK(script.Play({}, nullptr, kFirst).total_seconds == doctest::Approx(101));
  CHECK(script.Play({}, nullptr, kLast).total_seconds == doctest::Approx(110));
}

TEST_CASE("Timeline: spans say when each instruction ran") {
  Script script;
  script.Gather(1);
  const EventId gathered = script.Record(Stream::kGather);
  script.Wait(Stream::kCompute, gathered);
  script.Compute(2);
  std::vector<PlayedSpan> spans;
  script.Play({}, &spans);
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].index == 0);
  CHECK(spans[0].end_seconds == doctest::Approx(1));
  CHECK(spans[1].index == 3);
  CHECK(spans[1].begin_seconds == doctest::Approx(1));
  CHECK(spans[1].end_seconds == doctest::Approx(3));
}

TEST_CASE("Timeline: a section leaves what nothing waits for to the next") {
  Script update;
  update.Compute(2, Phase::kStep);
  const EventId updated = update.Record(Stream::kCompute);
  update.Compute(1, Phase::kStep);
  update.Wait(Stream::kGather, updated);
  update.Gather(3);  // from 2 on, a second of it before the update is over
  const EventId first = update.Record(Stream::kGather);
  update.Gather(4);
  const EventId second = update.Record(Stream::kGather);
  CarriedWork left, none;
  const SectionTime step = update.Play({}, nullptr, kOnly, nullptr, &left);
  CHECK(step.total_seconds == doctest::Approx(3));
  CHECK(step.busy(Stream::kGather) == doctest::Approx(1));
  CHECK(step.exposed(Stream::kGather) == 0);

  Script forward;
  forward.program_.event_count = 2 + 1;
  forward.Wait(Stream::kCompute, updated);  // recorded and over: signalled
  forward.Wait(Stream::kCompute, first);    // 2 seconds
  forward.Compute(1);
  forward.Wait(Stream::kCompute, second);  // 4 seconds after the first, 1 of them computing
  forward.Compute(5);
  std::vector<PlayedSpan> spans;
  const SectionTime time = forward.Play({}, &spans, kOnly, &left, &none);
  CheckAddsUp(time);
  CHECK(time.total_seconds == doctest::Approx(2 + 4 + 5));
  CHECK(time.exposed(Stream::kGather) == doctest::Approx(2 + 3));
  CHECK(time.busy(Stream::kGather) == doctest::Approx(2 + 4));
  for (const auto& lane : none.lanes) CHECK(lane.empty());
  REQUIRE(spans.size() == 4);
  CHECK(spans[0].begin_seconds == doctest::Approx(-1));  // under way since before
  CHECK(spans[0].end_seconds == doctest::Approx(2));
  CHECK(spans[0].index == 4);
  CHECK(spans[2].begin_seconds == doctest::Approx(2));
  CHECK(spans[2].end_seconds == doctest::Approx(6));

  // What does not come from before is what it was.
  CHECK(forward.Play().total_seconds == doctest::Approx(6));
}

TEST_CASE("Timeline: a wait is for the record before it, whatever comes later in the list") {
  // Each repetition waits for what the one before recorded, and records it anew.
  Script script;
  script.Compute(1);
  const EventId reduced = script.program_.event_count++;
  script.Wait(Stream::kCompute, reduced);
  script.Compute(2);
  const EventId ready = script.Record(Stream::kCompute);
  script.Wait(Stream::kReduce, ready);
  script.Reduce(4);
  script.Run(Stream::kReduce, RecordEvent{reduced}, 0);
  CarriedWork first, second, third;
  CHECK(script.Play({}, nullptr, kOnly, nullptr, &first).total_seconds == doctest::Approx(3));
  std::vector<PlayedSpan> spans;
  const SectionTime time = script.Play({}, &spans, kOnly, &first, &second);
  CHECK(time.total_seconds == doctest::Approx(6));  // 4 of the reduction, then 2
  CHECK(time.exposed(Stream::kReduce) == doctest::Approx(3));
  CheckAddsUp(time);
  REQUIRE(spans.size() == 3);
  CHECK(!spans[0].carried);
  CHECK(spans[1].carried);
  CHECK(spans[1].end_seconds == doctest::Approx(4));
  CHECK(script.Play({}, nullptr, kOnly, &second, &third).total_seconds == doctest::Approx(6));
  // Where the record was carried and done, there is nothing to wait for.
  CHECK(script.Play({}, nullptr, kOnly, nullptr, &first).total_seconds == doctest::Approx(3));
}

TEST_CASE("Timeline: a gather within a node and a reduction over nodes share no link") {
  Script script;
  script.program_.layout.shards = 2;
  script.program_.setup.batch.world_size = 4;
  const auto run = [&](Stream stream, CollectiveKind kind, RankAxis axis) {
    Collective collective{kind, Dtype::kBF16};
    collective.axis = axis;
    script.Run(stream, collective, 3);
  };
  run(Stream::kGather, CollectiveKind::kAllGather, RankAxis::kShard);
  run(Stream::kReduce, CollectiveKind::kAllReduce, RankAxis::kReplica);
  OverlapRates rates;
  CHECK(script.Play(rates).total_seconds == doctest::Approx(6));  // one node
  rates.ranks_per_node = 2;
  CHECK(script.Play(rates).total_seconds == doctest::Approx(3));
  // A shard group of two nodes.
  rates.ranks_per_node = 1;
  CHECK(script.Play(rates).total_seconds == doctest::Approx(6));
}

TEST_CASE("Timeline: what is carried and waits for what is not there is a bug, not a hang") {
  Script script;
  const EventId event = script.program_.event_count++;
  script.Gather(1);
  script.Compute(1);
  CarriedWork before;
  CarriedWork::Item wait{};
  wait.kind = CarriedWork::Item::Kind::kWait;
  wait.event = event;
  wait.records = 1;
  before.lanes[static_cast<size_t>(Stream::kGather)].push_back(wait);
  CHECK_THROWS_AS(script.Play({}, nullptr, kOnly, &before), CheckFailure);
  before.lanes[static_cast<size_t>(Stream::kGather)].front().records = 0;
  CHECK(script.Play({}, nullptr, kOnly, &before).total_seconds == doctest::Approx(1));
}

}  // namespace
}  // namespace zeroplan
