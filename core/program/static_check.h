// The part of Verify that looks at one instruction or buffer at a time.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/program/program.h"
#include "core/program/verify.h"

namespace zeroplan {

// An instruction's site in the program.
struct Site {
  Section section = Section::kInit;
  int64_t index = 0;
};

// Calls visit(instruction, site) for every instruction of every section.
template <typename Visit>
void ForEachInstruction(const Program& program, Visit&& visit) {
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    int64_t index = 0;
    for (const Instruction& instruction : program.section(section)) {
      visit(instruction, Site{section, index++});
    }
  }
}

// Collects Verify's violations: each rule at most once an instruction, with the program's text
// around it.
class Violations {
 public:
  Violations(const Program& program, int limit) : program_(program), limit_(limit) {}

  bool full() const { return static_cast<int>(found_.size()) >= limit_; }
  template <typename... Args>
  void Add(std::string_view rule, Site site, fmt::format_string<Args...> what, Args&&... args) {
    AddText(rule, site, fmt::format(what, std::forward<Args>(args)...));
  }
  std::vector<Violation> Take() { return std::move(found_); }

 private:
  void AddText(std::string_view rule, Site site, std::string_view what);

  const Program& program_;
  int limit_;
  std::vector<Violation> found_;
  std::set<std::tuple<std::string_view, Section, int64_t>> seen_;
};

// "micro_step line 12: compute  gelu_forward ...", for messages that name a second instruction.
std::string FormatSite(const Program& program, Site site);

// Finds indices that point outside the program's tables ("malformed"). Unless it returns true,
// nothing else may be checked, nor the program printed in full.
bool CheckWellFormed(const Program& program, Violations& violations);

// Units: shards cover them, tensors are where `place` puts them, in order and disjoint
// ("shard_cover").
void CheckLayout(const Program& program, Violations& violations);

// Buffers within their arenas and aligned: "out_of_bounds", "misaligned".
void CheckBuffers(const Program& program, Violations& violations);

// Only section save may touch the copy that a save is written from, because files are written from
// it while other sections run ("save_copy").
void CheckSaveCopies(const Program& program, Violations& violations);

// Each instruction by itself: ranges within buffers, matching sizes, the stream and the memory
// spaces it may use: "out_of_bounds", "misaligned", "size_mismatch", "wrong_space",
// "stream_mismatch", "collective_order", "shard_cover". `reaches` false: leaves out the memory
// spaces that its stream can reach ("wrong_space").
void CheckInstructions(const Program& program, Violations& violations, bool reaches = true);

// Waits for events that no executed instruction records ("wait_without_record").
void CheckEvents(const Program& program, Violations& violations);

}  // namespace zeroplan
