#include "cli/run/generate/placement.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "hwprofiles/profile.h"
#include "machine/detect.h"
#include "planner/footprint.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"

namespace zeroplan {
namespace {

// Rows of a tile of the GPU's products; cuDNN's attention takes lengths that are no multiple of it
// by slower kernels.
constexpr int64_t kTileRows = 128;
// Proposed contexts are not shorter.
constexpr int64_t kShortestContext = 64;

// This machine's GPU, as far as its profile and its driver know it.
void PlaceOnGpu(const PlacementOptions& options, const ModelSpec& model, Placement& place) {
  Assumptions assumptions;
  HardwareProfile hardware = ResolveHardware({.find = FindThisMachine}, {}, assumptions);
  if (!hardware.kinds.empty()) hardware.gpu = hardware.kinds.front().gpu;  // it runs on the first
  AskedSettings batch;
  batch.dtype = options.dtype;
  place.dtype = ResolvePrecision(batch, hardware, DefaultDtype(hardware), assumptions).dtype;
  place.flash_attention = GpuLowerOptions(model, place.dtype, hardware.gpu).flash_attention;
  place.runtime_bytes = RuntimeBytes(hardware, 1);
  const std::vector<DetectedGpu> gpus = QueryGpus();
  place.device = gpus.empty() ? "the GPU" : gpus.front().name;
  std::optional<uint64_t> bytes = options.cluster.gpu_memory;
  if (!bytes && assumptions.detected_gpus) {
    bytes = static_cast<uint64_t>(hardware.gpu.usable_memory.value);
  } else if (!bytes && !gpus.empty()) {
    bytes = static_cast<uint64_t>(gpus.front().memory_bytes);
  }
  place.reserve_bytes = options.cluster.gpu_reserve.value_or(kGpuReserveBytes);
  if (bytes) place.gpu_bytes = *bytes - std::min(*bytes, place.reserve_bytes);
}

Footprint FootprintAt(const Program& program, const Placement& place) {
  Cluster cluster;
  cluster.runtime_bytes = place.runtime_bytes;
  const Footprint footprint = FootprintOf(program, cluster);
  return place.backend == Backend::kCpu ? OnCpuBackend(footprint, 1) : footprint;
}

uint64_t BytesOf(const Footprint& footprint, MemoryKind kind) {
  return kind == MemoryKind::kGpu ? footprint.gpu_total() : footprint.host.total();
}

std::optional<Shortage> FirstShortage(const Footprint& footprint, const Placement& place) {
  const std::vector<Shortage> shortages =
      Check(footprint, {.gpu_bytes = place.gpu_bytes, .host_bytes = place.host.bytes});
  return shortages.empty() ? std::nullopt : std::optional(shortages.front());
}

struct Change {
  std::string text;  // the options that ask for it
  GeneratorOptions options;
};

// Smallest first.
std::vector<Change> Changes(const GeneratorOptions& options, int64_t context) {
  std::vector<Change> changes;
  GeneratorOptions changed = options;
  std::string dtype;
  if (options.dtype == Dtype::kF32) {
    changed.dtype = Dtype::kBF16;
    dtype = "--dtype bf16";
    changes.push_back({dtype, changed});
  }
  for (int64_t shorter = context / 2; shorter >= kShortestContext; shorter /= 2) {
    changed.context = shorter;
    changes.push_back(
        {fmt::format("{}{}--context {}", dtype, dtype.empty() ? "" : " ", shorter), changed});
  }
  return changes;
}

std::string WhatFits(const Program& program, const GeneratorOptions& options,
                     const Placement& place, MemoryKind kind) {
  for (const Change& change : Changes(options, program.setup.batch.seq_len)) {
    const Footprint footprint = FootprintAt(LowerGenerator(program.model, change.options), place);
    if (FirstShortage(footprint, place)) continue;
    return fmt::format("{} fits with {}", change.text, FormatBytes(BytesOf(footprint, kind)));
  }
  return place.backend == Backend::kCuda
             ? "no shorter --context fits; use a larger GPU, or --backend cpu"
             : "no shorter --context fits; use a machine with more memory, or a smaller model";
}

}  // namespace

void AddPlacementOptions(Command& command, PlacementOptions& options) {
  const char* group = "Where it runs";
  command.Value({group, "--backend", "cpu|cuda|auto",
                 "On the CPU, or on the first GPU that the process sees (default auto: cuda where "
                 "this build has it and the driver shows a GPU, else cpu)"},
                options.backend, WordIn<BackendChoice>({"cpu", "cuda", "auto"}));
  command.Value({group, "--dtype", "bf16|fp16|fp32",
                 "Precision of weights, keys and values, and compute (default: on the CPU fp32; on "
                 "a GPU bf16, fp16 where it has no bf16)"},
                options.dtype, ParseDtype);
  command.Value({group, "--gpu-memory", "BYTES",
                 "Memory of the GPU that generation may use, such as 32GB (default: the GPU's)"},
                options.cluster.gpu_memory, ParseMemory);
  AddReserveFields(command, group, options.cluster);
}

Placement ResolvePlacement(const PlacementOptions& options, const ModelSpec& model) {
  Placement place;
  place.backend = ChooseBackend(options.backend, "takes longer");
  RequireBackend(place.backend, 1);
  RefuseOnCpu(place.backend, "--gpu-memory", options.cluster.gpu_memory.text);
  RefuseOnCpu(place.backend, "--gpu-reserve", options.cluster.gpu_reserve.text);
  place.host = AvailableHostMemory(options.cluster.host_reserve);
  if (place.backend == Backend::kCuda) {
    PlaceOnGpu(options, model, place);
    return place;
  }
  place.dtype = options.dtype.value_or(Dtype::kF32);
  place.device = "the CPU";
  return place;
}

GeneratorOptions GeneratorAt(const Placement& place, int64_t context, bool keep_keys_values) {
  return {.context = context,
          .keep_keys_values = keep_keys_values,
          .backend = place.backend,
          .dtype = place.dtype,
          .flash_attention = place.flash_attention};
}

int64_t DefaultContext(const Placement& place, const ModelSpec& model, int64_t needed) {
  if (place.backend == Backend::kCuda) {
    needed = (needed + kTileRows - 1) / kTileRows * kTileRows;
  }
  return std::min(needed, model.positions);
}

void CheckGeneratorFits(const Program& program, const GeneratorOptions& options,
                        const Placement& place) {
  const std::optional<Shortage> shortage = FirstShortage(FootprintAt(program, place), place);
  if (!shortage) return;
  const bool of_gpu = shortage->kind == MemoryKind::kGpu;
  const std::string has =
      of_gpu ? fmt::format("{} has {} (less {} kept free)", place.device,
                           FormatBytes(shortage->has), FormatBytes(place.reserve_bytes))
             : fmt::format("{} {} free", place.host.whose, FormatBytes(shortage->has));
  const std::string outside =
      of_gpu ? fmt::format(" ({} of it outside the plan)", FormatBytes(place.runtime_bytes)) : "";
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("{} short by {}: the model in {} with a context of {} tokens needs {}{}, {}; {}",
                  MemoryKindName(shortage->kind), FormatBytes(shortage->short_by()),
                  DtypeName(options.dtype), program.setup.batch.seq_len,
                  FormatBytes(shortage->needs), outside, has,
                  WhatFits(program, options, place, shortage->kind)));
}

}  // namespace zeroplan
