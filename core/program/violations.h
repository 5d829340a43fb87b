// Collects what Verify finds: each rule at most once an instruction, with the program's text around
// it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

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

class Violations {
 public:
  Violations(const Program& program, int limit) : program_(program), limit_(limit) {}

  bool full() const { return static_cast<int>(found_.size()) >= limit_; }
  void Add(std::string_view rule, Site site, std::string_view what);
  std::vector<Violation> Take() { return std::move(found_); }

 private:
  const Program& program_;
  int limit_;
  std::vector<Violation> found_;
  std::set<std::tuple<std::string_view, Section, int64_t>> seen_;
};

// "micro_step line 12: compute  gelu_forward ...", for messages that name a second instruction.
std::string FormatSite(const Program& program, Site site);

}  // namespace zeroplan
