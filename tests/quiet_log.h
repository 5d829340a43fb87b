// Keeps the log quiet while it lives: for tests whose failures are meant.
#pragma once

#include "core/base/log.h"

namespace zeroplan {

class QuietLog {
 public:
  QuietLog() : before_(GetLogLevel()) { SetLogLevel(LogLevel::kQuiet); }
  ~QuietLog() { SetLogLevel(before_); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  LogLevel before_;
};

}  // namespace zeroplan
