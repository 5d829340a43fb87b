// Plays one section of a step program: its streams run concurrently, delayed by events and by
// shared resources. Knows nothing of ZeRO: its inputs are instructions, their seconds and events.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// The share (0 to 1] of their speed that concurrent instructions on one rank's streams keep.
struct OverlapRates {
  double compute_beside_collective = 1;
  double collective_beside_compute = 1;
  // Two concurrent collectives, both within a node or both over the network. One of each share
  // nothing: hybrid sharding gathers within the node while it reduces over nodes.
  double two_collectives = 0.5;
  int ranks_per_node = 0;  // if there are several nodes; 0: all ranks are on one
  double pcie_both = 1;    // each direction of the PCIe link while both are busy
  // Host kernels while copies run (both use host memory), and copies to the GPU meanwhile.
  double host_beside_copy = 1, copy_beside_host = 1;
};

// The time of an instruction, in seconds since the begin of the played section. An instruction
// carried over from the previous section (its own) may have begun before, at less than 0.
struct PlayedSpan {
  uint32_t index;  // index into its section
  double begin_seconds, end_seconds;
  Section section;
  bool carried;
};

// The resource that an instruction shares with others.
enum class PlayedResource : uint8_t {
  kKernel,
  kNodeLinks,  // collectives within a node
  kNetwork,    // other collectives
  kToDevice,
  kFromDevice,
  kHost,
  kDisk
};

// The work that streams still had to do when the compute stream ended a section.
struct CarriedWork {
  struct Item {
    uint32_t index;  // index into its section
    Section section;
    enum class Kind : uint8_t { kTimed, kRecord, kWait } kind;
    PlayedResource resource;
    bool step_phase;
    double beside_collective;  // kTimed, kernels: its rate while a collective runs
    EventId event;             // kRecord, kWait
    uint32_t records;          // kWait: how many more records of the event it waits for
    double seconds;            // kTimed: seconds left at full speed
    double begin_seconds;      // kTimed, under way: its begin, before the next section's 0
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
  // Seconds that the compute stream waits or is slowed down, by the stream that it waits for,
  // directly or through others, or that slows it down.
  std::array<double, kStreams> exposed_seconds{};
  std::array<double, kStreams> busy_seconds{};  // any stream, overlapped or not

  double exposed(Stream stream) const { return exposed_seconds[static_cast<size_t>(stream)]; }
  double busy(Stream stream) const { return busy_seconds[static_cast<size_t>(stream)]; }
  SectionTime& operator+=(const SectionTime& other);
  SectionTime operator*(double times) const;
};

// Plays sections. Reusable, so that a search does not allocate for each program.
class Timeline {
 public:
  // `seconds`: those of each instruction of the section, alone on its stream. Runs the instructions
  // whose `when` has one of `kinds` (all of them outside kMicroStep). A wait is for the last record
  // of its event before it: in the section's list, else among the instructions carried into it.
  // Without either the wait is over, because its record was carried and is done. `spans`, if given,
  // receives one entry per instruction that takes time, in order of completion. `before`, if given,
  // is the work left by the previous section: it comes first on its streams. `after`, if given,
  // receives the work that this section leaves: the section ends when the compute stream does; else
  // it ends when all streams have. `beside_collective`, if not empty, has the rate of each kernel
  // while a collective runs; else that of `rates` applies to all. Throws CheckFailure if a carried
  // instruction waits for a record that does not exist. REQUIRES: seconds.size() is the section's;
  // `before` is not `after`.
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
    double left_seconds = 0;  // seconds left at full speed
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
  // Passes events and starts all instructions that can start, until nothing changes.
  void Advance();
  void SetRates(const OverlapRates& rates);
  // The stream that the compute stream's next instruction waits for.
  Stream Blocker() const;
  void Account(double dt, SectionTime& time) const;
  void Leave(CarriedWork& after) const;

  std::array<Lane, kStreams> lanes_;
  std::vector<uint32_t> issued_;      // by EventId: number of its records, carried ones included
  std::vector<uint32_t> recorded_;    // by EventId: number of records reached
  std::vector<uint8_t> recorded_by_;  // by EventId: stream that records it; kStreams: none
  double now_ = 0;
};

}  // namespace zeroplan
