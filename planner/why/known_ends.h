// How a run ended, according to launchers, shells, schedulers and drivers: exit codes, signals and
// messages that have a known cause and a way out.
#pragma once

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
// The end with an exit code: of Python's subprocess module (-9), or of a shell (137).
std::optional<KnownEnd> EndWithCode(int code);

// The way out of an exception with such a message, a sentence; "": none is known.
std::string WayOutOfError(std::string_view message);

}  // namespace zeroplan
