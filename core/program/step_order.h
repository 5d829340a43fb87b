// The order in which a program's sections run, and the instructions that run in each kind of
// micro-step. Visitors, engines and checks all read it here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// Sections that run between two steps, each after `drain`.
inline constexpr std::array kSectionsBetweenSteps = {
    Section::kEval, Section::kGenerate, Section::kDecode, Section::kSave, Section::kLoad};

// The kinds of micro-step in a step of `grad_accum`, a set of When.
constexpr uint8_t MicroStepKinds(int64_t grad_accum) {
  if (grad_accum == 1) return kOnly;
  return grad_accum == 2 ? kFirst | kLast : kFirst | kMiddle | kLast;
}

// Micro-steps that may leave unfinished work, with its transient buffers, to the next one of the
// same step; and micro-steps that may find such work.
inline constexpr uint8_t kLeavesToMicroStep = kFirst | kMiddle;
inline constexpr uint8_t kTakesFromMicroStep = kMiddle | kLast;

// By buffer: whether micro_step frees it before it allocates it, because the previous micro-step
// left it.
std::vector<bool> LeftToMicroStep(const Program& program);

// Whether an instruction of `section` runs in a micro-step of one of `kinds`. Outside of micro_step
// all instructions run.
inline bool RunsIn(const Instruction& instruction, Section section, uint8_t kinds) {
  return section != Section::kMicroStep || (instruction.when & kinds) != 0;
}

// One optimizer step: calls run(section, kind, m) for each of the grad_accum micro-steps m, then
// for the update (kind kEvery, m = grad_accum).
template <typename Run>
void ForEachStepSection(int64_t grad_accum, Run&& run) {
  for (int64_t m = 0; m < grad_accum; ++m) {
    run(Section::kMicroStep, MicroStepKind(m, grad_accum), m);
  }
  run(Section::kOptimizerStep, kEvery, grad_accum);
}

// Identical repetitions of a section.
struct SectionRun {
  Section section;
  uint8_t kinds;  // instructions run whose `when` has one of these; kEvery outside kMicroStep
  int64_t times;  // repetitions in one optimizer step; 0 outside of it
};

// init, the step (micro-steps by kind, optimizer_step), drain, eval, generate, save, load: each
// kind of micro-step once. A section leaves live the buffers it found live, so repetitions add no
// memory.
std::vector<SectionRun> WalkOrder(const Program& program);

// The copy of a rank's states in host memory from which a save is written while the next steps run.
//
// Section save copies the states there, and writes files from there, at once or later, until the
// section runs again. Nothing else touches the copy ("save_copy", core/program/verify.h). It
// consists of the persistent staging buffers that belong to units; slots belong to none.
inline bool IsSaveCopy(const Buffer& buffer) {
  return buffer.role == Role::kStaging && buffer.persistent && buffer.unit >= 0;
}

// Whether the program's saves go through such a copy (LowerOptions::async_save).
inline bool SavesFromCopy(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(), IsSaveCopy);
}

// Bytes of one rank's copy.
inline uint64_t SaveCopyBytes(const Program& program) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) bytes += IsSaveCopy(buffer) ? buffer.bytes : 0;
  return bytes;
}

}  // namespace zeroplan
