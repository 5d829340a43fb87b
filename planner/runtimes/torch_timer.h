// Simulates the time of a runtime's program: kernels, collectives and copies on its streams, and
// the work of its Python thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/program/axes.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/torch_kernels.h"

namespace zeroplan {

// Seconds of one GPU's step: all micro-steps and the update. step_seconds is the sum of the other
// fields.
struct RuntimeTime {
  double step_seconds = 0;
  double compute = 0;  // kernels of the compute stream: model, gradients, update
  // Seconds in which the compute stream has nothing to run, by the event that it waits for:
  double exposed_communication = 0;  // collectives
  double transfers = 0;              // copies between GPU and host
  double host_update = 0;            // the optimizer on the host, and clipping and casts there
  double host_overhead = 0;          // the Python thread, which launches too late
};

// The use of a step's time (RuntimeTime).
enum class TimeCause : uint8_t { kCompute, kCommunication, kTransfer, kHostUpdate, kHostOverhead };
inline constexpr size_t kTimeCauses = 5;

// A resource that runs one piece of work at a time. kLink: collectives within nodes, or all
// collectives if there are no groups. kNetwork: collectives of groups with at most one rank of each
// node. kBoth: collectives of groups with several ranks of several nodes, if there are also other
// groups.
enum class SharedResource : uint8_t { kNone, kLink, kToDevice, kFromDevice, kNetwork, kBoth };
inline constexpr size_t kSharedResources = 5;  // kBoth uses two of them

// Simulates numbered streams, of which 0 is the compute stream, and the host. Times are seconds
// since the clock was constructed.
class TorchClock {
 public:
  static constexpr int kComputeStream = 0;
  static constexpr int kStreams = 6;

  // Shares of speed, (0, 1], that are kept under overlap. first_kernel: of the first kernel that
  // starts while a collective runs; its blocks wait for one more wave, because NCCL's blocks hold
  // multiprocessors. kernels: of the kernels that follow. collective: of a collective while kernels
  // run.
  struct Overlap {
    double first_kernel = 1, kernels = 1, collective = 1;
    double slowest = 1;  // SlowestRank
  };
  explicit TorchClock(const Overlap& overlap) : overlap_(overlap) {}

  // Keeps the host busy for `seconds`.
  void Host(double seconds, TimeCause cause = TimeCause::kHostOverhead);
  // Runs `count` kernels on the compute stream. Together they take `seconds`, and the host
  // `launch_seconds` to launch them.
  void Kernels(double seconds, int count, double launch_seconds);
  // Issues work to a stream now; it starts when the stream and the resource are free.
  void Issue(int stream, double seconds, TimeCause cause,
             SharedResource resource = SharedResource::kNone);
  // cudaStreamWaitEvent on the work that `other` has been given so far.
  void StreamWaits(int stream, int other);
  // cudaStreamSynchronize.
  void HostWaits(int stream);
  void HostWaitsForAll();
  // cudaEventRecord on a stream, and cudaEventSynchronize.
  struct Event {
    double seconds = 0;
    TimeCause cause = TimeCause::kCommunication;
  };
  Event Record(int stream) { return {free_at(stream), last_cause_[static_cast<size_t>(stream)]}; }
  void HostWaits(const Event& event) { HostSpan(event.seconds, event.cause); }
  // cudaStreamWaitEvent on `event`.
  void StreamWaits(int stream, const Event& event);

  // Times of the compute stream since the clock was constructed.
  struct Reading {
    double seconds = 0;
    std::array<double, kTimeCauses> by_cause{};  // sums to `seconds`
  };
  const Reading& reading() const { return reading_; }

 private:
  struct Span {
    double begin, end;
    TimeCause cause;
  };
  void Note(TimeCause cause, double seconds) {
    reading_.by_cause[static_cast<size_t>(cause)] += seconds;
  }
  void HostSpan(double end, TimeCause cause);
  // The compute stream is idle until `end`: it waits for the host until `waits_from`, then for
  // `cause`.
  void Idle(double end, double waits_from, TimeCause cause);
  // The time from which the resource is free.
  double FreeAt(SharedResource resource) const;
  void Take(SharedResource resource, double until);
  double& free_at(int stream) {
    return stream == kComputeStream ? reading_.seconds : free_at_[static_cast<size_t>(stream)];
  }

  Overlap overlap_;
  int64_t collectives_ = 0, met_ = 0;  // issued collectives; the last one during which a kernel
                                       // started
  double host_ = 0;
  std::vector<Span> host_spans_;  // the most recent ones
  std::array<double, kStreams> free_at_{};
  std::array<TimeCause, kStreams> last_cause_{};
  std::array<double, kSharedResources> resource_free_{};
  double wait_until_ = 0;  // earliest start of the compute stream's next work
  TimeCause wait_cause_ = TimeCause::kCommunication;
  Reading reading_;
};

// The time between two readings.
RuntimeTime TimeBetween(const TorchClock::Reading& begin, const TorchClock::Reading& end);

// Calls of a runtime's Python code that take the host longer than an operation, at stage 3 of
// DeepSpeed: a module's hooks in its forward or backward pass; a gather of parameters, and each
// gathered parameter; a persistent parameter, which is gathered by itself after an update; a
// gradient; a reduction.
enum class PythonCall : uint8_t {
  kModuleHooks,
  kGather,
  kGatheredParam,
  kPersistentParam,
  kGradient,
  kReduction
};
inline constexpr size_t kPythonCalls = 6;

// The ranks that a collective runs over: all ranks; the ranks of a rank's axis; or, independent of
// the axes, the ranks of a node and the ranks with the same place in each node. kSequence: the
// ranks that share sequences.
enum class RankGroups : uint8_t { kAll, kShard, kReplica, kNode, kAcrossNodes, kSequence };
inline constexpr size_t kRankGroups = 6;

// A step. Its micro-steps were simulated, all of them or three.
class PlayedStep {
 public:
  // The bytes that a step of `micro_steps` micro-steps copies between GPU and host, in both
  // directions, extrapolated as in Time. Works without a machine.
  double CopiedBytes(int64_t micro_steps) const;
  // The time of a step of `micro_steps` micro-steps. Each micro-step beyond the simulated ones
  // takes as long as the last but one. Unset without a machine.
  std::optional<RuntimeTime> Time(int64_t micro_steps) const;

 private:
  friend class TorchTimer;
  bool timed_ = false;
  std::vector<TorchClock::Reading> micro_steps_;
  double copied_ = 0;              // bytes since the step began
  std::vector<double> copied_at_;  // bytes at the begin of each micro-step
  TorchClock::Reading begin_, end_;
};

// Times a run. Without a machine nothing takes time.
class TorchTimer {
 public:
  TorchTimer(const TorchMachine* machine, const TimeConstants& constants);

  explicit operator bool() const { return machine_ != nullptr; }
  const TimeConstants& constants() const { return constants_; }

  // Sets the groups of ranks for all that follows; before the first call all ranks are one shard
  // group.
  void SetGroups(const RankAxes& axes);
  // 1 without a machine.
  int nodes() const { return machine_ ? machine_->shape.nodes() : 1; }
  double arithmetic_bytes() const { return machine_ ? machine_->arithmetic_bytes : 1; }
  // Sets the model for all that follows.
  void SetModel(const TorchModel& model, const TorchRun& run, Dtype dtype);
  void Forward(TorchOp op) {
    if (kernels_) Launch(kernels_->forward(op));
  }
  void Backward(TorchOp op) {
    if (kernels_) Launch(kernels_->backward(op));
  }
  // Run the adapter of the matmul `op`.
  void ForwardAdapter(TorchOp op) {
    if (kernels_) Launch(kernels_->adapter_forward(op), constants_.launch);
  }
  void BackwardAdapter(TorchOp op) {
    if (kernels_) Launch(kernels_->adapter_backward(op), constants_.launch);
  }
  // While `skip` is true, kernels take no time.
  void Skip(bool skip) { skip_ = skip; }
  // EnterGraph and EnterModuleGraph enter compiled code: a layer, or a module with a graph of its
  // own. EnterCheckpoint enters a layer within torch.utils.checkpoint, which costs time in eager
  // code.
  void EnterGraph();
  void EnterModuleGraph();
  void EnterCheckpoint();

  // Runs `launches` kernels that together read and write `bytes`.
  void Memory(double bytes, int launches = 1, int stream = TorchClock::kComputeStream);
  // Runs a collective in all groups concurrently. `full_bytes`: of one group, as CollectiveCost
  // counts them. Takes no time if a group has one rank.
  void Collective(int stream, CollectiveOp op, double full_bytes, int calls = 1,
                  RankGroups groups = RankGroups::kAll);
  void AllToAll(int stream, double full_bytes, RankGroups groups);
  // The sum of `full_bytes` over the simulated collectives of the last step.
  double full_bytes(RankGroups groups) const { return full_bytes_[static_cast<size_t>(groups)]; }
  // Copies between page-locked memory and the GPU, or pageable memory and the GPU.
  void Copy(int stream, bool to_device, double bytes, int calls = 1, bool pageable = false);
  // Reads or writes with a rank's share of the node's disks, concurrently with the host.
  void File(int stream, bool write, double bytes);
  // Makes `count` calls, each as long as in TimeConstants.
  void Python(PythonCall call, int count = 1);
  // The number of calls so far.
  int64_t calls(PythonCall call) const { return calls_[static_cast<size_t>(call)]; }
  void Host(double seconds) {
    if (machine_) clock_.Host(seconds);
  }
  // The optimizer's work on the host, which reads and writes `bytes` of host memory.
  void HostUpdate(double bytes);
  void StreamWaits(int stream, int other) { clock_.StreamWaits(stream, other); }
  void HostWaits(int stream) { clock_.HostWaits(stream); }
  void HostWaitsForAll() { clock_.HostWaitsForAll(); }
  TorchClock::Event Record(int stream) { return clock_.Record(stream); }
  void HostWaits(const TorchClock::Event& event) { clock_.HostWaits(event); }
  void StreamWaits(int stream, const TorchClock::Event& event) {
    clock_.StreamWaits(stream, event);
  }

  // BeginStep marks the begin of a step, BeginMicroStep that of each of its micro-steps, EndStep
  // the end of the step.
  void BeginStep();
  void BeginMicroStep();
  void EndStep();
  // The last step.
  const PlayedStep& step() const { return step_; }
  std::optional<RuntimeTime> Time(int64_t micro_steps) const { return step_.Time(micro_steps); }

 private:
  struct Group {
    CollectiveCost cost;
    int ranks;
    SharedResource resource;
  };
  Group GroupOf(const RankAxes& axes, RankAxis axis) const;
  // Null if nothing is sent.
  const Group* Over(RankGroups groups, double full_bytes);
  void Launch(const TorchWork& work) { Launch(work, launch_); }
  void Launch(const TorchWork& work, double launch_seconds);

  const TorchMachine* machine_;
  TimeConstants constants_;
  TorchClock clock_;
  std::vector<Group> groups_;  // by RankGroups; empty without a machine
  std::optional<TorchKernels> kernels_;
  bool compiled_ = false, skip_ = false;
  double launch_ = 0;  // seconds of the host for an operation of the model
  std::array<int64_t, kPythonCalls> calls_{};
  std::array<double, kRankGroups> full_bytes_{};
  PlayedStep step_;
};

}  // namespace zeroplan
