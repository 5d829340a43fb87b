// The part of Verify that looks at one instruction or buffer at a time.
#pragma once

#include "core/program/program.h"
#include "core/program/violations.h"

namespace zeroplan {

// Indices that point outside the program's tables ("malformed"). Nothing else may be checked, nor
// the program printed in full, unless this returns true.
bool CheckWellFormed(const Program& program, Violations& violations);

// Units: shards cover them, tensors lie where `place` says, in order and apart ("shard_cover").
void CheckLayout(const Program& program, Violations& violations);

// Buffers within their arenas and aligned: "out_of_bounds", "misaligned".
void CheckBuffers(const Program& program, Violations& violations);

// What a save is written from is touched by section save alone, as files are written from it while
// other sections run ("save_copy").
void CheckSaveCopies(const Program& program, Violations& violations);

// Each instruction by itself: ranges within buffers, sizes that belong together, the stream and the
// memory spaces it may use: "out_of_bounds", "misaligned", "size_mismatch", "wrong_space",
// "stream_mismatch", "collective_order", "shard_cover". `reaches` false: not yet what it can reach
// ("wrong_space").
void CheckInstructions(const Program& program, Violations& violations, bool reaches = true);

// Waits for events that no executed instruction records ("wait_without_record").
void CheckEvents(const Program& program, Violations& violations);

}  // namespace zeroplan
