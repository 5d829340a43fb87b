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
  std::string message;  // the fault, and the section's text around the line with "-->"
};

// Unrolls init, two optimizer steps (first, middle and last micro-steps where there are several),
// then evaluation, generation, save and load, each followed by another step, and returns every
// violation found (at most `limit`).
std::vector<Violation> Verify(const Program& program, int limit = 20);
// Throws CheckFailure with the first violation.
void VerifyOrThrow(const Program& program);

// Checks that a program between two lowering passes is sound, although it cannot run yet, so that a
// fault is found at the pass that made it. Verify is for finished programs, in any order that their
// streams allow; this check assumes list order.

// The progress of a program. Each stage guarantees what the earlier stages do, and more.
enum class DraftStage : uint8_t {
  // List order defines the meaning. Instructions may name memory that their stream cannot reach.
  kMeaning,
  // The program is complete: each instruction's stream reaches the memory it names, and every byte
  // read is written somewhere.
  kReachable,
  kLifetimes,  // Alloc and Free of every buffer
  kEvents,     // RecordEvent and WaitEvent
  kPlaced,     // offsets and arenas
};

// Every violation found (at most `limit`):
//   at all stages
//     malformed           see CheckWellFormed; a buffer of the program's own that is missing or has
//                         another role; Alloc, Free of a persistent buffer or events before their
//                         stage
//     shard_cover         see CheckLayout; a unit's buffer of the wrong size; states or reduced
//                         gradients that miss or repeat elements of a shard
//     bad_unit            a buffer that belongs to no unit or layer of the model
//     duplicate_role      two persistent buffers of one role for one unit
//     illegal_tag         a phase that the section does not have, a layer that the model does not
//                         have, micro-steps that the setup does not have or that are told apart
//                         outside of micro_step
//     out_of_bounds, misaligned, size_mismatch, stream_mismatch, collective_order
//                         see CheckInstructions
//     uninitialised_read  of a transient buffer: bytes that nothing wrote earlier in the list, in
//                         some kind of micro-step
//     use_after_free      a use of a transient buffer after its Free
//   from kReachable on
//     wrong_space         see CheckInstructions
//     uninitialised_read  of a persistent buffer: bytes that no section ever writes
//   from kLifetimes on
//     use_before_alloc, double_alloc, double_free, leak, persistent_alloc, persistent_freed
//                         as in Verify, in list order
//   from kEvents on
//     wait_without_record see CheckEvents
//   from kPlaced on
//     out_of_bounds, misaligned
//                         of buffers in their arenas: see CheckBuffers
std::vector<Violation> CheckDraft(const Program& program, DraftStage stage, int limit = 20);

}  // namespace zeroplan
