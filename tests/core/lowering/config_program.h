// Programs lowered from DeepSpeed configs, and how two of them differ: for tests that ask what a
// key of the config does.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/config/deepspeed_reader.h"
#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan::testing {

using nlohmann::json;

// What the config does not say: two ranks, sequences of 8 tokens, a model of `layers` layers.
struct ConfigContext {
  int world_size = 2;
  int64_t layers = 2;
};

inline TrainSetup ReadConfig(const json& config, const ConfigContext& where = {}) {
  ReadContext context;
  context.world_size = where.world_size;
  context.seq_len = 8;
  context.layers = where.layers;
  return ReadDeepSpeedConfig(config.dump(), "config", context).setup;
}

inline Program LowerConfig(const json& config, const ConfigContext& where = {}) {
  const TrainSetup setup = ReadConfig(config, where);
  ValidateSetup(setup, "config");
  Program program = Lower(TinyModel(where.layers), setup);
  VerifyOrThrow(program);
  return program;
}

// A config with bf16, micro-batch 2 and buckets below a layer's 4352 elements, so that the tiny
// model really shards, cuts and gathers. Nothing is kept whole or for reuse.
inline json BaseConfig(int stage) {
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

// `base` with one key changed: dots part the sections of `key`.
inline json With(json base, const std::string& key, json value) {
  std::string pointer = "/" + key;
  for (char& c : pointer) c = c == '.' ? '/' : c;
  base[json::json_pointer(pointer)] = std::move(value);
  return base;
}
inline json WithZero(json base, const std::string& key, json value) {
  return With(std::move(base), "zero_optimization." + key, std::move(value));
}

inline std::string OpName(const Op& op) {
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

// How many instructions of each sort a program has: "micro_step reduce reduce_scatter" -> 3.
// Lifetimes and events follow from the others and are left out.
using Counts = std::map<std::string, int>;
inline Counts CountOps(const Program& program) {
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

// What there is more (positive) or less of in `after`.
using Changes = std::map<std::string, int>;
inline Changes CountChanges(const Program& before, const Program& after) {
  Changes changes = CountOps(after);
  for (const auto& [name, count] : CountOps(before)) changes[name] -= count;
  std::erase_if(changes, [](const auto& entry) { return entry.second == 0; });
  return changes;
}

// Checks that counts changed just so.
inline void CheckChanges(const Program& before, const Program& after, const Changes& expected) {
  const Changes changes = CountChanges(before, after);
  const auto print = [](const Changes& list) {
    std::string text;
    for (const auto& [name, count] : list) text += fmt::format("  {:+} {}\n", count, name);
    return text;
  };
  const bool same = changes == expected;
  CHECK_MESSAGE(same, "changed:\n" << print(changes) << "expected:\n" << print(expected));
}

// The kernels of forward and backward in order: what no key of ZeRO may change. Arguments are left
// out (where a tensor lies is what the keys decide), and so is the zeroing of alignment.
inline std::vector<std::string> ComputeKernels(const Program& program, Section section) {
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
inline bool SameCompute(const Program& a, const Program& b) {
  return ComputeKernels(a, Section::kMicroStep) == ComputeKernels(b, Section::kMicroStep) &&
         ComputeKernels(a, Section::kEval) == ComputeKernels(b, Section::kEval);
}
inline std::string TextWithoutEvents(const Program& program, Section section) {
  std::string text;
  for (const Instruction& i : program.section(section)) {
    if (std::holds_alternative<RecordEvent>(i.op) || std::holds_alternative<WaitEvent>(i.op)) {
      continue;
    }
    text += FormatInstruction(program, i) + "\n";
  }
  return text;
}
// The same but for the numbers of events, which run through all sections.
inline bool SameSections(const Program& a, const Program& b, std::vector<Section> sections) {
  for (Section section : sections) {
    if (TextWithoutEvents(a, section) != TextWithoutEvents(b, section)) return false;
  }
  return true;
}
inline bool SameProgram(const Program& a, const Program& b) {
  return FormatProgram(a) == FormatProgram(b) && a.arena_bytes == b.arena_bytes;
}

inline uint64_t Arena(const Program& program, Space space) {
  return program.arena_bytes[static_cast<size_t>(space)];
}
inline uint64_t Persistent(const Program& program, Space space) {
  return program.persistent_bytes[static_cast<size_t>(space)];
}

// The collectives of one kind, as the elements of their segments' sources.
inline std::vector<std::vector<uint64_t>> SegmentElements(const Program& program, Section section,
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
inline uint64_t Sum(const std::vector<uint64_t>& list) {
  return std::accumulate(list.begin(), list.end(), uint64_t{0});
}
inline uint64_t Sum(const std::vector<std::vector<uint64_t>>& lists) {
  uint64_t sum = 0;
  for (const auto& list : lists) sum += Sum(list);
  return sum;
}

}  // namespace zeroplan::testing
