// A config that must not load, and what its message must say.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"

namespace zeroplan::testing {

struct MalformedCase {
  const char* text;
  const char* key;  // where and what: "c:4: train_batch_size: 7"
  const char* fix;  // what is allowed, or the nearest known key
};

// On four ranks: exit code 2, the file and line, the key and the fix.
inline void CheckMalformed(const MalformedCase& c) {
  const std::string text = c.text;
  CAPTURE(text);
  ReadContext context;
  context.world_size = 4;
  try {
    ReadDeepSpeedConfig(text, "c", context);
    FAIL_CHECK("loaded");
  } catch (const Error& error) {
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(error.code() == ExitCode::kUsage);
    CHECK(message.starts_with("c:"));
    CHECK(message.find(c.key) != std::string::npos);
    CHECK(message.find(c.fix) != std::string::npos);
  }
}

}  // namespace zeroplan::testing
