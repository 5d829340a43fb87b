// What an engine ran and when, as Chrome trace events (chrome://tracing, ui.perfetto.dev).
#pragma once

#include <filesystem>

#include "core/program/program.h"
#include "executor/engine/engine.h"

namespace zeroplan {

// One process a rank, one thread a stream; names are the instructions', with their layer. Throws
// Error(kRuntime) naming the file. REQUIRES: the engine recorded its trace.
void WriteChromeTrace(const std::filesystem::path& file, const Program& program,
                      const Engine& engine);

}  // namespace zeroplan
