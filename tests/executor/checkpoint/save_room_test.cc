// What is asked of a folder before a run saves into it.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <fstream>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/shard_writer.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

uint64_t BytesBelow(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  return bytes;
}

TEST_CASE("save room: the bytes of shards and weights are those that are written") {
  for (const int stage : {0, 2, 3}) {
    const FastTempDir dir;
    const ParamLayout layout = SmallLayout(stage, 3);
    const fs::path folder = SaveCheckpoint(dir.path(), layout, 7);
    const std::vector<uint64_t> bytes = ShardFileBytes(layout);
    REQUIRE(bytes.size() == layout.shards);
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      CHECK(bytes[rank] == fs::file_size(folder / ShardFileName(static_cast<int>(rank))));
    }
    const fs::path weights = fs::path(dir.path()) / "weights";
    WriteHfWeights(weights, SmallModel(), *layout.tensors, OpenCheckpoint(dir.path()),
                   {.dtype = Dtype::kBF16});
    const uint64_t data = HfWeightsBytes(*layout.tensors, Dtype::kBF16);
    CHECK(BytesBelow(weights) >= data);
    CHECK(BytesBelow(weights) < data + 8192);  // its header
  }
}

TEST_CASE("save room: what a run adds to what lies there") {
  SaveDemand demand{.shard_bytes = {40, 60}, .final_bytes = 30, .saves = 1, .keep = 2};
  CHECK(SaveBytes(demand, 0) == 130);  // the checkpoint, then the weights
  CHECK(SaveBytes(demand, 2) == 100);  // one goes before the weights come
  demand.saves = 10;
  CHECK(SaveBytes(demand, 0) == 300);  // two, and the third before the first goes
  CHECK(SaveBytes(demand, 1) == 200);
  CHECK(SaveBytes(demand, 5) == 100);
  demand.keep = 1;
  CHECK(SaveBytes(demand, 0) == 200);
  demand.final_bytes = 500;
  CHECK(SaveBytes(demand, 0) == 600);
}

TEST_CASE("save room: too little is refused with both numbers") {
  const TempDir dir;
  struct statvfs disk {};
  REQUIRE(::statvfs(dir.path().c_str(), &disk) == 0);
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  SaveDemand demand{.shard_bytes = {free / 4}, .final_bytes = 0, .saves = 2, .keep = 2};
  CHECK_NOTHROW(CheckSaveRoom(dir.path(), demand));
  demand.swap_bytes = free;
  demand.swap_dir = "/proc";  // another disk
  CHECK_NOTHROW(CheckSaveRoom(dir.path(), demand));
  demand.swap_dir = dir.path();
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { CheckSaveRoom(dir.path(), demand); }),
            ", swap files on the same disk "));
  demand.swap_bytes = 0;
  demand.shard_bytes = {free / 2, free / 2};
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { CheckSaveRoom(dir.path(), demand); });
  CHECK(Has(message, "⟦save⟧ " + dir.path() + ": the run needs up to "));
  CHECK(Has(message, " are free"));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 1'000'000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const std::string limited = ErrorOf(ExitCode::kUsage, [&] {
    CheckSaveRoom(dir.path(), {.shard_bytes = {1'000'001}, .final_bytes = 0});
  });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(Has(limited, "ulimit -f"));
}

TEST_CASE("save room: files that go along are counted, and links out of the folder do not") {
  const FastTempDir dir;
  const fs::path root = dir.path(), model = root / "model", target = root / "target";
  fs::create_directories(model / "inner");
  fs::create_directory(target);
  const auto put = [](const fs::path& file, const std::string& text) {
    std::ofstream(file) << text;
  };
  put(model / "tokenizer.json", std::string(1000, 't'));
  put(model / "inner/LICENSE", "the model's");
  put(root / "secret", "somebody's");
  fs::create_symlink("inner/LICENSE", model / "LICENSE");
  fs::create_symlink(root / "secret", model / "NOTICE");
  CHECK(CheckCompanions(model) == 1011);
  CHECK(CheckCompanions("") == 0);
  const ParamLayout layout = SmallLayout(0, 1);
  SaveCheckpoint((root / "run").string(), layout, 7);
  WriteHfWeights(target, SmallModel(), *layout.tensors, OpenCheckpoint((root / "run").string()),
                 {.source = model});
  CHECK(fs::file_size(target / "tokenizer.json") == 1000);
  CHECK(fs::file_size(target / "LICENSE") == 11);
  CHECK_FALSE(fs::exists(target / "NOTICE"));
  // Hugging Face's cache is such links.
  const fs::path snapshot = root / "models--a--b/snapshots/0123",
                 blobs = root / "models--a--b/blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  put(blobs / "abc", "tokens");
  fs::create_symlink("../../blobs/abc", snapshot / "tokenizer.json");
  CHECK(CheckCompanions(snapshot) == 6);
  // A sparse terabyte is no tokenizer.
  put(model / "tokenizer.model", "");
  fs::resize_file(model / "tokenizer.model", uint64_t{1} << 40);
  const std::string large = ErrorOf(ExitCode::kUsage, [&] { CheckCompanions(model); });
  CHECK(Has(large, "tokenizer.model: has 1.10 TB, and goes along with the saved weights"));
}

TEST_CASE("save room: a folder that works is left as it was; mounts of object stores are known") {
  const FastTempDir dir;
  const fs::path save = fs::path(dir.path()) / "a/b";
  CheckSaveFolder(save);
  CHECK(fs::is_empty(CheckpointsFolder(save)));
  // What a deletion left goes; folders where files belong are found now.
  fs::create_directory(CheckpointsFolder(save) / ".tmp-old-step-00000007");
  CheckSaveFolder(save);
  CHECK(fs::is_empty(CheckpointsFolder(save)));
  for (const char* name : {"latest", "best"}) {
    fs::create_directory(CheckpointsFolder(save) / name);
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { CheckSaveFolder(save); }),
              std::string(name) + " is a folder, and a save writes a file of that name"));
    fs::remove(CheckpointsFolder(save) / name);
  }
  const fs::path mounts = fs::path(dir.path()) / "mountinfo";
  std::ofstream(mounts) << "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
                           "22 21 0:50 / /mnt/my\\040bucket rw shared:1 - fuse.s3fs s3fs rw\n"
                           "23 21 0:51 / /mnt/m rw - fuse mountpoint-s3 rw\n"
                           "24 22 8:2 / /mnt/my\\040bucket/disk rw - xfs /dev/sdb rw\n";
  CHECK(ObjectStoreOf("/mnt/my bucket/run", mounts) == "s3fs");
  CHECK(ObjectStoreOf("/mnt/m", mounts) == "mountpoint-s3");
  CHECK(ObjectStoreOf("/mnt/my bucket/disk/run", mounts).empty());
  CHECK(ObjectStoreOf("/mnt/mine", mounts).empty());
  CHECK(ObjectStoreOf(save).empty());
}

}  // namespace
}  // namespace zeroplan
