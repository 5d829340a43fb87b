// How a run ended, according to Python, launchers, shells, schedulers and drivers: exceptions, exit
// codes, signals and messages, with the cause and the way out that are known of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "planner/why/run_log.h"

namespace zeroplan {

struct KnownEnd {
  FailureKind kind = FailureKind::kExited;
  std::string what;     // "a bus error (SIGBUS): ..."
  std::string way_out;  // a sentence; empty: none is known
};

// The end that a line tells of; unset: it tells of none, or of an end with exit code 0.
std::optional<KnownEnd> EndIn(std::string_view line);

// The length of the exception's name that a traceback's last line begins with ("RuntimeError:
// ..."); 0: it begins with none.
size_t ExceptionName(std::string_view text);
// Whether a message is of launchers, or of ranks that another one took down.
bool IsConsequence(std::string_view message);
// The sizes in a message of the CUDA allocator.
OomMessage ShortageIn(std::string_view text);
// The phase of a process that last printed `label` (RunLog::last_seen).
RunPhase PhaseOfLabel(std::string_view label);
// The way out of an exception with such a message, a sentence; "": none is known.
std::string WayOutOfError(std::string_view message);

}  // namespace zeroplan
