// The executor finds CUDA's libraries in the packages of the Python that pip installed it for.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/common/executor_commands.h"
#include "tests/cli/run_binary.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr int kFakeVersion = 29901;  // tests/fixtures/fake_nccl

nlohmann::json Libraries(const std::string& program, const std::string& environment) {
  const std::string command = environment + " " + program + " " + kPrintLibraries;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, count);
  REQUIRE(pclose(pipe) == 0);
  return nlohmann::json::parse(text);
}

// A Python whose sys.path is that folder.
void WritePython(const fs::path& file, const fs::path& site_packages) {
  std::ofstream(file) << "#!/bin/sh\nprintf '\\n%s\\n' '" << site_packages.string() << "'\n";
  fs::permissions(file, fs::perms::owner_all);
}

TEST_CASE("CUDA's libraries are found in the packages of the environment, and where a user says") {
  if (!Libraries(BinaryPath("zeroplan-executor"), "").at("cuda").get<bool>()) return;
  const TempDir dir;
  const fs::path packages = fs::path(dir.path()) / "site-packages/nvidia/nccl/lib";
  fs::create_directories(packages);
  fs::copy_file(BinaryPath("fake_nccl/libnccl.so.2"), packages / "libnccl.so.2");
  const fs::path bin = fs::path(dir.path()) / "bin";
  fs::create_directories(bin);
  const std::string program = (bin / "zeroplan-executor").string();
  fs::copy_file(BinaryPath("zeroplan-executor"), program);
  const std::string quiet = "env -u LD_LIBRARY_PATH";
  CHECK(Libraries(program, quiet).at("nccl") != kFakeVersion);
  WritePython(bin / "python3", packages.parent_path().parent_path().parent_path());
  CHECK(Libraries(program, quiet).at("nccl") == kFakeVersion);

  // The folder that the user names comes first; one that is too old, or none, is passed over.
  const std::string named = dir.path() + "/named";
  fs::create_directories(named);
  std::ofstream(named + "/libnccl.so.2") << "not a library";
  CHECK(Libraries(program, "env LD_LIBRARY_PATH=" + named).at("nccl") == kFakeVersion);
  CHECK(Libraries(program, "env LD_LIBRARY_PATH=" + BinaryPath("old_nccl")).at("nccl") ==
        kFakeVersion);
  fs::remove(bin / "python3");
  CHECK(Libraries(program, "env LD_LIBRARY_PATH=" + packages.string()).at("nccl") == kFakeVersion);

  // The working folder is no place for libraries, whatever PYTHONPATH has.
  fs::create_symlink("/usr/bin/python3", bin / "python3");
  if (!fs::exists("/usr/bin/python3")) return;
  const std::string inside =
      "cd " + dir.path() + "/site-packages && env -u LD_LIBRARY_PATH PYTHONPATH=:";
  CHECK(Libraries(program, inside).at("nccl") != kFakeVersion);
}

}  // namespace
}  // namespace zeroplan
