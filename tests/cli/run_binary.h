// Runs the built zeroplan and keeps what it said.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/has.h"
#include "tests/paths.h"

namespace zeroplan {

struct RunResult {
  int exit_code = -1;
  std::string out, err;
};

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A program of the build, `arguments` as a shell reads them. This machine's GPUs stay out of it,
// whatever they are, unless `environment` is another.
inline RunResult RunProgram(const std::string& program, const std::string& arguments,
                            const std::string& environment = "ZEROPLAN_NO_DETECT=1") {
  const std::string scratch =
      (std::filesystem::temp_directory_path() / ("zeroplan_cli_" + std::to_string(getpid())))
          .string();
  const std::string command =
      environment + " " + BinaryPath(program) + " " + arguments + " 2>" + scratch;
  RunResult result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe))
    result.out.append(buffer, count);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.err = ReadWhole(scratch);
  std::filesystem::remove(scratch);
  return result;
}

inline RunResult RunZeroplan(const std::string& arguments,
                             const std::string& environment = "ZEROPLAN_NO_DETECT=1") {
  return RunProgram("zeroplan", arguments, environment);
}

}  // namespace zeroplan
