// Ends the run where ranks would wait for ever for one that has given up.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "executor/process/process_group.h"

namespace zeroplan {

// Where it lives longer than `limit`, the run fails with `message`. For calls of libraries that
// wait for all ranks and have no limit of their own.
class Deadline {
 public:
  // REQUIRES: `group` outlives it.
  Deadline(ProcessGroup& group, std::chrono::seconds limit, std::string message)
      : thread_([&group, limit, text = std::move(message)](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any never;
          std::unique_lock lock(mutex);
          never.wait_for(lock, stop, limit, [] { return false; });
          if (!stop.stop_requested()) group.Fail(text);
        }) {}

 private:
  std::jthread thread_;  // its end stops it and joins
};

}  // namespace zeroplan
