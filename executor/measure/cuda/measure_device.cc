#include "executor/measure/measure_device.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/measure/cuda/device_parts.h"
#include "executor/measure/part_runner.h"

namespace zeroplan {
namespace {

constexpr uint64_t kBenchBytes = uint64_t{3584} << 20;  // the 16384 x 50304 logits and more

// The rank's among the GPUs of its host, or the only one it sees: as the engine chooses.
int TakeDevice(const ProcessPlace& place) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    ThrowRuntime("there is no GPU to measure: {}",
                 status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  }
  const int device = count == 1 ? 0 : place.local_rank;
  if (device >= count) {
    ThrowRuntime("rank {} of this host has no GPU to measure: there are {}", device, count);
  }
  ZEROPLAN_CUDA(cudaSetDevice(device));
  return device;
}

// Whether all ranks have the same kind of GPU, with the same libraries; says so if not.
bool AllAlike(ProcessGroup& group, const DeviceProperties& properties) {
  bool alike = true;
  const std::vector<std::string> kinds = group.AllGather(
      properties.name + (properties.fused_attention ? " with" : " without") + " fused attention");
  for (size_t rank = 1; rank < kinds.size(); ++rank) {
    if (kinds[rank] == kinds[0]) continue;
    alike = false;
    if (group.rank() == 0) {
      LogWarning(
          "GPU {} is another kind than GPU 0: {}, {}; a profile has one kind, and this one "
          "describes GPU 0",
          rank, kinds[rank], kinds[0]);
    }
  }
  return alike;
}

// Rank `rank` measures, and rank 0 has what it found, too. All ranks call it.
void MeasureAttentionOn(int rank, int device, const DeviceProperties& properties,
                        ProcessGroup& group, const DeviceMeasureOptions& options,
                        PartRunner& runner, MachineMeasurement& result) {
  if (group.rank() == rank) {
    PartRunner own(result, options.progress);
    const auto measure = [&](MachineMeasurement& out) {
      KernelBench bench(device, kBenchBytes, options.quick);
      MeasureAttention(bench, properties, options.quick, out.kernels);
    };
    if (!own.Try("attention", "causal attention", measure)) cudaGetLastError();
  }
  if (rank == 0) return;
  const std::vector<std::string> texts =
      group.AllGather(group.rank() == rank ? AttentionText(result) : "");
  if (group.rank() != 0) return;
  const std::string& text = texts[static_cast<size_t>(rank)];
  runner.Try("attention", "of the second GPU",
             [&](MachineMeasurement& out) { out.kernels.attention = AttentionOfText(text); });
}

// Parts that one rank measures alone, and those that need all ranks.
struct RunParts {
  PartRunner& runner;

  bool Alone(const char* name, const char* what, const PartRunner::Measure& measure) {
    const bool done = runner.Try(name, what, measure);
    // A failed call's error would be taken for the next launch's.
    if (!done) cudaGetLastError();
    return done;
  }
  // A rank that failed has left the others in the middle of something: all of them end.
  void Together(const ProcessGroup& group, const char* name, const char* what,
                const PartRunner::Measure& measure) {
    if (group.world_size() == 1) {
      Alone(name, what, measure);
    } else {
      runner.Run(name, what, measure);
    }
  }
};

// What one host shows. All ranks of `group`, which are on it.
void MeasureOneHost(ProcessGroup& group, int device, const DeviceProperties& properties,
                    const DeviceMeasureOptions& options, const PartRunner::Say& say, RunParts run,
                    MachineMeasurement& result) {
  const DeviceParts& parts = options.parts;
  const bool attention = parts.attention && properties.fused_attention;
  if (parts.attention && !attention) say("attention: not measured, the GPU has no fused kernels");
  // Building its plans takes longest of all; another GPU of the same kind does so meanwhile.
  const int attention_rank = group.world_size() > 1 && AllAlike(group, properties) ? 1 : 0;
  const auto on_bench = [&](auto measure) {
    return [&, measure](MachineMeasurement& out) {
      KernelBench bench(device, kBenchBytes, options.quick);
      measure(bench, properties, options.quick, out.kernels);
    };
  };
  if (group.rank() == 0) {
    if (parts.memory) {
      run.Alone("memory", "launches, copies, kernels that move memory",
                on_bench(MeasureMemoryKernels));
    }
    if (parts.gemm && run.Alone("gemm", "matrix products", on_bench(MeasureGemms)) &&
        HasFp8(properties)) {
      run.Alone("gemm", "matrix products of 8 bits", on_bench(MeasureEightBitGemms));
    }
    if (parts.gemm) run.Alone("gemm", "matrix products of experts", on_bench(MeasureGroupedGemms));
    if (parts.power) {
      run.Alone("power", "what products and copies draw", [&](MachineMeasurement& out) {
        KernelBench bench(device, kBenchBytes, options.quick);
        MeasurePower(bench, device, properties, options.quick, out.kernels);
      });
    }
  }
  if (attention) {
    MeasureAttentionOn(attention_rank, device, properties, group, options, run.runner, result);
  }
  group.Barrier();
  if (parts.pcie) {
    run.Together(group, "pcie", "copies between host and GPUs", [&](MachineMeasurement& out) {
      out.pcie = MeasurePcie(group, options.quick);
      if (group.rank() == 0) out.pinned = TryPinnedMemory(0, options.quick ? 1 : 5);
    });
    group.Barrier();
  }
  if (parts.collectives && group.world_size() > 1) {
    run.Together(
        group, "collectives", "NCCL by size and ranks, and beside products",
        [&](MachineMeasurement& out) { MeasureCollectives(group, options.quick, say, out); });
  }
}

}  // namespace

void MeasureDevice(ProcessGroup& group, const DeviceMeasureOptions& options,
                   MachineMeasurement& result) {
  const int device = TakeDevice(group.place());
  const int of_host = RanksOfAHost(group);
  const auto say = [&](const std::string& what) {
    if (group.rank() == 0) options.progress(what);
  };
  const DeviceProperties properties = QueryDeviceProperties(device);
  const DeviceParts& parts = options.parts;
  result.gpus = of_host;
  result.device = properties;
  PartRunner runner(result, say);
  RunParts run{runner};
  // First: afterwards other things lie on the GPU.
  if (parts.runtime) {
    const char* what = "memory outside the arenas, steps of a small GPT";
    const std::string busy = WhoIsBusy(group);
    if (busy.empty()) {
      run.Together(group, "runtime", what, [&](MachineMeasurement& out) {
        out.runtime = MeasureRuntime(group, properties, say);
      });
    } else {  // which all ranks know
      run.Alone("runtime", what, [&](MachineMeasurement&) { ThrowRuntime("{}", busy); });
    }
  }
  if (of_host == group.world_size()) {
    MeasureOneHost(group, device, properties, options, say, run, result);
    return;
  }
  SubGroup host(group, of_host);
  if (host.is_member()) {
    MeasureOneHost(host, device, properties, options, say, run, result);
    host.Dismiss();
  } else {
    host.Follow();
  }
  if (parts.network) {
    runner.Run("network", "NCCL between hosts",
               [&](MachineMeasurement& out) { MeasureNetwork(group, options.quick, say, out); });
  }
}

}  // namespace zeroplan
