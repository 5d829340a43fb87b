// Collectives by size and number of ranks, and what products and collectives cost each other.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "core/base/timing.h"
#include "executor/measure/cuda/device_parts.h"
#include "executor/measure/cuda/rank_timer.h"
#include "executor/measure/measurement.h"
#include "executor/measure/part_runner.h"

namespace zeroplan {
namespace {

constexpr Dtype kDtype = Dtype::kBF16;
constexpr uint64_t kElementBytes = 2;
constexpr std::array kOps = {CollectiveOp::kAllReduce, CollectiveOp::kAllGather,
                             CollectiveOp::kReduceScatter};

// Memory of one rank's collectives over at most `bytes`.
class Buffers {
 public:
  Buffers(uint64_t bytes, int ranks)
      : ranks_(static_cast<uint64_t>(ranks)),
        whole_(AllocateDeviceMemory(bytes)),
        part_(AllocateDeviceMemory(bytes / ranks_)) {
    ZEROPLAN_CUDA(cudaMemset(whole_.get(), 0, bytes));
    ZEROPLAN_CUDA(cudaMemset(part_.get(), 0, bytes / ranks_));
  }

  void Issue(NcclCommunicator& communicator, CollectiveOp op, uint64_t bytes,
             cudaStream_t stream) const {
    const uint64_t elements = bytes / kElementBytes;
    CommSegment segment;
    CollectiveKind kind = CollectiveKind::kAllReduce;
    switch (op) {
      case CollectiveOp::kAllReduce:
        segment = {whole_.get(), whole_.get(), elements};
        break;
      case CollectiveOp::kAllGather:
        kind = CollectiveKind::kAllGather;
        segment = {part_.get(), whole_.get(), elements / ranks_};
        break;
      case CollectiveOp::kReduceScatter:
        kind = CollectiveKind::kReduceScatter;
        segment = {whole_.get(), part_.get(), elements / ranks_};
        break;
    }
    communicator.Issue({kind, kDtype, {&segment, 1}}, stream);
  }

 private:
  uint64_t ranks_;
  DeviceMemory whole_, part_;
};

// Divisible among the ranks, in whole elements.
uint64_t Divisible(uint64_t bytes, int ranks) {
  const uint64_t step = kElementBytes * static_cast<uint64_t>(ranks);
  return bytes / step * step;
}

void MeasureGroup(ProcessGroup& group, bool quick, std::vector<CollectiveTime>& rows) {
  const int ranks = group.world_size();
  const Buffers buffers(kGib, ranks);
  RankTimer timer(group);  // goes first: it ends what would use the buffers for ever
  // The cost model tells protocols apart between the smallest sizes and bandwidth at the largest.
  const uint64_t step = quick ? 16 : 4;
  for (uint64_t size = 16 * kKib; size <= kGib; size *= step) {
    const uint64_t bytes = Divisible(size, ranks);
    const int calls = size <= 4 * kMib ? 20 : size <= 64 * kMib ? 5 : 2;
    for (const CollectiveOp op : kOps) {
      const double seconds = timer.SlowestSeconds(quick ? 5 : 9, calls, [&] {
        buffers.Issue(timer.communicator(), op, bytes, timer.stream());
      });
      rows.push_back({op, ranks, static_cast<double>(bytes), seconds});
    }
  }
}

// A layer's product on the compute stream beside a collective on its own.
class Overlap {
 public:
  explicit Overlap(ProcessGroup& group, Dtype dtype)
      : bench_(CurrentDevice(), 2 * kGib, true),
        dtype_(dtype),
        bytes_(Divisible(512 * kMib, group.world_size())),
        buffers_(bytes_, group.world_size()),
        compute_(bench_.timer().stream()),
        ready_(MakeEvent(false)),
        timer_(group) {
    for (CudaEvent& event : events_) event = MakeEvent(true);
  }

  OverlapShares Run(int rounds) {
    OverlapShares shares{.m = kM, .k = kK, .n = kN};
    shares.collective_bytes = static_cast<double>(bytes_);
    std::vector<double> compute, collective;
    bench_.WithLaunch(KernelId::kMatmulForward, {kM, kK, kN}, Arguments(),
                      [&](const std::function<void()>& product) {
                        for (const CollectiveOp op : kOps) {
                          const Pair kept = Compare(op, product, rounds);
                          compute.push_back(kept.compute);
                          collective.push_back(kept.collective);
                        }
                      });
    shares.compute = std::min(1.0, Median(compute));
    shares.collective = std::min(1.0, Median(collective));
    return shares;
  }

 private:
  static constexpr int64_t kM = 16384, kK = 1600, kN = 4800;
  static constexpr int kProducts = 10;  // of a round
  static constexpr std::chrono::milliseconds kPause{30};
  struct Pair {
    double compute, collective;  // shares of speed kept
  };

  static int CurrentDevice() {
    int device = 0;
    ZEROPLAN_CUDA(cudaGetDevice(&device));
    return device;
  }
  std::vector<BenchArg> Arguments() const {
    return {{ArgKind::kRandom, dtype_, kM * kK},
            {ArgKind::kRandom, dtype_, kK * kN},
            {},
            {},
            {ArgKind::kOutput, dtype_, kM * kN}};
  }
  void Mark(int event, cudaStream_t stream) {
    ZEROPLAN_CUDA(cudaEventRecord(events_[static_cast<size_t>(event)].get(), stream));
  }

  // `collectives` between marks 0 and 1 on their stream, `products` between 2 and 3 on theirs, each
  // after one that is not counted; both streams start together. Returns seconds of one of each.
  Pair Round(CollectiveOp op, const std::function<void()>& product, int collectives, int products) {
    // A GPU that is at the limit of its power runs products faster beside a collective than its
    // multiprocessors say, since those draw less then; in training the clock does not change so
    // soon. On two H200 products seemed to keep 0.88 to 0.91, and kept 0.70 to 0.82 in steps.
    std::this_thread::sleep_for(kPause);
    timer_.Align(collectives + products);
    ZEROPLAN_CUDA(cudaEventRecord(ready_.get(), timer_.stream()));
    ZEROPLAN_CUDA(cudaStreamWaitEvent(compute_, ready_.get(), 0));
    const auto collect = [&] {
      buffers_.Issue(timer_.communicator(), op, bytes_, timer_.stream());
    };
    if (collectives > 0) {
      collect();
      Mark(0, timer_.stream());
      for (int i = 0; i < collectives; ++i) collect();
      Mark(1, timer_.stream());
    }
    if (products > 0) {
      product();
      Mark(2, compute_);
      for (int i = 0; i < products; ++i) product();
      Mark(3, compute_);
    }
    Pair seconds{0, 0};
    if (products > 0) {
      seconds.compute = timer_.SecondsBetween(events_[2].get(), events_[3].get()) / products;
    }
    if (collectives > 0) {
      seconds.collective = timer_.SecondsBetween(events_[0].get(), events_[1].get()) / collectives;
    }
    return seconds;
  }

  Pair Compare(CollectiveOp op, const std::function<void()>& product, int rounds) {
    Round(op, product, 1, 1);  // loads kernels
    const double product_alone =
        timer_.SlowestOf(rounds, [&] { return Round(op, product, 0, kProducts).compute; });
    const double collective_alone =
        timer_.SlowestOf(rounds, [&] { return Round(op, product, 2, 0).collective; });
    // Each of the two goes on until the other has been timed, if it gets half as fast. The same
    // counts on all ranks: both times are.
    const int collectives = 3 + static_cast<int>(2 * kProducts * product_alone / collective_alone);
    const double product_beside = timer_.SlowestOf(
        rounds, [&] { return Round(op, product, collectives, kProducts).compute; });
    const int products =
        std::min(400, kProducts + static_cast<int>(6 * collective_alone / product_alone));
    const double collective_beside =
        timer_.SlowestOf(rounds, [&] { return Round(op, product, 2, products).collective; });
    return {product_alone / product_beside, collective_alone / collective_beside};
  }

  KernelBench bench_;
  Dtype dtype_;
  uint64_t bytes_;
  Buffers buffers_;
  cudaStream_t compute_;
  CudaEvent ready_;
  std::array<CudaEvent, 4> events_;
  RankTimer timer_;  // goes first, as above
};

// Seconds of the smallest all-gather within a host that was measured; 0: none was.
double CallSeconds(const std::vector<CollectiveTime>& rows) {
  double least = 0;
  for (const CollectiveTime& row : rows) {
    if (row.op == CollectiveOp::kAllGather && (least == 0 || row.seconds < least)) {
      least = row.seconds;
    }
  }
  return least;
}

}  // namespace

std::vector<int> WorldSizes(int most) {
  std::vector<int> sizes;
  for (int n = 1; n < most; n *= 2) sizes.push_back(n);
  sizes.push_back(most);
  return sizes;
}

void MeasureCollectives(ProcessGroup& group, bool quick, const PartRunner::Say& say,
                        MachineMeasurement& result) {
  for (const int members : WorldSizes(group.world_size())) {
    if (members == 1) continue;
    SubGroup sub(group, members);
    if (!sub.is_member()) {
      sub.Follow();
      continue;
    }
    MeasureGroup(sub, quick, result.collectives);
    sub.Dismiss();
    say(fmt::format("  {} GPUs: {} rows", members, result.collectives.size()));
  }
  if (group.world_size() == 1) return;
  result.overlap = Overlap(group, HalfDtype(*result.device)).Run(quick ? 3 : 7);
  say(fmt::format("  beside each other: products keep {:.0f} %, collectives {:.0f} %",
                  100 * result.overlap->compute, 100 * result.overlap->collective));
}

void MeasureNetwork(ProcessGroup& group, bool quick, const PartRunner::Say& say,
                    MachineMeasurement& result) {
  // As long as a layer's: training does not see what connections reach of far longer ones.
  constexpr uint64_t kBytes = 64 * kMib, kFewBytes = 4 * kKib;
  constexpr CollectiveOp kGather = CollectiveOp::kAllGather;
  const int ranks = group.world_size(), local = group.place().local_world_size;
  const int hosts = ranks / local;
  const RankAxes axes{local, ranks};
  const bool first = axes.Group(RankAxis::kReplica, group.rank()) == 0;
  const Buffers across(kBytes, hosts), over_all(kBytes, ranks);
  RankTimer timer(group);  // goes first, as above
  NcclCommunicator& part = timer.Split(axes, RankAxis::kReplica);
  const auto seconds = [&](CollectiveOp op, const Buffers& buffers, NcclCommunicator& communicator,
                           int members, uint64_t bytes, bool takes_part = true) {
    return timer.SlowestSeconds(quick ? 5 : 9, bytes == kBytes ? 4 : 20, [&] {
      if (!takes_part) return;
      buffers.Issue(communicator, op, Divisible(bytes, members), timer.stream());
    });
  };
  NetworkMeasurement network;
  network.bytes = kBytes;
  // By one rank of each host, less what a call takes anyway.
  const double message = seconds(kGather, across, part, hosts, kFewBytes, first);
  network.message_seconds =
      std::max(message - CallSeconds(result.collectives), 0.1 * message) / (hosts - 1);
  const double sent = network.bytes * (hosts - 1) / hosts * local;
  network.bytes_per_second = sent / seconds(kGather, across, part, hosts, kBytes);
  if (local > 1) {
    const double of_ring = network.bytes * (ranks - 1) / ranks;
    NcclCommunicator& all = timer.communicator();
    network.whole_bytes_per_second = of_ring / seconds(kGather, over_all, all, ranks, kBytes);
    network.all_reduce_bytes_per_second =
        2 * of_ring / seconds(CollectiveOp::kAllReduce, over_all, all, ranks, kBytes);
  }
  const std::string whole = local == 1
                                ? ""
                                : fmt::format(", {:.2f} in one of all, {:.2f} in its all-reduces",
                                              network.whole_bytes_per_second / kGiga,
                                              network.all_reduce_bytes_per_second / kGiga);
  say(fmt::format("  {} hosts: {:.2f} GB/s in groups of a rank of each{}; a message {:.1f} us",
                  hosts, network.bytes_per_second / kGiga, whole,
                  network.message_seconds / kMicro));
  result.network = network;
}

}  // namespace zeroplan
