// Refuses a program that could go wrong on any legal order of its streams.
#pragma once

#include <string>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

struct Violation {
  std::string
      rule;  // "use_after_free", "wait_without_record", "race", "overlap", "collective_order", ...
  Section section;
  int64_t index;        // offending instruction within the section
  std::string message;  // what is wrong, and the section's text around the line with "-->"
};

// Unrolls init, two optimizer steps (first, middle and last micro-steps where there are several),
// then evaluation, generation, save and load, each followed by another step, and returns every
// violation found (at most `limit`).
std::vector<Violation> Verify(const Program& program, int limit = 20);
// Throws CheckFailure with the first violation.
void VerifyOrThrow(const Program& program);

}  // namespace zeroplan
