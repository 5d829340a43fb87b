// What may run side by side: the order that a program's events guarantee, and no more.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/lowering/lower.h"
#include "core/program/step_order.h"
#include "core/program/unrolled_check.h"
#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

// Whether the instruction reduces gradients of the unit.
bool Reduces(const Program& program, const Instruction& instruction, int unit) {
  const auto* collective = std::get_if<Collective>(&instruction.op);
  if (collective == nullptr) return false;
  for (const Segment& segment : program.segs(*collective)) {
    const Buffer& source = program.buffers[segment.src.buffer];
    if (source.role == Role::kGradFull && source.unit == unit) return true;
  }
  return false;
}

bool WritesGradient(const Program& program, const Instruction& instruction, int unit) {
  const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
  if (launch == nullptr) return false;
  for (int i = 0; i < launch->arg_count; ++i) {
    const Ref& ref = program.refs[launch->first_arg + static_cast<uint32_t>(i)];
    if (ref.null() || !Writes(AccessMode(launch->kernel, i, launch->flags))) continue;
    const Buffer& buffer = program.buffers[ref.buffer];
    if (buffer.role == Role::kGradFull && buffer.unit == unit) return true;
  }
  return false;
}

// Of the reductions of `unit` in the micro-step that reduces: how many come before its last
// gradient kernel in the list, and how many of them that kernel has to wait for.
struct Beside {
  int reductions = 0, waited_for = 0;
};

Beside CountBeside(const Program& program, int unit, uint8_t kind) {
  HappensBefore order(program.event_count);
  std::vector<Moment> reductions;
  Beside last;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if ((instruction.when & kind) == 0) continue;
    const Moment moment = order.Issue(instruction.stream);
    if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      order.Record(record->event, instruction.stream);
    } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      order.Wait(wait->event, instruction.stream);
    }
    if (Reduces(program, instruction, unit)) reductions.push_back(moment);
    if (!WritesGradient(program, instruction, unit)) continue;
    last = {static_cast<int>(reductions.size()), 0};
    for (const Moment& reduction : reductions) {
      last.waited_for += order.Ordered(reduction, instruction.stream);
    }
  }
  return last;
}

TEST_CASE("a part of a unit is reduced beside the kernels that make the other parts") {
  for (const int stage : {0, 1}) {
    for (const int64_t grad_accum : {1, 3}) {
      CAPTURE(stage);
      CAPTURE(grad_accum);
      // Buckets of 900 elements: a layer's 4352 make several.
      const TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, grad_accum, kNoRecompute);
      const Program program = Lower(testing::TinyModel(2), setup);
      const int unit = 2;
      REQUIRE(program.layout.units[unit].layer == 1);
      const Beside beside = CountBeside(program, unit, grad_accum == 1 ? kOnly : kLast);
      CHECK(beside.reductions >= 3);
      CHECK(beside.waited_for == 0);
    }
  }
}

TEST_CASE("without overlap_comm the kernels wait for every reduction") {
  TrainSetup setup = testing::BaseSetup(1, 2, Dtype::kBF16, 1, kNoRecompute);
  setup.zero.overlap_comm = false;
  const Beside beside = CountBeside(Lower(testing::TinyModel(2), setup), 2, kOnly);
  CHECK(beside.reductions >= 3);
  CHECK(beside.waited_for == beside.reductions);
}

// Gathers of updated parameters that the end of the update does not wait for.
std::vector<size_t> CarriedGathers(const Program& program) {
  HappensBefore order(program.event_count);
  std::vector<std::pair<size_t, Moment>> gathers;
  const auto& list = program.section(Section::kOptimizerStep);
  for (size_t i = 0; i < list.size(); ++i) {
    const Moment moment = order.Issue(list[i].stream);
    if (const auto* record = std::get_if<RecordEvent>(&list[i].op)) {
      order.Record(record->event, list[i].stream);
    } else if (const auto* wait = std::get_if<WaitEvent>(&list[i].op)) {
      order.Wait(wait->event, list[i].stream);
    } else if (list[i].stream == Stream::kGather) {
      gathers.emplace_back(i, moment);
    }
  }
  order.Issue(Stream::kCompute);
  std::vector<size_t> carried;
  for (const auto& [index, moment] : gathers) {
    if (!order.Ordered(moment, Stream::kCompute)) carried.push_back(index);
  }
  return carried;
}

TEST_CASE("gathers of updated parameters run on into the next step, first units first") {
  for (const int stage : {1, 2}) {
    for (const int64_t grad_accum : {1, 2, 3}) {
      CAPTURE(stage);
      CAPTURE(grad_accum);
      TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, grad_accum, kNoRecompute);
      setup.zero.allgather_bucket_elements = ZeroConfig{}.allgather_bucket_elements;
      const Program program = Lower(testing::TinyModel(3), setup);
      const auto& list = program.section(Section::kOptimizerStep);
      const std::vector<size_t> carried = CarriedGathers(program);
      REQUIRE(carried.size() == 5);  // as reduced, by 900 elements: each holds a unit
      int next = 0;
      for (const size_t index : carried) {
        for (const Segment& segment : program.segs(std::get<Collective>(list[index].op))) {
          CHECK(program.buffers[segment.dst.buffer].unit == next++);
        }
      }
      CHECK(next == static_cast<int>(program.layout.units.size()));

      // Every gather is waited for once, right in front of the unit's first kernel.
      const uint8_t kind = grad_accum == 1 ? kOnly : kFirst;
      size_t waits = 0;
      const auto& micro = program.section(Section::kMicroStep);
      for (size_t i = 0; i < micro.size(); ++i) {
        const auto* wait = std::get_if<WaitEvent>(&micro[i].op);
        if (wait == nullptr || waits == carried.size()) continue;
        const auto& record = list[carried[waits] + 1];
        if (wait->event != std::get<RecordEvent>(record.op).event) continue;
        CHECK(micro[i].stream == Stream::kCompute);
        CHECK((micro[i].when & kind) != 0);
        if (grad_accum > 1) CHECK((micro[i].when & (kMiddle | kLast)) == 0);
        size_t kernel = i;
        while (!std::holds_alternative<LaunchKernel>(micro[kernel].op)) ++kernel;
        bool uses = false;
        ForEachAccess(program, micro[kernel], [&](const Ref& ref, ArgMode) {
          const Buffer& buffer = program.buffers[ref.buffer];
          uses |= buffer.role == Role::kParamFull && buffer.unit == static_cast<int>(waits);
        });
        CHECK(uses);
        ++waits;
      }
      CHECK(waits == carried.size());
      CHECK(program.section(Section::kDrain).size() == 1);
    }
  }
}

TEST_CASE("nothing is carried by one rank, at stage 0, or without overlap_comm") {
  for (const int stage : {0, 1, 2}) {
    for (const int ranks : {1, 2}) {
      for (const bool overlap : {true, false}) {
        if (stage > 0 && ranks > 1 && overlap) continue;
        TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kBF16, 1, kNoRecompute);
        setup.zero.overlap_comm = overlap;
        const Program program = Lower(testing::TinyModel(3), setup);
        // At stage 0 every rank updates everything, and broadcasts nothing.
        CAPTURE(stage);
        CAPTURE(ranks);
        CHECK(CarriedGathers(program).empty());
        CHECK(program.section(Section::kDrain).empty());
      }
    }
  }
}

TEST_CASE("Verify refuses a program in which a wait for a carried gather is missing") {
  for (const int stage : {1, 2, 3}) {
    TrainSetup setup = testing::BaseSetup(stage, 3, Dtype::kBF16, 2, kNoRecompute);
    if (stage == 3) setup.zero.param_persistence_threshold = 60;  // some units stay whole
    const Program program = Lower(testing::TinyModel(2), setup);
    CHECK(Verify(program, 1).empty());
    const std::vector<size_t> carried = CarriedGathers(program);
    REQUIRE(carried.size() >= 1);
    // At stage 3 the step's own first gather comes after them on their stream, and is waited for.
    if (stage == 3) continue;
    size_t dropped = 0;
    const auto& micro = program.section(Section::kMicroStep);
    for (const size_t gather : carried) {
      const auto& record = program.section(Section::kOptimizerStep)[gather + 1];
      const EventId event = std::get<RecordEvent>(record.op).event;
      for (size_t i = 0; i < micro.size(); ++i) {
        const auto* wait = std::get_if<WaitEvent>(&micro[i].op);
        if (wait == nullptr || wait->event != event) continue;
        Program broken = program;
        auto& list = broken.section(Section::kMicroStep);
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        const std::vector<Violation> found = Verify(broken, 1);
        REQUIRE(!found.empty());
        CHECK(found[0].rule == "race");
        ++dropped;
      }
    }
    CHECK(dropped == carried.size());
  }
}

// What a step's micro-steps have under way on the streams of reductions when they end.
class LeftBehind : public UnrollVisitor {
 public:
  explicit LeftBehind(const Program& program) : order_(program.event_count) {}

  void Run(const Instruction& instruction, Site site) override {
    const Moment moment = order_.Issue(instruction.stream);
    if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      order_.Record(record->event, instruction.stream);
    } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      order_.Wait(wait->event, instruction.stream);
    } else if (site.section == Section::kMicroStep && instruction.stream != Stream::kCompute) {
      issued_.push_back({moment, instruction.stream});
    } else if (site.section == Section::kMicroStep && instruction.phase == Phase::kBackward &&
               !in_backward_) {
      in_backward_ = true;
      for (const Moment& left : left_) {
        left_in_backward += !order_.Ordered(left, Stream::kCompute);
      }
    }
  }
  void EndSection(Section section, uint8_t kind) override {
    if (section != Section::kMicroStep) return;
    left_.clear();
    for (const auto& [moment, stream] : issued_) {
      if (order_.Ordered(moment, Stream::kCompute)) continue;
      left_.push_back(moment);
      ++((kind & kLeavesToMicroStep) != 0 ? by_stream[static_cast<size_t>(stream)] : by_the_last);
    }
    issued_.clear();
    in_backward_ = false;
  }
  void EndStep() override {}
  void Synchronize() override { order_.Synchronize(); }

  std::array<int, kStreams> by_stream{};
  int by_the_last = 0;
  int left_in_backward = 0;  // of what was left, when the next backward pass begins

 private:
  HappensBefore order_;
  std::vector<std::pair<Moment, Stream>> issued_;
  std::vector<Moment> left_;
  bool in_backward_ = false;
};

LeftBehind LeftBy(const Program& program) {
  LeftBehind left(program);
  Unroll(program, left);
  return left;
}

TEST_CASE("reductions run on into the next micro-step's forward pass, and no further") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      // Which of the shards' parts come last is the layout's matter.
      if (offload == testing::Offload::kRatio) continue;
      for (const int ranks : {1, 2}) {
        for (const bool overlap : {true, false}) {
          for (const int64_t grad_accum : {1, 2, 3, 5}) {
            CAPTURE(stage);
            CAPTURE(std::string(testing::OffloadLabel(offload)));
            CAPTURE(ranks);
            CAPTURE(overlap);
            CAPTURE(grad_accum);
            TrainSetup setup =
                testing::BaseSetup(stage, ranks, Dtype::kBF16, grad_accum, kNoRecompute);
            testing::SetOffload(setup, offload);
            setup.zero.overlap_comm = overlap;
            const LeftBehind left = LeftBy(Lower(testing::TinyModel(2), setup));
            const bool to_host =
                offload != testing::Offload::kNone && offload != testing::Offload::kParam;
            const bool leaves = stage >= 2 && grad_accum > 1;
            const auto by = [&](Stream stream) {
              return left.by_stream[static_cast<size_t>(stream)] > 0;
            };
            CHECK(by(Stream::kReduce) == (leaves && overlap && ranks > 1));
            CHECK(by(Stream::kDeviceToHost) == (leaves && overlap && to_host));
            CHECK(by(Stream::kHost) == (leaves && to_host));
            for (const Stream stream : {Stream::kGather, Stream::kHostToDevice, Stream::kStorage,
                                        Stream::kStorageWrite}) {
              CHECK(!by(stream));
            }
            CHECK(left.by_the_last == 0);
            // Sums on the host need nothing of the GPU's.
            if (!to_host) CHECK(left.left_in_backward == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("Verify refuses a program in which a wait for what a micro-step left is missing") {
  for (const int stage : {2, 3}) {
    for (const testing::Offload offload : {testing::Offload::kNone, testing::Offload::kOptimizer}) {
      for (const int64_t grad_accum : {2, 3}) {
        CAPTURE(stage);
        CAPTURE(std::string(testing::OffloadLabel(offload)));
        CAPTURE(grad_accum);
        TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, grad_accum, kNoRecompute);
        testing::SetOffload(setup, offload);
        const Program program = Lower(testing::TinyModel(2), setup);
        REQUIRE(Verify(program, 1).empty());
        const auto& list = program.section(Section::kMicroStep);
        // Those in front of what the micro-step frees first, and the one for the host's slots.
        std::string rules;
        for (size_t i = 0; i < list.size(); ++i) {
          const auto* wait = std::get_if<WaitEvent>(&list[i].op);
          if (wait == nullptr || list[i].when != kTakesFromMicroStep) continue;
          const bool here = std::any_of(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(i),
                                        [&](const auto& before) {
                                          const auto* record = std::get_if<RecordEvent>(&before.op);
                                          return record != nullptr && record->event == wait->event;
                                        });
          if (here) continue;
          Program broken = program;
          auto& changed = broken.section(Section::kMicroStep);
          changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
          const std::vector<Violation> found = Verify(broken, 1);
          REQUIRE(!found.empty());
          rules += found[0].rule + " ";
        }
        const std::string expected = offload == testing::Offload::kNone
                                         ? "use_after_free "
                                         : "use_after_free use_after_free race ";
        CHECK(rules == expected);
      }
    }
  }
}

TEST_CASE("a transient buffer that a micro-step leaves and none frees is a leak") {
  TrainSetup setup = testing::BaseSetup(2, 2, Dtype::kBF16, 3, kNoRecompute);
  Program program = Lower(testing::TinyModel(2), setup);
  auto& list = program.section(Section::kMicroStep);
  const auto head = std::find_if(list.begin(), list.end(), [](const Instruction& i) {
    return std::holds_alternative<Free>(i.op) && i.when == kTakesFromMicroStep;
  });
  REQUIRE(head != list.end());
  list.erase(head);
  const std::vector<Violation> found = Verify(program, 1);
  REQUIRE(!found.empty());
  CHECK(found[0].rule == "leak");
  const std::vector<Violation> drafted = CheckDraft(program, DraftStage::kPlaced, 1);
  REQUIRE(!drafted.empty());
  CHECK(drafted[0].rule == "leak");
}

}  // namespace
}  // namespace zeroplan
