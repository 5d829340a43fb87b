#include "tests/core/lowering/config_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <utility>

#include "core/config/deepspeed_reader.h"
#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "tests/tiny_model.h"

namespace zeroplan::testing {

TrainSetup ReadConfig(const json& config, const ConfigContext& where) {
  ReadContext context;
  context.world_size = where.world_size;
  context.seq_len = 8;
  context.layers = where.layers;
  return ReadDeepSpeedConfig(config.dump(), "config", context).setup;
}

Program LowerConfig(const json& config, const ConfigContext& where) {
  const TrainSetup setup = ReadConfig(config, where);
  ValidateSetup(setup, "config");
  Program program = Lower(TinyModel(where.layers), setup);
  VerifyOrThrow(program);
  return program;
}

json BaseConfig(int stage) {
  return {{"train_micro_batch_size_per_gpu", 2},
          {"bf16", {{"enabled", true}}},
          {"zero_optimization",
           {{"stage", stage},
            {"reduce_bucket_size", 5000},
            {"allgather_bucket_size", 5000},
            {"overlap_comm", true},
            {"sub_group_size", 1500},
            {"stage3_prefetch_bucket_size", 1},
            {"stage3_param_persistence_threshold", 0},
            {"stage3_max_reuse_distance", 0}}}};
}

json With(json base, const std::string& key, json value) {
  std::string pointer = "/" + key;
  for (char& c : pointer) c = c == '.' ? '/' : c;
  base[json::json_pointer(pointer)] = std::move(value);
  return base;
}
json WithZero(json base, const std::string& key, json value) {
  return With(std::move(base), "zero_optimization." + key, std::move(value));
}

namespace {

std::string OpName(const Op& op) {
  struct Namer {
    std::string operator()(const LaunchKernel& launch) const {
      return std::string(KernelInfo(launch.kernel).name);
    }
    std::string operator()(const Collective& collective) const {
      return std::string(CollectiveKindName(collective.kind)) +
             (collective.scalar ? " scalar" : "");
    }
    std::string operator()(const Copy&) const { return "copy"; }
    std::string operator()(const FileIo& io) const { return io.write ? "file_write" : "file_read"; }
    std::string operator()(const Alloc&) const { return ""; }
    std::string operator()(const Free&) const { return ""; }
    std::string operator()(const RecordEvent&) const { return ""; }
    std::string operator()(const WaitEvent&) const { return ""; }
  };
  return std::visit(Namer{}, op);
}

// How many instructions of each sort a program has.
using Counts = std::map<std::string, int>;
Counts CountOps(const Program& program) {
  Counts counts;
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    for (const Instruction& i : program.section(section)) {
      const std::string name = OpName(i.op);
      if (name.empty()) continue;
      ++counts[fmt::format("{} {} {}", SectionName(section), StreamName(i.stream), name)];
    }
  }
  return counts;
}

}  // namespace

Changes CountChanges(const Program& before, const Program& after) {
  Changes changes = CountOps(after);
  for (const auto& [name, count] : CountOps(before)) changes[name] -= count;
  std::erase_if(changes, [](const auto& entry) { return entry.second == 0; });
  return changes;
}

void CheckChanges(const Program& before, const Program& after, const Changes& expected) {
  const Changes changes = CountChanges(before, after);
  const auto print = [](const Changes& list) {
    std::string text;
    for (const auto& [name, count] : list) text += fmt::format("  {:+} {}\n", count, name);
    return text;
  };
  const bool same = changes == expected;
  CHECK_MESSAGE(same, "changed:\n" << print(changes) << "expected:\n" << print(expected));
}

namespace {

std::vector<std::string> ComputeKernels(const Program& program, Section section) {
  std::vector<std::string> kernels;
  for (const Instruction& i : program.section(section)) {
    const auto* launch = std::get_if<LaunchKernel>(&i.op);
    if (launch == nullptr || i.stream != Stream::kCompute) continue;
    if (launch->kernel == KernelId::kFill) continue;
    kernels.push_back(fmt::format("{} {} {} {}", KernelInfo(launch->kernel).name,
                                  fmt::join(launch->dims, ","), launch->flags, i.when));
  }
  return kernels;
}

}  // namespace

bool SameCompute(const Program& a, const Program& b) {
  return ComputeKernels(a, Section::kMicroStep) == ComputeKernels(b, Section::kMicroStep) &&
         ComputeKernels(a, Section::kEval) == ComputeKernels(b, Section::kEval);
}

namespace {

std::string TextWithoutEvents(const Program& program, Section section) {
  std::string text;
  for (const Instruction& i : program.section(section)) {
    if (std::holds_alternative<RecordEvent>(i.op) || std::holds_alternative<WaitEvent>(i.op)) {
      continue;
    }
    text += FormatInstruction(program, i) + "\n";
  }
  return text;
}

}  // namespace

bool SameSections(const Program& a, const Program& b, const std::vector<Section>& sections) {
  for (Section section : sections) {
    if (TextWithoutEvents(a, section) != TextWithoutEvents(b, section)) return false;
  }
  return true;
}
bool SameProgram(const Program& a, const Program& b) {
  return FormatProgram(a) == FormatProgram(b) && a.arena_bytes == b.arena_bytes;
}

std::vector<std::vector<uint64_t>> SegmentElements(const Program& program, Section section,
                                                   CollectiveKind kind) {
  std::vector<std::vector<uint64_t>> collectives;
  for (const Instruction& i : program.section(section)) {
    const auto* collective = std::get_if<Collective>(&i.op);
    if (collective == nullptr || collective->kind != kind || collective->scalar) continue;
    auto& segments = collectives.emplace_back();
    for (const Segment& segment : program.segs(*collective)) {
      segments.push_back(segment.src.bytes / DtypeBytes(collective->dtype));
    }
  }
  return collectives;
}
uint64_t Sum(const std::vector<uint64_t>& list) {
  return std::accumulate(list.begin(), list.end(), uint64_t{0});
}
uint64_t Sum(const std::vector<std::vector<uint64_t>>& lists) {
  uint64_t sum = 0;
  for (const auto& list : lists) sum += Sum(list);
  return sum;
}

}  // namespace zeroplan::testing
