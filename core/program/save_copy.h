// The copy of a rank's states in host memory from which a save is written while the next steps run.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

// Section save copies the states there; what it writes to files it writes from there, at once or
// later, until the section runs again. Nothing else touches it ("save_copy",
// core/program/verify.h). It is the staging memory that belongs to units and stays: slots belong to
// none.
inline bool IsSaveCopy(const Buffer& buffer) {
  return buffer.role == Role::kStaging && buffer.persistent && buffer.unit >= 0;
}

// Whether the program's saves go through such a copy (LowerOptions::async_save).
inline bool SavesFromCopy(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(), IsSaveCopy);
}

// Bytes of the copy, of one rank.
inline uint64_t SaveCopyBytes(const Program& program) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) bytes += IsSaveCopy(buffer) ? buffer.bytes : 0;
  return bytes;
}

}  // namespace zeroplan
