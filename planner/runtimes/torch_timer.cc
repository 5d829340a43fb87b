#include "planner/runtimes/torch_timer.h"

#include <algorithm>
#include <cmath>

namespace zeroplan {
namespace {

// In the order of TimeCause.
constexpr double RuntimeTime::*kTimeParts[kTimeCauses] = {
    &RuntimeTime::compute, &RuntimeTime::exposed_communication, &RuntimeTime::transfers,
    &RuntimeTime::host_update, &RuntimeTime::host_overhead};

// Spans of the host that are older than this many are no longer asked for.
constexpr size_t kMostSpans = 4096;

// What issuing a gather takes beside what waiting for and freeing one of its parameters does:
// 0.235 ms to 0.115 on a CPU, with DeepSpeed 0.19.6's own code and collectives that do nothing.
constexpr double kGatherOverParam = 2;

}  // namespace

void TorchClock::HostSpan(double end, TimeCause cause) {
  if (end <= host_) return;
  if (!host_spans_.empty() && host_spans_.back().cause == cause) {
    host_spans_.back().end = end;
  } else {
    if (host_spans_.size() >= kMostSpans) {
      host_spans_.erase(host_spans_.begin(), host_spans_.begin() + kMostSpans / 2);
    }
    host_spans_.push_back({host_, end, cause});
  }
  host_ = end;
}

void TorchClock::Host(double seconds, TimeCause cause) { HostSpan(host_ + seconds, cause); }

void TorchClock::Idle(double end, double waits_from, TimeCause cause) {
  const double begin = reading_.seconds;
  if (end <= begin) return;
  const double from = std::clamp(waits_from, begin, end);
  Note(cause, end - from);
  double left = from - begin;
  for (auto span = host_spans_.rbegin(); span != host_spans_.rend() && span->end > begin; ++span) {
    const double overlap = std::min(span->end, from) - std::max(span->begin, begin);
    if (overlap <= 0) continue;
    Note(span->cause, overlap);
    left -= overlap;
  }
  if (left > 0) Note(TimeCause::kHostOverhead, left);
  reading_.seconds = end;
}

double TorchClock::FreeAt(SharedResource resource) const {
  if (resource == SharedResource::kNone) return 0;
  const auto at = [this](SharedResource one) { return resource_free_[static_cast<size_t>(one)]; };
  return resource == SharedResource::kBoth
             ? std::max(at(SharedResource::kLink), at(SharedResource::kNetwork))
             : at(resource);
}

void TorchClock::Take(SharedResource resource, double until) {
  const auto take = [&](SharedResource one) { resource_free_[static_cast<size_t>(one)] = until; };
  if (resource == SharedResource::kBoth) {
    take(SharedResource::kLink);
    take(SharedResource::kNetwork);
  } else if (resource != SharedResource::kNone) {
    take(resource);
  }
}

void TorchClock::Kernels(double seconds, int count, double launch_seconds) {
  const double start = std::max(host_, wait_until_);
  Idle(start, host_, wait_cause_);
  seconds *= overlap_.slowest;
  const double link = FreeAt(SharedResource::kBoth);
  if (link > reading_.seconds) {
    const double one = seconds / count;
    double beside = std::min<double>(count, std::ceil((link - reading_.seconds) / one));
    if (met_ < collectives_) {
      met_ = collectives_;
      seconds += one * (1 / overlap_.first_kernel - 1);
      beside -= 1;
    }
    seconds += beside * one * (1 / overlap_.kernels - 1);
  }
  HostSpan(host_ + launch_seconds, TimeCause::kHostOverhead);
  // The last of several kernels starts when it has been launched.
  const double launched = std::max(0.0, host_ - reading_.seconds - seconds);
  Note(TimeCause::kCompute, seconds);
  Note(TimeCause::kHostOverhead, launched);
  reading_.seconds += seconds + launched;
}

void TorchClock::Issue(int stream, double seconds, TimeCause cause, SharedResource resource) {
  double start = std::max({free_at(stream), host_, FreeAt(resource)});
  if (stream == kComputeStream) {
    start = std::max(start, wait_until_);
    Idle(start, host_, start > wait_until_ ? cause : wait_cause_);
    Note(cause, seconds);
  } else if (resource == SharedResource::kLink || resource == SharedResource::kNetwork ||
             resource == SharedResource::kBoth) {
    ++collectives_;
    // While kernels run that the stream does not wait for.
    const double share = overlap_.collective;
    const double beside = std::clamp(reading_.seconds - start, 0.0, seconds / share);
    seconds += beside * (1 - share);
  }
  free_at(stream) = start + seconds;
  last_cause_[static_cast<size_t>(stream)] = cause;
  Take(resource, start + seconds);
}

void TorchClock::StreamWaits(int stream, int other) { StreamWaits(stream, Record(other)); }

void TorchClock::StreamWaits(int stream, const Event& event) {
  if (stream != kComputeStream) {
    free_at(stream) = std::max(free_at(stream), event.seconds);
  } else if (event.seconds > wait_until_) {
    wait_until_ = event.seconds;
    wait_cause_ = event.cause;
  }
}

void TorchClock::HostWaits(int stream) {
  HostSpan(free_at(stream), stream == kComputeStream ? TimeCause::kHostOverhead
                                                     : last_cause_[static_cast<size_t>(stream)]);
}

void TorchClock::HostWaitsForAll() {
  for (int stream = 0; stream < kStreams; ++stream) HostWaits(stream);
  Idle(host_, host_, TimeCause::kHostOverhead);
}

RuntimeTime TimeBetween(const TorchClock::Reading& begin, const TorchClock::Reading& end) {
  RuntimeTime time;
  for (size_t i = 0; i < kTimeCauses; ++i) {
    time.*kTimeParts[i] = end.by_cause[i] - begin.by_cause[i];
    time.step_seconds += time.*kTimeParts[i];
  }
  return time;
}

TorchTimer::TorchTimer(const TorchMachine* machine, const TimeConstants& constants)
    : machine_(machine),
      constants_(constants),
      clock_(
          machine
              ? TorchClock::Overlap{constants.beside_collective, machine->compute_beside_collective,
                                    machine->collective_beside_compute, SlowestRank(machine->shape)}
              : TorchClock::Overlap{}) {
  if (machine) SetGroups({machine->shape.gpus, machine->shape.gpus});
}

TorchTimer::Group TorchTimer::GroupOf(const RankAxes& axes, RankAxis axis) const {
  const int per_node = machine_->shape.ranks_per_node();
  const int shards = axes.Size(RankAxis::kShard), ranks = axes.Size(axis);
  const int apart = axis == RankAxis::kReplica ? shards : 1;
  SharedResource resource = SharedResource::kBoth;
  if (shards == axes.ranks() || ranks * apart <= per_node) {
    resource = SharedResource::kLink;
  } else if (apart >= per_node) {
    resource = SharedResource::kNetwork;
  }
  return {machine_->collectives.Over(axes, axis), ranks, resource};
}

void TorchTimer::SetGroups(const RankAxes& axes) {
  if (!machine_) return;
  const RankAxes nodes(machine_->shape.ranks_per_node(), machine_->shape.gpus);
  groups_ = {GroupOf(axes, RankAxis::kAll),      GroupOf(axes, RankAxis::kShard),
             GroupOf(axes, RankAxis::kReplica),  GroupOf(nodes, RankAxis::kShard),
             GroupOf(nodes, RankAxis::kReplica), GroupOf(axes, RankAxis::kSequence)};
}

void TorchTimer::SetModel(const TorchModel& model, const TorchRun& run, Dtype dtype) {
  if (!machine_) return;
  kernels_.emplace(model, run, dtype, *machine_, constants_);
  compiled_ = run.compiled;
  const StyleCode& style = TorchParts(model, run).style;
  launch_ = compiled_            ? constants_.compiled_launch
            : style.triton       ? constants_.triton_launch
            : style.transformers ? constants_.transformers_launch
                                 : constants_.launch;
}

void TorchTimer::Launch(const TorchWork& work, double launch_seconds) {
  if (work.launches == 0 || skip_) return;
  clock_.Kernels(work.seconds, work.launches, work.launches * launch_seconds);
}

void TorchTimer::EnterGraph() {
  if (machine_ && compiled_) clock_.Host(constants_.graph);
}

void TorchTimer::EnterModuleGraph() {
  if (machine_ && compiled_) clock_.Host(constants_.module_graph);
}

void TorchTimer::EnterCheckpoint() {
  if (machine_ && !compiled_) clock_.Host(constants_.checkpoint);
}

void TorchTimer::Memory(double bytes, int launches, int stream) {
  if (!machine_ || launches == 0) return;
  const double seconds =
      launches * machine_->memory.Seconds(bytes / launches / constants_.eager_memory);
  if (stream == TorchClock::kComputeStream) {
    clock_.Kernels(seconds, launches, launches * constants_.launch);
    return;
  }
  clock_.Host(launches * constants_.launch);
  clock_.Issue(stream, seconds, TimeCause::kCommunication);
}

const TorchTimer::Group* TorchTimer::Over(RankGroups groups, double full_bytes) {
  if (!machine_) return nullptr;
  const Group& over = groups_[static_cast<size_t>(groups)];
  if (over.ranks == 1) return nullptr;
  full_bytes_[static_cast<size_t>(groups)] += full_bytes;
  return &over;
}

void TorchTimer::Collective(int stream, CollectiveOp op, double full_bytes, int calls,
                            RankGroups groups) {
  const Group* over = calls == 0 ? nullptr : Over(groups, full_bytes);
  if (over == nullptr) return;
  clock_.Host(calls * constants_.collective);
  const double seconds = calls * over->cost.Seconds(op, full_bytes / calls);
  clock_.Issue(stream, seconds, TimeCause::kCommunication, over->resource);
}

void TorchTimer::AllToAll(int stream, double full_bytes, RankGroups groups) {
  const Group* over = Over(groups, full_bytes);
  if (over == nullptr) return;
  clock_.Host(constants_.collective);
  const double seconds = over->cost.ForAllToAll().Seconds(CollectiveOp::kAllGather, full_bytes);
  clock_.Issue(stream, seconds, TimeCause::kCommunication, over->resource);
}

void TorchTimer::Copy(int stream, bool to_device, double bytes, int calls, bool pageable) {
  step_.copied_ += bytes;
  if (!machine_ || calls == 0) return;
  clock_.Host(calls * constants_.launch);
  const double seconds = calls * machine_->transfers.Seconds(to_device, bytes / calls, pageable);
  clock_.Issue(stream, seconds, TimeCause::kTransfer,
               to_device ? SharedResource::kToDevice : SharedResource::kFromDevice);
}

void TorchTimer::File(int stream, bool write, double bytes) {
  if (!machine_ || bytes == 0) return;
  clock_.Issue(stream, machine_->storage.Seconds(write, bytes), TimeCause::kTransfer);
}

void TorchTimer::Python(PythonCall call, int count) {
  calls_[static_cast<size_t>(call)] += count;
  const auto seconds = [&] {
    switch (call) {
      case PythonCall::kModuleHooks:
        return constants_.module_hooks;
      case PythonCall::kGather:
        return kGatherOverParam * constants_.gathered_param;
      case PythonCall::kGatheredParam:
      case PythonCall::kPersistentParam:
        return constants_.gathered_param;
      case PythonCall::kGradient:
        return constants_.partitioned_gradient;
      case PythonCall::kReduction:
        break;  // part of its gradients
    }
    return 0.0;
  };
  Host(count * seconds());
}

void TorchTimer::HostUpdate(double bytes) {
  if (!machine_ || machine_->host_bytes_per_second == 0) return;
  clock_.Host(bytes / machine_->host_bytes_per_second, TimeCause::kHostUpdate);
}

void TorchTimer::BeginStep() {
  step_.begin_ = clock_.reading();
  step_.micro_steps_.clear();
  full_bytes_.fill(0);
  step_.copied_ = 0;
  step_.copied_at_.clear();
}

void TorchTimer::BeginMicroStep() {
  step_.micro_steps_.push_back(clock_.reading());
  step_.copied_at_.push_back(step_.copied_);
}

void TorchTimer::EndStep() {
  if (!machine_) return;
  clock_.HostWaitsForAll();
  step_.timed_ = true;
  step_.end_ = clock_.reading();
}

double PlayedStep::CopiedBytes(int64_t micro_steps) const {
  const auto played = static_cast<int64_t>(copied_at_.size());
  if (micro_steps <= played || played < 2) return copied_;
  const double one = copied_at_.back() - copied_at_[copied_at_.size() - 2];
  return copied_ + one * static_cast<double>(micro_steps - played);
}

std::optional<RuntimeTime> PlayedStep::Time(int64_t micro_steps) const {
  if (!timed_) return std::nullopt;
  RuntimeTime time = TimeBetween(begin_, end_);
  const auto played = static_cast<int64_t>(micro_steps_.size());
  if (micro_steps > played && played >= 2) {
    const size_t last = micro_steps_.size() - 1;
    const RuntimeTime one = TimeBetween(micro_steps_[last - 1], micro_steps_[last]);
    const auto more = static_cast<double>(micro_steps - played);
    time.step_seconds += more * one.step_seconds;
    for (double RuntimeTime::*part : kTimeParts) time.*part += more * one.*part;
  }
  return time;
}

}  // namespace zeroplan
