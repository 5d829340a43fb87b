// The part of Verify that follows gradients: every element of every unit is summed over the ranks
// exactly once, an optimizer step at stages 0 and 1, a micro-step at stages 2 and 3, and not
// written after. What is summed over the shard axis alone is then summed over the replica axis too.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"
#include "core/program/violations.h"

namespace zeroplan {

class GradientCheck {
 public:
  // Keeps both references.
  GradientCheck(const Program& program, Violations& violations);

  void Run(const Instruction& instruction, Site site);
  void EndSection(Section section);
  void EndStep();

 private:
  struct Range {
    uint64_t begin, end;
  };
  struct UnitState {
    std::vector<Range> reduced;                       // elements
    bool over_shards = false, over_replicas = false;  // axes that it was summed over
    Site last;                                        // of the instruction that reduced any
  };

  void RunReduction(const Collective& collective, Site site);
  void CheckLateWrites(const LaunchKernel& launch, Site site);
  // Whether the launch brings gradients from where they are kept to where they are reduced in
  // another dtype, or back.
  bool IsConversion(const LaunchKernel& launch, bool to_be_reduced) const;
  // The gradients in `ref` are on their way: nothing may write them any more.
  void MarkReduced(const Ref& ref);
  // All units have been reduced; starts anew.
  void EndPeriod();

  const Program& program_;
  Violations& violations_;
  const bool wanted_;  // more than one rank
  std::vector<UnitState> units_;
  std::vector<std::vector<Range>> reduced_bytes_;  // by buffer
  std::vector<BufferId> touched_;                  // buffers with reduced_bytes_
};

}  // namespace zeroplan
