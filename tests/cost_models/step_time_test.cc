// The time of a step among others: what an update or a micro-step leaves, the next forward pass has
// beside it.
#include "cost_models/step_time.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/program/collectives.h"
#include "core/program/step_order.h"
#include "hwprofiles/loader.h"
#include "tests/core/lowering/matrix.h"
#include "tests/cost_models/plain_profile.h"

namespace zeroplan {
namespace {

Program LowerMedium(int stage, int64_t grad_accum, int ranks = 8,
                    OffloadDevice optimizer = OffloadDevice::kNone, int slots = 4,
                    uint64_t sub_group_elements = ZeroConfig{}.sub_group_elements) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kBF16, grad_accum, kNoRecompute);
  setup.zero.offload_optimizer.device = optimizer;
  setup.zero.offload_optimizer.buffer_count = slots;
  setup.zero.sub_group_elements = sub_group_elements;
  setup.zero.reduce_bucket_elements = kAuto;
  setup.zero.allgather_bucket_elements = 500'000'000;
  setup.batch.micro_batch = 4;
  setup.batch.seq_len = 1024;
  LowerOptions options;
  options.backend = Backend::kCuda;
  return Lower(LoadModel("gpt2-medium"), setup, options);
}

// The same program, but that the update ends when what it has on `stream` has.
Program Join(Program program, Stream stream) {
  auto& list = program.section(Section::kOptimizerStep);
  for (const auto& [op, on] : {std::pair<Op, Stream>{RecordEvent{program.event_count}, stream},
                               {WaitEvent{program.event_count}, Stream::kCompute}}) {
    Instruction instruction{op};
    instruction.stream = on;
    instruction.phase = Phase::kStep;
    list.push_back(instruction);
  }
  ++program.event_count;
  return program;
}

TEST_CASE("what collectives move through memory draws power, and kernels are slower for it") {
  HardwareProfile profile = LoadProfile("hgx-h200");
  profile.gpu.launch_overhead.value = 0;  // nothing between kernels
  const CostModel costs(profile, {2, 8});
  const Program program = LowerMedium(3, 1, 2);
  const std::vector<Instruction>& list = program.section(Section::kMicroStep);
  GpuWork kernels, all;
  double sent = 0, drawn = 0;
  for (const Instruction& instruction : list) {
    if ((instruction.when & kOnly) == 0) continue;
    const CostModel::InstructionCost cost = costs.CostOf(program, instruction);
    if (instruction.stream == Stream::kCompute) kernels += cost.work;
    const auto* collective = std::get_if<Collective>(&instruction.op);
    if (collective == nullptr) continue;
    sent += static_cast<double>(RingSentBytes(program, *collective));
    drawn += cost.work.joules;
  }
  CHECK(drawn == doctest::Approx(2.5 * sent * profile.gpu.power->byte.value));
  all = kernels;
  all.joules += drawn;
  CHECK(costs.Clock(all) < 0.995 * costs.Clock(kernels));
  SectionCosts found;
  FindSectionCosts(costs, program, Section::kMicroStep, &found);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].stream != Stream::kCompute) continue;
    const GpuWork work = costs.CostOf(program, list[i]).work;
    CHECK(found.seconds[i] == doctest::Approx(work.SecondsAt(costs.Clock(all))));
  }
}

TEST_CASE("gathers that run on into the next step expose less at stages 1 and 2") {
  const CostModel costs(PlainProfile(), {8, 8});
  for (const int stage : {1, 2}) {
    for (const int64_t grad_accum : {1, 4}) {
      CAPTURE(stage);
      CAPTURE(grad_accum);
      const Program program = LowerMedium(stage, grad_accum);
      const StepTime carried = StepTimer(costs).Time(program);
      const StepTime joined = StepTimer(costs).Time(Join(program, Stream::kGather));
      CHECK(carried.exposed_comm_seconds < joined.exposed_comm_seconds);
      CHECK(carried.total_seconds < joined.total_seconds);
      // The same work is done.
      CHECK(carried.compute_seconds == doctest::Approx(joined.compute_seconds));
      CHECK(carried.optimizer_seconds == doctest::Approx(joined.optimizer_seconds));
    }
  }
}

TEST_CASE("an update on the host hides under the next forward pass, all but what is longer") {
  const CostModel costs(PlainProfile(), {1, 8});
  for (const int64_t grad_accum : {1, 4}) {
    CAPTURE(grad_accum);
    const Program program = LowerMedium(2, grad_accum, 1, OffloadDevice::kCpu);
    const StepTime carried = StepTimer(costs).Time(program);
    const StepTime joined = StepTimer(costs).Time(Join(program, Stream::kHostToDevice));
    double forward = 0;
    for (const Instruction& instruction : program.section(Section::kMicroStep)) {
      if (instruction.stream != Stream::kCompute || instruction.phase != Phase::kForward) continue;
      forward += costs.Seconds(program, instruction);
    }
    const double host = joined.exposed_offload_seconds;
    CHECK(joined.total_seconds - carried.total_seconds > 0.8 * std::min(forward, host));
    CHECK(joined.total_seconds - carried.total_seconds < 1.2 * forward);
    CHECK(carried.compute_seconds == doctest::Approx(joined.compute_seconds));
  }
}

// What a step reads and writes of the swap file, alone.
struct DiskSeconds {
  double read = 0, write = 0;
};
DiskSeconds DiskSecondsOf(const Program& program, const CostModel& costs) {
  DiskSeconds seconds;
  for (const Section section : {Section::kMicroStep, Section::kOptimizerStep}) {
    for (const Instruction& instruction : program.section(section)) {
      const auto* io = std::get_if<FileIo>(&instruction.op);
      if (io != nullptr) {
        (io->write ? seconds.write : seconds.read) += costs.Seconds(program, instruction);
      }
    }
  }
  return seconds;
}

TEST_CASE("states on disk are read while others are written") {
  for (const auto& [read, write] : {std::pair{1e9, 1e9}, {3e9, 1e9}, {1e9, 3e9}}) {
    HardwareProfile profile = PlainProfile();
    profile.node.nvme_read = Number(read);
    profile.node.nvme_write = Number(write);
    const CostModel costs(profile, {8, 8});
    for (const int stage : {1, 2, 3}) {
      CAPTURE(read);
      CAPTURE(write);
      CAPTURE(stage);
      const Program program = LowerMedium(stage, 1, 8, OffloadDevice::kNvme);
      const DiskSeconds disk = DiskSecondsOf(program, costs);
      const StepTime time = StepTimer(costs).Time(program);
      const double longer = std::max(disk.read, disk.write);
      CHECK(time.total_seconds > longer);
      // The first piece's read has nothing to write beside it, the last one's write nothing to
      // read. The embedding's piece is as long as four of the layers'.
      CHECK(time.total_seconds < 1.25 * longer);
      CHECK(time.exposed_offload_seconds > 0.8 * (time.total_seconds - time.compute_seconds));
      // Two slots are enough: one is read into while the other is written. Pieces of one unit,
      // three or more here, do not wait for each other.
      const Program pieces = LowerMedium(stage, 1, 8, OffloadDevice::kNvme, 2, 500'000);
      const StepTime of_pieces = StepTimer(costs).Time(pieces);
      CHECK(of_pieces.total_seconds - of_pieces.compute_seconds < 1.07 * longer);
    }
  }
}

TEST_CASE("the kernels of a micro-step share the clock that the power limit leaves them") {
  HardwareProfile profile = LimitedProfile();
  const Program program = LowerMedium(2, 1);
  for (const double watts : {400.0, 500.0, 5000.0}) {
    CAPTURE(watts);
    profile.gpu.power->limit = Number(watts);
    const CostModel costs(profile, {8, 8});
    SectionCosts found;
    FindSectionCosts(costs, program, Section::kMicroStep, &found);
    const auto& list = program.section(Section::kMicroStep);
    GpuWork work;
    double seconds = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const CostModel::InstructionCost cost = costs.CostOf(program, list[i]);
      CHECK(cost.work.seconds() == doctest::Approx(cost.seconds));
      if (list[i].stream != Stream::kCompute) {
        CHECK(found.seconds[i] == cost.seconds);
        continue;
      }
      CHECK(found.seconds[i] >= cost.seconds);
      work += cost.work;
      seconds += found.seconds[i];
    }
    const double unlimited = work.seconds();
    // What events between kernels cost is time in which nothing is drawn.
    work.fixed_seconds += seconds - work.SecondsAt(costs.Clock(work));
    const double joules = work.joules + work.clocked_joules * costs.Clock(work);
    CHECK((watts > 1000) == (costs.Clock(work) == 1));
    CHECK(joules <= (watts - 100) * seconds * 1.02);
    if (watts < 1000) {
      CHECK(joules >= (watts - 100) * seconds * 0.98);
      CHECK(seconds > 1.01 * unlimited);
    }
  }
}

TEST_CASE("the trace of a step has each instruction once, what the last one left included") {
  const CostModel costs(PlainProfile(), {8, 8});
  const Program program = LowerMedium(1, 1);
  StepTimer timer(costs);
  const std::vector<TracedInstruction> trace = timer.Trace(program, 1);
  const double total = timer.Time(program).total_seconds;
  size_t gathers = 0, expected = 0;
  for (const TracedInstruction& span : trace) {
    if (!span.timed) continue;
    CHECK(span.begin_seconds >= 0);
    CHECK(span.end_seconds <= total * (1 + 1e-9));
    const auto& list = program.section(span.section);
    gathers += list[static_cast<size_t>(span.index)].stream == Stream::kGather;
  }
  for (const Instruction& instruction : program.section(Section::kOptimizerStep)) {
    expected +=
        instruction.stream == Stream::kGather && std::holds_alternative<Collective>(instruction.op);
  }
  CHECK(expected > 10);
  CHECK(gathers == expected);
}

// Each micro-step reduces 26 GB a GPU beside 2.6 s of kernels.
StepTime TimeOf13B(int stage, int64_t grad_accum) {
  HardwareProfile profile = LoadProfile("dgx-h100");
  ApplyNetwork(profile, "ib-400");
  profile.node.overlapped_compute->value = 0.97;
  profile.node.overlapped_collective->value = 0.836;
  TrainSetup setup;
  setup.zero.stage = stage;
  setup.batch = {4, grad_accum, 64, 4096};
  setup.recompute = FullRecompute();
  LowerOptions options;
  options.backend = Backend::kCuda;
  const Program program = Lower(ModelFromParams(13'000'000'000, 4096), setup, options);
  return StepTimer(CostModel(profile, {64, 8})).Time(program);
}

TEST_CASE("13B on 64 GPUs: each further micro-step exposes what it slows kernels by, no more") {
  const StepTime one = TimeOf13B(2, 1);
  for (const int64_t grad_accum : {2, 4}) {
    CAPTURE(grad_accum);
    const StepTime more = TimeOf13B(2, grad_accum);
    const auto g = static_cast<double>(grad_accum);
    CHECK(more.compute_seconds == doctest::Approx(g * one.compute_seconds).epsilon(1e-3));
    // 0.09 s with one micro-step. Kernels run at 0.965 of their speed beside the 0.57 s that a
    // micro-step's reductions take: 0.02 s. Waiting for them cost 0.55 s more each.
    MESSAGE(grad_accum << " micro-steps expose " << more.exposed_comm_seconds << " s, one "
                       << one.exposed_comm_seconds << " s");
    CHECK(more.exposed_comm_seconds < one.exposed_comm_seconds + 0.025 * (g - 1));
    // Stage 1 reduces once a step.
    CHECK(more.total_seconds < 1.01 * TimeOf13B(1, grad_accum).total_seconds);
  }
}

TEST_CASE("what micro-steps leave of their reductions costs less than waiting for it") {
  const CostModel costs(PlainProfile(), {8, 8});
  for (const int stage : {2, 3}) {
    for (const int64_t grad_accum : {2, 3, 6}) {
      CAPTURE(stage);
      CAPTURE(grad_accum);
      const Program program = LowerMedium(stage, grad_accum);
      Program joined = program;
      for (const auto& [op, on] :
           {std::pair<Op, Stream>{RecordEvent{program.event_count}, Stream::kReduce},
            {WaitEvent{program.event_count}, Stream::kCompute}}) {
        Instruction instruction{op};
        instruction.stream = on;
        instruction.phase = Phase::kBackward;
        joined.section(Section::kMicroStep).push_back(instruction);
      }
      ++joined.event_count;
      const StepTime left = StepTimer(costs).Time(program);
      const StepTime waited = StepTimer(costs).Time(joined);
      CHECK(left.exposed_comm_seconds < waited.exposed_comm_seconds);
      CHECK(left.total_seconds < waited.total_seconds);
      CHECK(left.compute_seconds == doctest::Approx(waited.compute_seconds));
    }
  }
}

// So many steps as one list, played as one section. Events mean what they mean in the list.
double PlayUnrolled(const Program& program, const CostModel& costs, int64_t steps) {
  Program unrolled = program;
  std::vector<Instruction>& list = unrolled.section(Section::kMicroStep);
  list.clear();
  SectionCosts taken;
  for (int64_t step = 0; step < steps; ++step) {
    ForEachStepSection(program.setup.batch.grad_accum, [&](Section section, uint8_t kind, int64_t) {
      SectionCosts of_section;
      FindSectionCosts(costs, program, section, &of_section);
      for (size_t i = 0; i < program.section(section).size(); ++i) {
        Instruction instruction = program.section(section)[i];
        if (!RunsIn(instruction, section, kind)) continue;
        instruction.when = kEvery;
        list.push_back(instruction);
        taken.seconds.push_back(of_section.seconds[i]);
        taken.beside_collective.push_back(of_section.beside_collective[i]);
      }
    });
  }
  CarriedWork left;
  return Timeline()
      .Play(unrolled, Section::kMicroStep, kOnly, taken.seconds, costs.overlap(), nullptr, nullptr,
            &left, taken.beside_collective)
      .total_seconds;
}

TEST_CASE("the parts of a step add up to what all of its instructions take, played at once") {
  HardwareProfile slow_host = PlainProfile();
  slow_host.description = "slow host";
  slow_host.node.triad_bandwidth = slow_host.node.adam_bandwidth = Number(5e9);
  HardwareProfile slow_link = PlainProfile();
  slow_link.description = "slow link";
  slow_link.node.gpu_link = Number(5e9);
  for (const HardwareProfile& profile : {PlainProfile(), slow_host, slow_link}) {
    const CostModel costs(profile, {8, 8});
    for (const int stage : {0, 1, 2, 3}) {
      for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        if (stage == 0 && device != OffloadDevice::kNone) continue;
        const StepParts of_three = StepTimer(costs).Play(LowerMedium(stage, 3, 8, device));
        for (const int64_t grad_accum : {1, 2, 3, 4, 7}) {
          CAPTURE(profile.description);
          CAPTURE(stage);
          CAPTURE(static_cast<int>(device));
          CAPTURE(grad_accum);
          const Program program = LowerMedium(stage, grad_accum, 8, device);
          // The second of two steps: it finds what the first one left.
          const double unrolled = PlayUnrolled(program, costs, 2) - PlayUnrolled(program, costs, 1);
          const double parts = StepTimer(costs).Time(program).total_seconds;
          CHECK(parts == doctest::Approx(unrolled).epsilon(1e-9));
          if (grad_accum >= 3) {
            CHECK(of_three.Of(grad_accum).total_seconds == doctest::Approx(parts).epsilon(1e-12));
          }
          double played = 0;
          for (const PlayedPart& part : StepTimer(costs).PlayStep(program)) {
            played += static_cast<double>(part.times) * part.time.total_seconds;
          }
          CHECK(played == doctest::Approx(parts).epsilon(1e-12));
        }
      }
    }
  }
}

TEST_CASE("the trace of a step has what a micro-step left where it ran") {
  const CostModel costs(PlainProfile(), {8, 8});
  const Program program = LowerMedium(2, 3);
  StepTimer timer(costs);
  const std::vector<TracedInstruction> trace = timer.Trace(program, 1);
  const SectionTime first = timer.Play(program).first;
  size_t reductions = 0, expected = 0, across = 0;
  for (const TracedInstruction& span : trace) {
    if (!span.timed) continue;
    const auto& list = program.section(span.section);
    const Instruction& instruction = list[static_cast<size_t>(span.index)];
    if (span.section != Section::kMicroStep || instruction.stream != Stream::kReduce) continue;
    reductions += std::holds_alternative<Collective>(instruction.op);
    across += span.begin_seconds < first.total_seconds && span.end_seconds > first.total_seconds;
  }
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    expected +=
        instruction.stream == Stream::kReduce && std::holds_alternative<Collective>(instruction.op);
  }
  CHECK(expected > 5);
  CHECK(reductions == 3 * expected);
  CHECK(across == 1);
}

}  // namespace
}  // namespace zeroplan
