// What `zeroplan checkpoint` finds in a folder.
#include <doctest/doctest.h>

#include <fstream>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

FolderReport Look(const fs::path& path, bool with_data = true) {
  size_t seen = 0;
  FolderReport report =
      LookAtCheckpoints(path, with_data, [&](const CheckpointReport&) { ++seen; });
  CHECK(seen == report.checkpoints.size());
  return report;
}

struct SavedForVerify {
  FastTempDir dir;
  SavedForVerify() {
    for (const int64_t step : {1, 2, 3}) {
      SaveCheckpoint(dir.path(), SmallLayout(2, 3), step, {.keep = 3});
    }
  }
  fs::path folder(int64_t step) const {
    return CheckpointsFolder(dir.path()) / StepFolderName(step);
  }
};

TEST_CASE("checkpoint verify: every damaged file is named, and what --resume takes") {
  const SavedForVerify saved;
  FolderReport report = Look(saved.dir.path());
  REQUIRE(report.checkpoints.size() == 3);
  CHECK(report.damaged == 0);
  REQUIRE(report.taken != nullptr);
  CHECK(report.taken->step == 3);
  CHECK(report.taken->files == 3);
  CHECK(report.taken->world_size == 3);

  FlipLastByte(saved.folder(3) / "rank-0001.safetensors");
  fs::resize_file(saved.folder(3) / "rank-0002.safetensors", 100);
  fs::remove(saved.folder(2) / "meta.json");
  report = Look(saved.dir.path());
  CHECK(report.damaged == 2);
  REQUIRE(report.taken != nullptr);
  CHECK(report.taken->step == 1);
  REQUIRE(report.checkpoints[0].damage.size() == 2);
  CHECK(Has(report.checkpoints[0].damage[0], "rank-0001.safetensors: adam_v of "));
  CHECK(Has(report.checkpoints[0].damage[1], "rank-0002.safetensors: 100 bytes, saved with"));

  // Sizes alone do not show a flipped bit.
  report = Look(saved.dir.path(), /*with_data=*/false);
  CHECK(report.checkpoints[0].damage.size() == 1);
}

TEST_CASE("checkpoint verify: one step's folder, and folders without any") {
  const SavedForVerify saved;
  FlipLastByte(saved.folder(2) / "rank-0000.safetensors");
  CHECK(Look(saved.folder(2)).damaged == 1);
  const FolderReport one = Look(saved.folder(3) / "");
  CHECK(one.damaged == 0);
  CHECK(one.checkpoints.size() == 1);
  CHECK(one.taken == nullptr);
  const FastTempDir empty;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Look(empty.path()); }), "holds no checkpoint"));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Look(saved.folder(9)); }), "no such folder"));
  std::ofstream(CheckpointsFolder(saved.dir.path()) / "latest") << "nonsense";
  const FolderReport report = Look(saved.dir.path());
  CHECK(Has(report.latest_damage, "'nonsense' is not the name of a checkpoint"));
  CHECK(report.taken->step == 3);
}

}  // namespace
}  // namespace zeroplan
