// CheckDraft on programs broken on purpose: every rule fires.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/lowering/passes.h"
#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/program/program_faults.h"

namespace zeroplan {
namespace {

// The program that the passes up to `last` leave: stage 2, 2 ranks, 3 micro-steps, part of the
// optimizer on the host.
Program DraftAfter(std::string_view last) {
  TrainSetup setup = testing::BaseSetup(2, 2, Dtype::kBF16, 3, kNoRecompute);
  testing::SetOffload(setup, testing::Offload::kRatio);
  const ModelSpec model = testing::TinyModel(2);
  const LowerOptions options;
  return PassRunner{.input = {options}, .until = last}.Run(
      EmptyProgram(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
                   setup, options));
}

DraftStage StageOf(std::string_view last) {
  for (const Pass& pass : kPasses) {
    if (pass.name == last) return pass.leaves;
  }
  return DraftStage::kMeaning;
}

struct Fault {
  std::string_view rule;
  std::string_view after;  // the pass whose program is broken
  std::string_view what;
  std::function<void(Program&)> put;
};

Instruction& At(Program& p, Section section, size_t index) { return p.section(section)[index]; }
LaunchKernel& FirstLaunch(Program& p, Section section) {
  return std::get<LaunchKernel>(At(p, section, Find<LaunchKernel>(p, section)).op);
}
Buffer& FirstOf(Program& p, Role role) {
  for (Buffer& buffer : p.buffers) {
    if (buffer.role == role && buffer.unit >= 0) return buffer;
  }
  FAIL("no buffer for " << RoleName(role));
  return p.buffers.front();
}
Buffer& FirstOf(Program& p, StateKind kind) {
  for (Buffer& buffer : p.buffers) {
    if (buffer.holds(kind)) return buffer;
  }
  FAIL("no buffer for " << StateKindName(kind));
  return p.buffers.front();
}
// The first instruction that reads a transient buffer.
size_t FirstReadOfTransient(const Program& p, Section section, BufferId* read) {
  const auto& list = p.section(section);
  for (size_t i = 0; i < list.size(); ++i) {
    *read = kNoBuffer;
    if (!std::holds_alternative<LaunchKernel>(list[i].op)) continue;
    ForEachAccess(p, list[i], [&](const Ref& ref, ArgMode mode) {
      if (Reads(mode) && !p.buffers[ref.buffer].persistent) *read = ref.buffer;
    });
    if (*read != kNoBuffer) return i;
  }
  FAIL("nothing reads a transient buffer");
  return 0;
}
void Insert(Program& p, Section section, size_t at, Op op) {
  auto& list = p.section(section);
  Instruction instruction = list[std::min(at, list.size() - 1)];
  instruction.op = op;
  instruction.stream = Stream::kCompute;
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), instruction);
}
BufferId AnyPersistent(const Program& p) { return p.state_buffer; }

const std::vector<Fault>& Faults() {
  constexpr Section kMicro = Section::kMicroStep;
  static const auto* faults = new std::vector<Fault>{
      {"malformed", "BuildCompute", "an argument names no buffer",
       [](Program& p) { p.refs[FirstLaunch(p, kMicro).first_arg].buffer = 1u << 20; }},
      {"malformed", "InsertReduction", "a collective names no segments",
       [](Program& p) {
         const size_t i = Find<Collective>(p, kMicro);
         std::get<Collective>(At(p, kMicro, i).op).first_segment = 1u << 30;
       }},
      {"malformed", "InsertRecompute", "an instruction that never runs",
       [](Program& p) { At(p, kMicro, 0).when = 0; }},
      {"malformed", "BuildCompute", "the step state's buffer is for something else",
       [](Program& p) { p.state_buffer = p.tokens_buffer; }},
      {"malformed", "InsertOptimizer", "an Alloc before InsertLifetimes",
       [](Program& p) { Insert(p, kMicro, 0, Alloc{AnyPersistent(p)}); }},
      {"malformed", "InsertLifetimes", "an event before AssignEvents",
       [](Program& p) {
         p.event_count = 1;
         Insert(p, kMicro, 0, RecordEvent{0});
       }},
      {"shard_cover", "BuildCompute", "shards that do not cover a unit",
       [](Program& p) { p.layout.units[1].shard_elements -= kShardAlignElements; }},
      {"shard_cover", "BuildCompute", "a unit's buffer too small",
       [](Program& p) { FirstOf(p, Role::kParamFull).bytes -= 128; }},
      {"shard_cover", "InsertStates", "states that miss elements",
       [](Program& p) { FirstOf(p, StateKind::kSecond).bytes -= 256; }},
      {"shard_cover", "InsertStates", "reduced gradients that repeat elements",
       [](Program& p) { FirstOf(p, Role::kGradHost).bytes += 128; }},
      {"bad_unit", "InsertStates", "a unit that is not there",
       [](Program& p) { FirstOf(p, StateKind::kFirst).unit = 99; }},
      {"bad_unit", "BuildCompute", "a layer that is not there",
       [](Program& p) { FirstOf(p, Role::kParamFull).layer = 3; }},
      {"duplicate_role", "InsertStates", "two buffers for the same states",
       [](Program& p) { p.buffers.push_back(FirstOf(p, StateKind::kFirst)); }},
      {"illegal_tag", "InsertOptimizer", "a phase that the section does not have",
       [](Program& p) { At(p, Section::kOptimizerStep, 0).phase = Phase::kForward; }},
      {"illegal_tag", "BuildCompute", "a layer that the model does not have",
       [](Program& p) { At(p, kMicro, 0).layer = 3; }},
      {"illegal_tag", "InsertOptimizer", "kinds of micro-steps outside of micro_step",
       [](Program& p) { At(p, Section::kOptimizerStep, 0).when = kFirst; }},
      {"illegal_tag", "InsertReduction", "only where there is one micro-step",
       [](Program& p) { At(p, kMicro, 0).when = kOnly; }},
      {"out_of_bounds", "InsertReduction", "a range beyond its buffer",
       [](Program& p) {
         const Ref& ref = p.refs[FirstLaunch(p, kMicro).first_arg];
         p.buffers[ref.buffer].bytes = ref.bytes - DtypeBytes(p.buffers[ref.buffer].dtype);
       }},
      {"misaligned", "BuildCompute", "a range that splits an element",
       [](Program& p) { p.refs[FirstLaunch(p, kMicro).first_arg].offset += 1; }},
      {"size_mismatch", "InsertOptimizer", "a copy of two sizes",
       [](Program& p) {
         const size_t i = Find<Copy>(p, Section::kOptimizerStep);
         std::get<Copy>(At(p, Section::kOptimizerStep, i).op).dst.bytes -= 8;
       }},
      {"stream_mismatch", "BuildCompute", "a kernel on a copy stream",
       [](Program& p) {
         At(p, kMicro, Find<LaunchKernel>(p, kMicro)).stream = Stream::kHostToDevice;
       }},
      {"collective_order", "InsertReduction", "a collective on compute",
       [](Program& p) { At(p, kMicro, Find<Collective>(p, kMicro)).stream = Stream::kCompute; }},
      {"uninitialised_read", "InsertRecompute", "a transient buffer read before it is written",
       [](Program& p) {
         BufferId read = kNoBuffer;
         const size_t i = FirstReadOfTransient(p, kMicro, &read);
         const Instruction reader = At(p, kMicro, i);
         Erase(p, kMicro, i);
         p.section(kMicro).insert(p.section(kMicro).begin(), reader);
       }},
      {"uninitialised_read", "InsertReduction", "written in another kind of micro-step only",
       [](Program& p) {
         BufferId read = kNoBuffer;
         const size_t end = FirstReadOfTransient(p, kMicro, &read);
         for (size_t i = 0; i < end; ++i) {
           ForEachAccess(p, At(p, kMicro, i), [&](const Ref& ref, ArgMode mode) {
             if (ref.buffer == read && Writes(mode)) At(p, kMicro, i).when = kFirst | kLast;
           });
         }
       }},
      {"uninitialised_read", "InsertOffload", "a persistent buffer that nothing ever writes",
       [](Program& p) {
         for (const Section section : {Section::kInit, Section::kOptimizerStep, Section::kLoad}) {
           p.section(section).clear();
         }
       }},
      {"use_after_free", "InsertReduction", "a gradient released before it is reduced",
       [](Program& p) {
         const size_t i = Find<Collective>(p, kMicro);
         const Collective reduce = std::get<Collective>(At(p, kMicro, i).op);
         Insert(p, kMicro, i, Free{p.segs(reduce)[0].src.buffer});
       }},
      {"wrong_space", "InsertOffload", "a kernel on the device adds to host memory",
       [](Program& p) {
         const size_t i = Find<LaunchKernel>(p, kMicro, [&](const LaunchKernel& launch) {
           return launch.kernel == KernelId::kNormSq;
         });
         At(p, kMicro, i).stream = Stream::kReduce;
       }},
      {"use_before_alloc", "InsertLifetimes", "an Alloc missing",
       [](Program& p) { Erase(p, kMicro, Find<Alloc>(p, kMicro)); }},
      {"use_before_alloc", "InsertLifetimes", "a persistent Alloc missing",
       [](Program& p) {
         Erase(p, Section::kInit, Find<Alloc>(p, Section::kInit, [&](const Alloc& alloc) {
                 return alloc.buffer == p.state_buffer;
               }));
       }},
      {"double_alloc", "InsertLifetimes", "two Allocs",
       [](Program& p) { Duplicate(p, kMicro, Find<Alloc>(p, kMicro)); }},
      {"double_alloc", "AssignEvents", "two persistent Allocs",
       [](Program& p) { Duplicate(p, Section::kInit, Find<Alloc>(p, Section::kInit)); }},
      {"double_free", "InsertLifetimes", "two Frees",
       [](Program& p) { Duplicate(p, kMicro, Find<Free>(p, kMicro)); }},
      {"leak", "InsertLifetimes", "a Free missing",
       [](Program& p) { Erase(p, kMicro, Find<Free>(p, kMicro)); }},
      {"persistent_alloc", "InsertLifetimes", "a persistent buffer allocated in a step",
       [](Program& p) { Insert(p, kMicro, 0, Alloc{AnyPersistent(p)}); }},
      {"persistent_freed", "InsertReduction", "a persistent buffer freed",
       [](Program& p) { Insert(p, kMicro, 0, Free{AnyPersistent(p)}); }},
      {"wait_without_record", "AssignEvents", "a wait that nothing ends",
       [](Program& p) {
         ++p.event_count;
         Insert(p, kMicro, 0, WaitEvent{p.event_count - 1});
       }},
      {"out_of_bounds", "PlaceArenas", "a buffer beyond its arena",
       [](Program& p) { p.buffers[p.state_buffer].offset = 128 * p.arena_bytes[0]; }},
      {"misaligned", "PlaceArenas", "a buffer off its alignment",
       [](Program& p) { p.buffers[p.state_buffer].offset += 8; }},
  };
  return *faults;
}

TEST_CASE("draft check: what is put into right programs is found, and nothing before") {
  for (const Fault& fault : Faults()) {
    CAPTURE(std::string(fault.rule));
    CAPTURE(std::string(fault.after));
    CAPTURE(std::string(fault.what));
    Program program = DraftAfter(fault.after);
    const DraftStage stage = StageOf(fault.after);
    for (const Violation& violation : CheckDraft(program, stage)) FAIL_CHECK(violation.message);
    fault.put(program);
    std::string rules;
    bool seen = false;
    for (const Violation& violation : CheckDraft(program, stage, 1000)) {
      rules += violation.rule + " ";
      seen |= violation.rule == fault.rule;
    }
    CHECK_MESSAGE(seen, "found: " << rules);
  }
}

TEST_CASE("draft check: what later passes settle is no fault before them") {
  // Gradients are added to host memory from the device until InsertOffload, and nothing has written
  // the parameters before InsertOptimizer.
  const Program reduced = DraftAfter("InsertReduction");
  CHECK(CheckDraft(reduced, DraftStage::kMeaning).empty());
  std::string rules;
  for (const Violation& violation : CheckDraft(reduced, DraftStage::kReachable, 1000)) {
    rules += violation.rule + " ";
  }
  CHECK(rules.find("wrong_space") != std::string::npos);
  CHECK(rules.find("uninitialised_read") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
