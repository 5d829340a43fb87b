// What 'hw measure' keeps: found again on the same machine, refused with the reason on another.
#include "machine/kept_profile.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

class KeptFixture {
 public:
  const TempDir folder;
  const std::string file = folder.path("deep/hw.json");
  const MachineIdentity machine = {{{"NVIDIA H200", 150e9}, {"NVIDIA H200", 150e9}}, "580.1", 32};

  void Keep() const { KeepProfile(file, machine, ProfileText("hgx-h200"), "2026-11-20"); }
  std::string NoteFor(const MachineIdentity& other) const {
    const KeptProfile kept = ReadKeptProfile(file, other);
    CHECK(!kept.profile.has_value());
    return kept.note;
  }
};

TEST_CASE_FIXTURE(KeptFixture, "what is kept is found on the same machine, and says when") {
  CHECK(!ReadKeptProfile(file, machine).profile.has_value());
  CHECK(ReadKeptProfile(file, machine).note.empty());
  Keep();
  const KeptProfile kept = ReadKeptProfile(file, machine);
  REQUIRE(kept.profile.has_value());
  CHECK(kept.when == "2026-11-20");
  CHECK(kept.note.empty());
  CHECK(kept.profile->source == file);
  HardwareProfile same = *kept.profile;
  same.source = "built in";
  CHECK(same == LoadProfile("hgx-h200"));
  // Nothing else is left in the folder.
  CHECK(std::distance(fs::directory_iterator(fs::path(file).parent_path()), {}) == 1);
}

TEST_CASE_FIXTURE(KeptFixture,
                  "another GPU, driver or number of cores makes it stale, with the fix") {
  Keep();
  MachineIdentity other = machine;
  other.driver = "590.2";
  CHECK(NoteFor(other).find("driver was 580.1 then, and 590.2 now") != std::string::npos);
  CHECK(NoteFor(other).find("2026-11-20") != std::string::npos);
  CHECK(NoteFor(other).find("zeroplan hw measure") != std::string::npos);
  other = machine;
  other.cores = 16;
  CHECK(NoteFor(other).find("cores were 32 then, and 16 now") != std::string::npos);
  other = machine;
  other.gpus[0].name = other.gpus[1].name = "NVIDIA B200";
  CHECK(NoteFor(other).find("2 x NVIDIA B200 now") != std::string::npos);
}

TEST_CASE_FIXTURE(KeptFixture, "a damaged file is said and not used") {
  Keep();
  for (const char* text :
       {"", "{", "[]", "{}", R"({"schema": "zeroplan.kept/9"})", R"({"schema": "zeroplan.kept/1"})",
        R"({"schema": "zeroplan.kept/1", "measured": 5, "machine": {}})"}) {
    CAPTURE(std::string(text));
    std::ofstream(file, std::ios::trunc) << text;
    CHECK(NoteFor(machine).find("zeroplan hw measure") != std::string::npos);
  }
  // The profile in it is checked as any other.
  Keep();
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t at = text.find("\"datasheet\"");
  REQUIRE(at != std::string::npos);
  text.replace(at, 11, "\"rumour\"");
  std::ofstream(file, std::ios::trunc) << text;
  CHECK(NoteFor(machine).find("rumour") != std::string::npos);
}

TEST_CASE_FIXTURE(KeptFixture, "a folder that cannot be written is an error that names the fix") {
  std::ofstream(folder.path("deep")) << "no folder";
  CHECK_THROWS_WITH_AS(Keep(), doctest::Contains("ZEROPLAN_CACHE_DIR"), Error);
}

TEST_CASE("the file is this host's, for so many GPUs, in the cache folder") {
  const char* before = std::getenv("ZEROPLAN_CACHE_DIR");
  const std::string old = before == nullptr ? "" : before;
  setenv("ZEROPLAN_CACHE_DIR", "/tmp/somewhere", 1);
  CHECK(KeptProfileFile(2).starts_with("/tmp/somewhere/hw-"));
  CHECK(KeptProfileFile(2).ends_with("-2-gpus.json"));
  CHECK(KeptProfileFile(2) != KeptProfileFile(4));
  if (before == nullptr) {
    unsetenv("ZEROPLAN_CACHE_DIR");
  } else {
    setenv("ZEROPLAN_CACHE_DIR", old.c_str(), 1);
  }
}

}  // namespace
}  // namespace zeroplan
