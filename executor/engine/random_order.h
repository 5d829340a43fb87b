// A random legal order of a section's instructions, to show waits that are missing: list order
// hides them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "core/program/program.h"

namespace zeroplan {

// SplitMix64 (Steele, Lea and Flood 2014): small, and the same on every machine, so that all ranks
// draw the same order.
class OrderRng {
 public:
  explicit OrderRng(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

// One per rank. Objects with the same program and seed yield the same orders, so collectives match.
class RandomOrder {
 public:
  RandomOrder(const Program& program, uint64_t seed);

  // Calls execute(index) once for each instruction of the section that belongs to micro-step `kind`
  // (kind counts in kMicroStep only): in list order within a stream, and a wait only after the
  // record that is the last before it in the list. A wait for an event without one is for a
  // carried-over event, which an earlier section or step has signalled. Allocates nothing.
  template <typename Execute>
  void Run(Section section, When kind, Execute&& execute) {
    const Plan& plan = plans_[PlanIndex(section, kind)];
    Begin();
    for (size_t left = plan.items; left > 0; --left) {
      const int stream = Pick(plan);
      ZEROPLAN_CHECK(stream >= 0, "section {}: every stream waits for another",
                     SectionName(section));
      const auto s = static_cast<size_t>(stream);
      const Item& item = plan.queues[s][head_[s]++];
      execute(static_cast<size_t>(item.index));
      done_[static_cast<size_t>(item.index)] = 1;
    }
  }

 private:
  struct Item {
    int32_t index;  // within the section
    int32_t after;  // the record that must have run; -1: none
  };
  struct Plan {
    std::array<std::vector<Item>, kStreams> queues;
    size_t items = 0;
  };

  static size_t PlanIndex(Section section, When kind);
  static Plan MakePlan(const Program& program, Section section, When kind);
  void Begin();
  int Pick(const Plan& plan);

  std::vector<Plan> plans_;
  OrderRng rng_;
  std::array<size_t, kStreams> head_{};
  std::array<uint64_t, kStreams> weight_{};
  std::vector<uint8_t> done_;  // by index within the section
};

}  // namespace zeroplan
