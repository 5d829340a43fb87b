// What an action fails with.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "core/base/error.h"

namespace zeroplan {

// The message of the error that `action` must end with.
inline std::string ErrorOf(ExitCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("no error");
  return "";
}

}  // namespace zeroplan
