// All that a program was lowered from, and its fingerprint: enough to lower it again and to see
// whether that gives the same program. The metrics of a run hold it, in the words of a plan file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/lowering/lower.h"

namespace zeroplan {

struct ProgramRecord {
  std::string version;  // of the zeroplan that lowered it
  ModelSpec model;
  TrainSetup setup;  // nothing kAuto
  LowerOptions lower;
  uint64_t fingerprint = 0;
};

// One line of JSON: "zeroplan", "model", "seq_len", "gpus", "lower", "config" (as DeepSpeed JSON)
// and "fingerprint". `lower`: what `program` was lowered with.
std::string WriteProgramRecord(const Program& program, const LowerOptions& lower);

// `text` stands in line `line` of `source`, as the member `key`. Throws Error(kUsage)
// "SOURCE:LINE: KEY....: ..." for what is missing, unknown or out of range. Another version's
// record is read as far as it is understood: whether it still gives that program, its fingerprint
// says.
ProgramRecord ReadProgramRecord(std::string_view text, const std::string& key, int line,
                                const std::string& source);

}  // namespace zeroplan
