// Maps what went wrong to the exit codes of core/base/error.h.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

#include "cli/app.h"
#include "core/base/error.h"

int main(int argc, char** argv) {
  try {
    return zeroplan::RunProgram(argc, argv);
  } catch (const zeroplan::Error& error) {
    // No message: another process of the run has said it.
    if (*error.what() != '\0') fmt::print(stderr, "zeroplan: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const zeroplan::CheckFailure& failure) {
    fmt::print(stderr,
               "zeroplan: {}\nThis is a bug in zeroplan; please report it with the command "
               "line.\n",
               failure.what());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "zeroplan: out of host memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr,
               "zeroplan: {}\nThis is a bug in zeroplan; please report it with the command "
               "line.\n",
               error.what());
  }
  return static_cast<int>(zeroplan::ExitCode::kRuntime);
}
