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
  // Two collectives at once, both within a node or both over the network. One of each share
  // nothing: hybrid sharding gathers within the node while it reduces over nodes.
  double two_collectives = 0.5;
  int ranks_per_node = 0;  // of several nodes; 0: all ranks are on one
  double pcie_both = 1;    // each direction of the PCIe link while both are busy
  // Host kernels while copies run (both use host memory), and copies to the GPU meanwhile.
  double host_beside_copy = 1, copy_beside_host = 1;
};

// When an instruction ran, in seconds since the begin of the section that was played. One that was
// carried over from the section before (its own) may have begun before that, at less than 0.
struct PlayedSpan {
  uint32_t index;  // into its section
  double begin_seconds, end_seconds;
  Section section;
  bool carried;
};

// What an instruction shares with others.
enum class PlayedResource : uint8_t {
  kKernel,
  kNodeLinks,  // of collectives within a node
  kNetwork,    // of others
  kToDevice,
  kFromDevice,
  kHost,
  kDisk
};

// What streams had yet to do when the compute stream had ended a section.
struct CarriedWork {
  struct Item {
    uint32_t index;  // into its section
    Section section;
    enum class Kind : uint8_t { kTimed, kRecord, kWait } kind;
    PlayedResource resource;
    bool step_phase;
    double beside_collective;  // kTimed, of a kernel: its rate while a collective runs
    EventId event;             // kRecord, kWait
    uint32_t records;          // kWait: how many more records of the event it waits for
    double seconds;            // kTimed: left to do at full speed
    double begin_seconds;  // kTimed, where under way: when it began, before the next section's 0
    bool under_way;
    bool carried;  // issued by an earlier section
  };
  std::array<std::vector<Item>, kStreams> lanes;

  void Clear() {
    for (auto& lane : lanes) lane.clear();
  }
};

// One section played once. compute, optimizer and the exposed times add up to `total`: at each
// instant the compute stream runs a kernel, or waits for another stream.
struct SectionTime {
  double total_seconds = 0;
  double compute_seconds = 0;    // compute stream busy, at the speed it has alone
  double optimizer_seconds = 0;  // the same in phase kStep
  // Seconds that the compute stream waits, by the stream that it waits for, directly or through
  // others, or that slows it down.
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
  // `when` has one of `kinds` (all of them outside kMicroStep). A wait is for the last record of
  // its event before it: in the section's list, else among the instructions carried into it.
  // Without either it is over: its record was carried and is done. `spans`, if given, gets one
  // entry per instruction that takes time, in order of completion. `before`, if given, is what the
  // section before left: it comes first on its streams. `after`, if given, gets what this one
  // leaves: the section is over when the compute stream is; else it ends when all streams have.
  // `beside_collective`, if not empty, has the rate of each kernel while a collective runs; else
  // that of `rates` holds for all. Throws CheckFailure if a carried instruction waits for a record
  // that is not there. REQUIRES: seconds.size() is the section's; `before` is not `after`.
  SectionTime Play(const Program& program, Section section, uint8_t kinds,
                   std::span<const double> seconds, const OverlapRates& rates,
                   std::vector<PlayedSpan>* spans = nullptr, const CarriedWork* before = nullptr,
                   CarriedWork* after = nullptr, std::span<const double> beside_collective = {});

 private:
  using Item = CarriedWork::Item;
  using Resource = PlayedResource;
  struct Lane {
    std::vector<Item> queue;  // in list order
    size_t next = 0;
    bool running = false;
    double left_seconds = 0;  // at full speed
    double begin_seconds = 0;
    double rate = 1;

    const Item& item() const { return queue[next]; }
    bool runs(Resource resource) const { return running && item().resource == resource; }
    bool runs_collective() const { return runs(Resource::kNodeLinks) || runs(Resource::kNetwork); }
    bool done() const { return next == queue.size(); }
  };

  void Load(const Program& program, Section section, uint8_t kinds, std::span<const double> seconds,
            const OverlapRates& rates, const CarriedWork* before,
            std::span<const double> beside_collective);
  void Push(const Item& item, size_t lane);
  // Passes events and starts what can start, until nothing changes.
  void Advance();
  void SetRates(const OverlapRates& rates);
  // Where the compute stream's next instruction hangs.
  Stream Blocker() const;
  void Account(double dt, SectionTime& time) const;
  void Leave(CarriedWork& after) const;

  std::array<Lane, kStreams> lanes_;
  std::vector<uint32_t> issued_;      // by EventId: its records, carried ones included
  std::vector<uint32_t> recorded_;    // by EventId: those that have been reached
  std::vector<uint8_t> recorded_by_;  // stream that records it; kStreams: none
  double now_ = 0;
};

}  // namespace zeroplan
