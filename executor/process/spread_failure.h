// No rank fails alone: what one throws, all throw.
#pragma once

#include <exception>
#include <utility>

#include "core/base/error.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Returns fn(). What it throws becomes the run's failure, unless the run has failed before; an
// Error leaves as the run's first failure, with that one's exit code, on every rank.
template <typename Fn>
auto SpreadFailure(ProcessGroup& group, Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const Error& error) {
    if (group.world_size() == 1) throw;
    group.FailWith(error.code(), error.what());
    group.ThrowIfFailed();
    throw;
  } catch (const std::exception& error) {  // a bug, or no memory: told as such where it happened
    group.Fail(error.what());
    throw;
  }
}

}  // namespace zeroplan
