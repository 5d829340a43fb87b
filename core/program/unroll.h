// The order in which an engine issues a program's instructions, for long enough that everything
// which is carried from one repetition to the next has been.
#pragma once

#include <cstdint>

#include "core/program/program.h"
#include "core/program/violations.h"

namespace zeroplan {

// Receives the unrolled program.
class UnrollVisitor {
 public:
  virtual ~UnrollVisitor() = default;
  virtual void Run(const Instruction& instruction, Site site) = 0;
  // `kind`: of the micro-step.
  virtual void EndSection(Section section, uint8_t kind) = 0;
  virtual void EndStep() = 0;
  // The engine waits for all streams.
  virtual void Synchronize() = 0;
};

// init; two optimizer steps; drain, then one of eval, generate, save and load where there are such,
// and a step after each; drain. The engine synchronises after init and around the sections in
// between, whose results it hands to its caller, and nowhere else.
void Unroll(const Program& program, UnrollVisitor& visitor);

}  // namespace zeroplan
