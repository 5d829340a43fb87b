#include "executor/measure/measure_cpu_ranks.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "executor/measure/measure_host.h"
#include "executor/measure/measured_profile.h"
#include "executor/measure/part_runner.h"
#include "hwprofiles/fields.h"
#include "hwprofiles/product_kind.h"
#include "hwprofiles/sanity.h"
#ifdef ZEROPLAN_WITH_GLOO
#include "executor/collectives/gloo/gloo_communicators.h"
#endif

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double Largest(ProcessGroup& group, double own) {
  const std::vector<double> numbers = GatherNumbers(group, own);
  return *std::max_element(numbers.begin(), numbers.end());
}
double Mean(ProcessGroup& group, double own) {
  double sum = 0;
  for (const double number : GatherNumbers(group, own)) sum += number;
  return sum / group.world_size();
}

// ---- kernels ----

struct SmallModel {
  int64_t hidden, heads, batch, seq;
};
constexpr SmallModel kModels[] = {{256, 4, 1, 128}, {512, 8, 2, 256}};

Program SmallProgram(const SmallModel& small) {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 1;
  model.hidden = small.hidden;
  model.heads = small.heads;
  model.ffn = 4 * small.hidden;
  model.vocab = model.padded_vocab = 256;
  model.positions = small.seq;
  TrainSetup setup;
  setup.zero.stage = 1;
  setup.batch = {
      .micro_batch = small.batch, .grad_accum = 1, .world_size = 1, .seq_len = small.seq};
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  LowerOptions lower;
  lower.backend = Backend::kCpu;
  return Lower(model, setup, lower);
}

struct Calls {
  double seconds = 0;
  int64_t count = 0;
};
using ProductKey = std::tuple<GemmKind, int64_t, int64_t, int64_t>;
using KernelKey = std::pair<KernelId, double>;

void MeasureKernels(ProcessGroup& group, const CpuMeasureOptions& options,
                    CpuRanksMeasurement& result) {
  std::map<ProductKey, Calls> products;
  std::map<KernelKey, Calls> kernels;
  for (const SmallModel& small : kModels) {
    const Program program = SmallProgram(small);
    EngineOptions engine_options;
    engine_options.threads_per_rank = options.threads;
    engine_options.record_trace = true;
    Engine engine(program, engine_options);
    engine.Init();
    const auto tokens = [](int, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = static_cast<int32_t>(i * 79 % 256);
        targets[i] = static_cast<int32_t>((i * 53 + 1) % 256);
      }
    };
    engine.Step(tokens);
    const size_t before = engine.SpanTrace(0).size();
    group.Barrier();
    const Clock::time_point begin = Clock::now();
    for (int step = 0; step < 3 || Since(begin) < (options.quick ? 0.5 : 3.0); ++step) {
      engine.Step(tokens);
    }
    const std::vector<TraceSpan> spans = engine.SpanTrace(0);
    for (size_t i = before; i < spans.size(); ++i) {
      const TraceSpan& span = spans[i];
      const Instruction& instruction =
          program.section(span.section)[static_cast<size_t>(span.index)];
      const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
      if (launch == nullptr) continue;
      const std::optional<GemmKind> kind = ProductKind(KernelInfo(launch->kernel).cost);
      Calls* calls = nullptr;
      if (kind) {
        calls = &products[{*kind, launch->dims[0], launch->dims[1], launch->dims[2]}];
      } else if (std::find(std::begin(kNamedKernels), std::end(kNamedKernels), launch->kernel) !=
                 std::end(kNamedKernels)) {
        calls = &kernels[{launch->kernel, LaunchBytes(program, *launch)}];
      } else {
        continue;
      }
      calls->seconds += span.end_seconds - span.begin_seconds;
      ++calls->count;
    }
    group.Barrier();
  }
  for (const auto& [key, calls] : products) {
    const auto& [kind, m, k, n] = key;
    const double seconds = Mean(group, calls.seconds / static_cast<double>(calls.count));
    result.gemm.push_back(
        {kind, Dtype::kF32, m, k, n, 2.0 * static_cast<double>(m * k * n) / seconds});
  }
  for (const auto& [key, calls] : kernels) {
    const double seconds = Mean(group, calls.seconds / static_cast<double>(calls.count));
    if (key.second > 0 && seconds > 0) result.kernels.push_back({key.first, key.second, seconds});
  }
}

void MeasureMemory(ProcessGroup& group, const CpuMeasureOptions& options,
                   CpuRanksMeasurement& result) {
  constexpr int64_t kElements = 16 << 20;
  ThreadPool pool(options.threads);
  HostKernels small(pool, 1 << 12);
  result.call_seconds = Mean(group, small.Seconds(KernelId::kNormSq, 1, 200));
  const HostArray<float> from(pool, kElements, 1.0f), to(pool, kElements, 0.0f);
  group.Barrier();
  const double seconds = MedianSeconds(options.quick ? 5 : 15, [&] {
    pool.ParallelFor(kElements, 1 << 14, [&](int64_t begin, int64_t end, int) {
      std::memcpy(to.data() + begin, from.data() + begin,
                  static_cast<size_t>(end - begin) * sizeof(float));
    });
  });
  result.copy_bandwidth = 2.0 * kElements * sizeof(float) / Mean(group, seconds);
}

// ---- collectives ----

#ifdef ZEROPLAN_WITH_GLOO

CollectiveKind KindOf(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce   ? CollectiveKind::kAllReduce
         : op == CollectiveOp::kAllGather ? CollectiveKind::kAllGather
                                          : CollectiveKind::kReduceScatter;
}

// Seconds of one of many calls, the slowest rank's. All groups of the axis do it at once.
class CollectiveTimer {
 public:
  CollectiveTimer(ProcessGroup& group, const RankAxes& axes, const CpuMeasureOptions& options)
      : group_(group),
        axes_(axes),
        communicators_(axes, group),
        pool_(options.threads),
        seconds_(options.quick ? 0.1 : 0.5) {}

  static constexpr int kBatches = 5;  // of calls, whose median counts

  // `bytes` as CollectiveTime counts them. `alone`: the group of rank 0 does it, the others wait.
  double Seconds(RankAxis axis, CollectiveOp op, uint64_t bytes, bool alone = false) {
    const auto ranks = static_cast<uint64_t>(axes_.Size(axis));
    const uint64_t elements = bytes / sizeof(float);
    if (from_.size() < elements) from_.assign(elements, 1.0f), to_.assign(elements, 0.0f);
    CommSegment segment{reinterpret_cast<const std::byte*>(from_.data()),
                        reinterpret_cast<std::byte*>(to_.data()),
                        op == CollectiveOp::kAllReduce ? elements : elements / ranks};
    const CommCall call{KindOf(op), Dtype::kF32, {&segment, 1}};
    const bool takes_part = !alone || axes_.Group(axis, group_.rank()) == axes_.Group(axis, 0);
    const auto run = [&](int calls) {
      group_.Barrier();
      const Clock::time_point begin = Clock::now();
      for (int i = 0; takes_part && i < calls; ++i) {
        communicators_.Run(axis, group_.rank(), call, &pool_);
      }
      return Largest(group_, Since(begin)) / calls;
    };
    run(1);
    const int calls = std::clamp(static_cast<int>(seconds_ / kBatches / run(1)), 2, 200);
    std::vector<double> seconds(kBatches);
    for (double& batch : seconds) batch = run(calls);
    return Median(std::move(seconds));
  }

 private:
  ProcessGroup& group_;
  const RankAxes axes_;
  GlooCommunicators communicators_;
  ThreadPool pool_;
  const double seconds_;
  std::vector<float> from_, to_;
};

constexpr CollectiveOp kOps[] = {CollectiveOp::kAllReduce, CollectiveOp::kAllGather,
                                 CollectiveOp::kReduceScatter};

void MeasureCollectives(ProcessGroup& group, const CpuMeasureOptions& options,
                        CpuRanksMeasurement& result) {
  const int ranks = group.world_size(), local = result.ranks_per_host;
  for (int members = 2; members <= local; members *= 2) {
    if (local % members != 0) break;
    CollectiveTimer timer(group, {members, ranks}, options);
    for (const CollectiveOp op : kOps) {
      for (uint64_t bytes = 16 * kKib; bytes <= (options.quick ? 4 : 16) * kMib; bytes *= 4) {
        const double seconds = timer.Seconds(RankAxis::kShard, op, bytes);
        result.collectives.push_back({op, members, static_cast<double>(bytes), seconds});
      }
    }
  }
}

// All-gathers between ranks in the same place of their hosts, all of a host's groups at once.
void MeasureNetwork(ProcessGroup& group, const CpuMeasureOptions& options,
                    CpuRanksMeasurement& result) {
  CollectiveTimer timer(group, {result.ranks_per_host, group.world_size()}, options);
  const auto gather = [&](uint64_t bytes, bool alone = false) {
    return timer.Seconds(RankAxis::kReplica, CollectiveOp::kAllGather, bytes, alone);
  };
  NetworkMeasurement network;
  // By one rank of each host, so that none waits for a core.
  network.message_seconds = gather(4 * kKib, /*alone=*/true);
  // A quarter of a second of bytes, so that messages are little beside them.
  uint64_t bytes = 256 * kKib;
  double seconds = gather(bytes);
  while (seconds < 0.25 && bytes < 256 * kMib) seconds = gather(bytes *= 2);
  network.bytes = static_cast<double>(bytes);
  const double sent = network.bytes * (result.hosts - 1) / result.hosts * result.ranks_per_host;
  network.bytes_per_second = sent / std::max(seconds - network.message_seconds, 0.5 * seconds);
  result.network = network;
}

#endif  // ZEROPLAN_WITH_GLOO

// ---- the machine ----

std::string ProcessorField(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && line.starts_with(key)) return line.substr(colon + 2);
  }
  return "";
}

double ResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

}  // namespace

CpuRanksMeasurement MeasureCpuRanks(ProcessGroup& group, const CpuMeasureOptions& options) {
  CpuRanksMeasurement result;
  const int ranks = group.world_size();
  result.ranks_per_host = RanksOfAHost(group);
  result.hosts = ranks / result.ranks_per_host;
  result.threads = options.threads;
  result.machine = QueryHost();
  result.processor = ProcessorField("model name");
  const std::string clock = ProcessorField("cpu MHz");
  result.clock = clock.empty() ? 0 : std::stod(clock) * kMega;
  result.resident_bytes = Largest(group, ResidentBytes());
  const auto say = [&](const std::string& what) {
    if (group.rank() == 0) options.progress(what);
  };
  say("memory: copies by all ranks");
  MeasureMemory(group, options, result);
  say("kernels: steps of two small models on all ranks");
  MeasureKernels(group, options, result);
  if (ranks == 1) return result;
#ifdef ZEROPLAN_WITH_GLOO
  say("collectives: within a host");
  MeasureCollectives(group, options, result);
  if (result.hosts > 1) {
    say("network: gathers between hosts");
    MeasureNetwork(group, options, result);
  }
#else
  ThrowUsage(
      "hw measure: this build has no Gloo, which CPU ranks in several processes need; "
      "install libgloo-dev and configure the build again");
#endif
  return result;
}

HardwareProfile CpuRanksProfile(const CpuRanksMeasurement& m, const std::string& name) {
  const std::string where = fmt::format(
      "; zeroplan {} hw measure, {}, {} x {} ranks of {} threads on {}", m.version, m.when, m.hosts,
      m.ranks_per_host, m.threads, m.processor.empty() ? "a CPU" : m.processor);
  const auto measured = [&](double value, double scale, const char* unit, const char* what) {
    return MeasuredFigure(value, scale, unit, what + where);
  };
  const auto derived = [&](double value, double scale, const char* unit, const char* what) {
    return DerivedFigure(value, scale, unit, what + where);
  };
  HardwareProfile profile;
  profile.name = name;
  profile.source = "measured";
  profile.description = fmt::format("CPU ranks, {} a host, {} threads each, measured {}",
                                    m.ranks_per_host, m.threads, m.when);

  GpuProfile& rank = profile.gpu;
  rank.name = fmt::format("CPU rank of {} threads", m.threads);
  rank.architecture = "cpu";
  const double memory = m.machine.memory_bytes / m.ranks_per_host;
  rank.memory = rank.usable_memory = CapacityFigure(memory, "a rank's share of the host" + where);
  rank.sm_count = Count(m.threads, "threads of a rank" + where);
  // Kernels' small arrays stay in the caches.
  double fastest = m.copy_bandwidth;
  for (const NamedKernelTime& row : m.kernels) fastest = std::max(fastest, row.bytes / row.seconds);
  rank.hbm_bandwidth =
      derived(1.01 * fastest, kGiga, "GB/s", "the fastest kernel, caches included");
  rank.copy_bandwidth = measured(m.copy_bandwidth, kGiga, "GB/s",
                                 "copy of 64 MiB, bytes read plus written, all ranks at once");
  double product = 0;
  for (const GemmRate& row : m.gemm) product = std::max(product, row.flops_per_second);
  rank.dense_peaks[Dtype::kF32] =
      derived(1.01 * product, kTera, "TFLOP/s", "the fastest product, all ranks at once");
  // What the loader holds the peak against; a hypervisor may tell no clock, or a low one.
  const double least = product / (DenseFlopsPerClock("cpu", Dtype::kF32) * m.threads);
  rank.max_sm_clock = derived(std::clamp(std::max(m.clock, 1.1 * least), 0.2 * kGiga, 5 * kGiga),
                              kMega, "MHz", "/proc/cpuinfo");
  rank.launch_overhead = measured(std::clamp(m.call_seconds, 1e-7, 1e-3), kMicro, "us",
                                  "norm of one element, at least 0.1 us");
  rank.gemm = {m.gemm, FigureSource::kMeasured,
               "products of a training step in fp32, mean over calls and ranks" + where};
  for (GemmRate& row : rank.gemm->rows) RoundTo(row.flops_per_second, kTera);
  if (!m.kernels.empty()) {
    rank.kernels = {m.kernels, FigureSource::kMeasured,
                    "kernels of a training step in fp32, mean over calls and ranks" + where};
    for (NamedKernelTime& row : rank.kernels->rows) RoundTo(row.seconds, kMicro);
  }

  NodeProfile& node = profile.node;
  node.gpus = Count(m.ranks_per_host, "ranks of a host" + where);
  node.host_memory = CapacityFigure(m.machine.memory_bytes, "memory of the host" + where);
  node.cores = Count(std::max(1, m.machine.cores), "cores that zeroplan may use" + where);
  node.triad_bandwidth = derived(m.copy_bandwidth * m.ranks_per_host, kGiga, "GB/s",
                                 "copies of all ranks of the host together");
  const char* copies = "a copy within the host's memory stands for it";
  node.pcie.to_device_single = node.pcie.from_device_single = node.pcie.both_single =
      derived(m.copy_bandwidth / 2, kGiga, "GB/s", copies);
  node.link_kind = LinkKind::kPcie;
  double link = 0;
  for (const CollectiveTime& row : m.collectives) {
    const double share =
        row.op == CollectiveOp::kAllReduce ? 1.0 : (row.world_size - 1.0) / row.world_size;
    link = std::max(link, row.bytes * share / row.seconds);
  }
  node.gpu_link = link > 0 ? derived(1.01 * link, kGiga, "GB/s", "the fastest collective's bytes")
                           : derived(m.copy_bandwidth / 2, kGiga, "GB/s", copies);
  if (!m.collectives.empty()) {
    node.collectives = {m.collectives, FigureSource::kMeasured,
                        "Gloo in fp32 within a host, slowest rank" + where};
    for (CollectiveTime& row : node.collectives->rows) RoundTo(row.seconds, kMicro);
  }
  if (m.network) profile.network = MeasuredNetwork(*m.network, where);
  profile.runtime.push_back(
      {1, measured(std::max(1.0, m.resident_bytes), kGib, "GiB", "a process without a model"),
       std::nullopt});
  return profile;
}

}  // namespace zeroplan
