// Plays one section of a step program: its streams side by side, held back by events and by what
// they share. Knows nothing of ZeRO: instructions, their seconds and events are all it sees.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// What is left of the speed (0 to 1] of instructions that run side by side on one rank's streams.
struct OverlapRates {
  double compute_beside_collective = 1;
  double collective_beside_compute = 1;
  double two_collectives = 0.5;  // gathers and reductions that share one link
  double pcie_both = 1;          // each direction of the PCIe link while both are busy
  // Host kernels while copies run (both use host memory), and the copies meanwhile.
  double host_beside_copy = 1, copy_beside_host = 1;
};

// When an instruction ran, in seconds since its section's begin.
struct PlayedSpan {
  uint32_t index;  // into the section
  double begin_seconds, end_seconds;
};

// One section played once. compute, optimizer and the exposed times add up to `total`: at each
// instant the compute stream runs a kernel, or waits for another stream.
struct SectionTime {
  double total_seconds = 0;
  double compute_seconds = 0;    // compute stream busy, at the speed it has alone
  double optimizer_seconds = 0;  // the same in phase kStep
  // By the stream that the compute stream waits for, directly or through others, or that slows it
  // down.
  std::array<double, kStreams> exposed_seconds{};
  std::array<double, kStreams> busy_seconds{};  // any stream, overlapped or not

  double exposed(Stream stream) const { return exposed_seconds[static_cast<size_t>(stream)]; }
  double busy(Stream stream) const { return busy_seconds[static_cast<size_t>(stream)]; }
  SectionTime& operator+=(const SectionTime& other);
  SectionTime operator*(double times) const;
};

// Reusable, so that a search does not allocate for each program.
class Timeline {
 public:
  // `seconds`: of each instruction of the section, alone on its stream. Runs the instructions whose
  // `when` has one of `kinds` (all of them outside kMicroStep). An event that the section does not
  // record counts as signalled: it was carried over. `spans`, if given, gets one entry per
  // instruction that takes time, in order of completion. Throws CheckFailure if streams wait for
  // one another for ever. REQUIRES: seconds.size() is the section's.
  SectionTime Play(const Program& program, Section section, uint8_t kinds,
                   std::span<const double> seconds, const OverlapRates& rates,
                   std::vector<PlayedSpan>* spans = nullptr);

 private:
  // What an instruction shares with others.
  enum class Resource : uint8_t { kKernel, kCollective, kToDevice, kFromDevice, kHost, kDisk };
  struct Lane {
    std::vector<uint32_t> queue;  // timed instructions and events, in list order
    size_t next = 0;
    bool running = false;
    Resource resource = Resource::kKernel;
    double left_seconds = 0;  // at full speed
    double begin_seconds = 0;
    double rate = 1;
    EventId waits_for = 0;  // where not running and not at the end

    bool done() const { return next == queue.size() && !running; }
  };

  void Load(const Program& program, Section section, uint8_t kinds,
            std::span<const double> seconds);
  // Passes events and starts what can start, until nothing changes.
  void Advance(std::span<const Instruction> list, std::span<const double> seconds);
  void SetRates(const OverlapRates& rates);
  // Where the compute stream's next instruction hangs.
  Stream Blocker() const;
  void Account(std::span<const Instruction> list, double dt, SectionTime& time) const;

  std::array<Lane, kStreams> lanes_;
  std::vector<uint8_t> signalled_;    // by EventId
  std::vector<uint8_t> recorded_by_;  // stream that records it in this section; kStreams: none
  double now_ = 0;
};

}  // namespace zeroplan
