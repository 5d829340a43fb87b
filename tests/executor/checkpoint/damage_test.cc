// Checkpoints that something has happened to: an error names the file and the way out.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/shard_writer.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void WriteAll(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}
void Replace(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = ReadAll(path);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  WriteAll(path, text.replace(at, from.size(), to));
}

// As one that knows how to seal it.
void ReplaceInMeta(const fs::path& path, const std::string& from, const std::string& to) {
  Replace(path, from, to);
  const std::string text = ReadAll(path);
  WriteAll(path, SealJson(text.substr(0, text.rfind(",\n  \"digest\"")) + "\n}"));
}

// Two checkpoints, of steps 1 and 2.
struct SavedToDamage {
  FastTempDir dir;
  fs::path first = SaveCheckpoint(dir.path(), SmallLayout(2, 3), 1);
  fs::path latest = SaveCheckpoint(dir.path(), SmallLayout(2, 3), 2);

  std::string Error() const {
    return ErrorOf(ExitCode::kUsage, [&] { OpenCheckpoint(dir.path()); });
  }
};

TEST_CASE("damaged checkpoint: the file is named, and the one to fall back to") {
  struct Case {
    const char* what;
    std::function<void(const fs::path&)> damage;
    const char* message;
  };
  const fs::path shard = "rank-0001.safetensors", meta = "meta.json";
  const std::vector<Case> cases = {
      {"truncated", [&](const fs::path& f) { fs::resize_file(f / shard, 5000); },
       "rank-0001.safetensors: 5000 bytes, saved with"},
      {"emptied", [&](const fs::path& f) { fs::resize_file(f / shard, 0); }, "0 bytes, saved with"},
      {"longer", [&](const fs::path& f) { WriteAll(f / shard, ReadAll(f / shard) + "x"); },
       "cut off or changed"},
      {"missing rank", [&](const fs::path& f) { fs::remove(f / shard); },
       "rank-0001.safetensors: No such file"},
      {"header length",
       [&](const fs::path& f) {
         std::string text = ReadAll(f / shard);
         text[7] = 'x';
         WriteAll(f / shard, text);
       },
       "past the limit"},
      {"renamed entry", [&](const fs::path& f) { Replace(f / shard, "|adam_m|", "|adam_v|"); },
       "rank-0001.safetensors: the header "},
      {"other dtype", [&](const fs::path& f) { Replace(f / shard, "F32", "I32"); },
       "the header is not the one that was saved"},
      {"shards swapped",
       [&](const fs::path& f) {
         fs::rename(f / shard, f / "x");
         fs::rename(f / "rank-0002.safetensors", f / shard);
         fs::rename(f / "x", f / "rank-0002.safetensors");
       },
       "rank-0001.safetensors: "},
      {"no meta", [&](const fs::path& f) { fs::remove(f / meta); }, "meta.json"},
      {"meta cut off", [&](const fs::path& f) { fs::resize_file(f / meta, 100); },
       "meta.json: not valid JSON"},
      {"other schema",
       [&](const fs::path& f) { Replace(f / meta, "checkpoint/2", "checkpoint/9"); },
       "schema: 'zeroplan.checkpoint/9', expected"},
      {"state too long",
       [&](const fs::path& f) { ReplaceInMeta(f / meta, "\"state\": \"", "\"state\": \"0"); },
       "state: must be 256 hexadecimal digits"},
      {"state no hex",
       [&](const fs::path& f) { ReplaceInMeta(f / meta, "\"state\": \"", "\"state\": \"zz"); },
       "state: must be 256 hexadecimal digits"},
      {"negative step",
       [&](const fs::path& f) { ReplaceInMeta(f / meta, "\"step\": 2", "\"step\": -2"); },
       "step: must be a non-negative integer"},
      {"number past float's range",
       [&](const fs::path& f) {
         ReplaceInMeta(f / meta, "\"init_std\": 0.", "\"init_std\": 1e300, \"unused\": 0.");
       },
       "init_std: must be a number"},
      {"key gone", [&](const fs::path& f) { ReplaceInMeta(f / meta, "\"seed\"", "\"sead\""); },
       "seed: missing"},
      {"path as file name",
       [&](const fs::path& f) { ReplaceInMeta(f / meta, "rank-0001", "../rank-0001"); },
       "'../rank-0001.safetensors' is not a file name"},
      {"file listed twice",
       [&](const fs::path& f) { ReplaceInMeta(f / meta, "rank-0001", "rank-0000"); },
       "rank-0000.safetensors: "},
      {"checksum gone",
       [&](const fs::path& f) {
         ReplaceInMeta(f / meta, "\"checksums\": \"", "\"checksums\": \"0");
       },
       "checksums: must be 16 hexadecimal digits for each checksum"},
      {"one checksum more",
       [&](const fs::path& f) {
         ReplaceInMeta(f / meta, "\"checksums\": \"", "\"checksums\": \"" + std::string(16, '0'));
       },
       "checksums for "},
      {"not sealed", [&](const fs::path& f) { Replace(f / meta, "\"seed\": 1", "\"seed\": 2"); },
       "meta.json: digest: the text is not the one that was saved"},
      {"shard of the step before",
       [&](const fs::path& f) {
         fs::copy_file(f.parent_path() / "step-00000001" / shard, f / shard,
                       fs::copy_options::overwrite_existing);
       },
       "the header is not the one that was saved"},
      {"no folder", [&](const fs::path& f) { fs::remove_all(f); }, "meta.json"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const SavedToDamage saved;
    c.damage(saved.latest);
    const std::string message = saved.Error();
    CHECK(Has(message, c.message));
    CHECK(Has(message, "step-00000002"));
    CHECK(Has(message, "step-00000001 is intact; to resume from it: echo step-00000001 > "));
    // The advice works.
    WriteAll(CheckpointsFolder(saved.dir.path()) / "latest", "step-00000001\n");
    const CheckpointSource source = OpenCheckpoint(saved.dir.path());
    CHECK(source.meta().step == 1);
    CHECK(IsConsistent(source));
    // So does the next save.
    SaveCheckpoint(saved.dir.path(), SmallLayout(2, 3), 3);
    CHECK(IsConsistent(OpenCheckpoint(saved.dir.path())));
  }
}

TEST_CASE("damaged checkpoint: a rank that meta.json does not list is missed") {
  const SavedToDamage saved;
  std::string text = ReadAll(saved.latest / "meta.json");
  const size_t begin = text.find("    {\n      \"name\": \"rank-0001");
  const size_t end = text.find("    {\n      \"name\": \"rank-0002");
  text.erase(begin, end - begin);
  WriteAll(saved.latest / "meta.json",
           SealJson(text.substr(0, text.rfind(",\n  \"digest\"")) + "\n}"));
  CHECK(Has(saved.Error(), "master of transformer.wte.weight: elements"));
}

TEST_CASE("damaged checkpoint: nothing intact is said too") {
  const SavedToDamage saved;
  fs::remove(saved.latest / "rank-0000.safetensors");
  fs::remove(saved.first / "rank-0002.safetensors");
  CHECK(Has(saved.Error(), "no other checkpoint in"));
}

TEST_CASE("damaged checkpoint: what latest may hold") {
  const SavedToDamage saved;
  const fs::path latest = CheckpointsFolder(saved.dir.path()) / "latest";
  for (const char* text : {"", "\n", "../../etc", "step-", "step-1/..", "step-12x",
                           "step-00000001-", "/step-00000001"}) {
    CAPTURE(text);
    WriteAll(latest, text);
    const std::string message = saved.Error();
    CHECK(Has(message, "is not the name of a checkpoint such as step-00000123"));
    CHECK(Has(message, "step-00000002 is there; to resume from it: echo step-00000002 > "));
  }
  WriteAll(latest, std::string("step-0000") + '\0' + "001");
  CHECK(Has(saved.Error(), "step-00000002 is there"));
  WriteAll(latest, "step-00000009");
  CHECK(Has(saved.Error(), "step-00000002 is intact"));
  WriteAll(latest, "step-00000001");  // without a newline
  CHECK(OpenCheckpoint(saved.dir.path()).meta().step == 1);
}

TEST_CASE("damaged checkpoint: what was chosen loses its meta.json") {
  const SavedToDamage saved;
  const fs::path chosen = FindCheckpoint(saved.dir.path());
  fs::remove(chosen / "meta.json");
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { OpenCheckpoint(chosen); });
  CHECK(Has(message, "step-00000002/meta.json"));
  CHECK(Has(message, "step-00000001 is intact"));
}

TEST_CASE("damaged data: what a rank reads is held against its checksum") {
  const SavedToDamage saved;
  const fs::path shard = saved.latest / "rank-0001.safetensors";
  const std::string whole = ReadAll(shard);
  std::string half = whole;
  std::fill(half.begin() + static_cast<std::ptrdiff_t>(half.size() / 2), half.end(), '\0');
  WriteAll(shard, half);
  const CheckpointSource source = OpenCheckpoint(saved.dir.path());
  for (const std::string& message : {ErrorOf(ExitCode::kUsage, [&] { source.Verify(); }),
                                     ErrorOf(ExitCode::kUsage, [&] { IsConsistent(source); })}) {
    CHECK(Has(message, "rank-0001.safetensors: "));
    CHECK(Has(message, ": the data is not what was saved"));
    CHECK(Has(message, "step-00000001 is intact"));
  }
  // One that is damaged too is not offered.
  std::string first = ReadAll(saved.first / "rank-0000.safetensors");
  first.back() = static_cast<char>(first.back() ^ 1);
  WriteAll(saved.first / "rank-0000.safetensors", first);
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { source.Verify(); }), "no other checkpoint in"));
}

TEST_CASE("damaged data: no flipped bit of a shard or of meta.json goes unseen") {
  ZEROPLAN_TEST_RNG(rng);
  const SavedToDamage saved;
  for (const char* name : {"rank-0000.safetensors", "rank-0002.safetensors"}) {
    const fs::path path = saved.latest / name;
    const std::string whole = ReadAll(path);
    for (int i = 0; i < 1200; ++i) {
      std::string text = whole;
      const size_t at = rng.Word() % text.size();
      text[at] = static_cast<char>(text[at] ^ (1 << (rng.Word() % 8)));
      WriteAll(path, text);
      CAPTURE(at);
      CHECK_THROWS_AS(OpenCheckpoint(saved.latest).Verify(), Error);
    }
    WriteAll(path, whole);
  }
  const fs::path meta = saved.latest / "meta.json";
  const std::string whole = ReadAll(meta);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ (1 << (rng.Word() % 8)));
    WriteAll(meta, text);
    CAPTURE(at);
    CHECK_THROWS_AS(ReadCheckpointMeta(saved.latest), Error);
  }
  WriteAll(meta, whole);
  CHECK(IsConsistent(OpenCheckpoint(saved.latest)));
}

TEST_CASE("checksums: parts add up in any order, and places count, whatever an element's size") {
  ZEROPLAN_TEST_RNG(rng);
  for (const size_t size : {1u, 2u, 4u}) {
    CAPTURE(size);
    std::vector<std::byte> stored(10'000 * size);
    for (std::byte& byte : stored) byte = static_cast<std::byte>(rng.Word());
    const std::span<const std::byte> all = stored;
    const auto first = all.first(5000 * size);
    constexpr uint64_t kBegin = kChecksumElements - 5000;  // over a chunk's border
    std::vector<uint64_t> whole(2), parts(2);
    AddToChecksums(kBegin, all, size, whole);
    std::vector<size_t> cuts = {0, 10'000};
    for (int i = 0; i < 20; ++i) cuts.push_back(rng.Word() % 10'000);
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = cuts.size() - 1; i > 0; --i) {
      AddToChecksums(kBegin + cuts[i - 1],
                     all.subspan(cuts[i - 1] * size, (cuts[i] - cuts[i - 1]) * size), size, parts);
    }
    CHECK(parts == whole);
    CHECK(whole[0] == StateChecksum(kBegin, first, size));
    CHECK(StateChecksum(kBegin + 1, all, size) != StateChecksum(kBegin, all, size));
    stored[2000 * size] = ~stored[2000 * size];
    CHECK(StateChecksum(kBegin, first, size) != whole[0]);
  }
}

TEST_CASE("a folder that a run saves into is refused to another") {
  const FastTempDir dir;
  {
    const SaveLock lock(dir.path());
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { SaveLock(dir.path()); });
    CHECK(Has(message, "another run saves here (process " + std::to_string(getpid())));
    CHECK(Has(message, "name another folder"));
    SaveCheckpoint(dir.path(), SmallLayout(0, 1), 1);
  }
  const SaveLock next(dir.path());
  CHECK(OpenCheckpoint(dir.path()).meta().step == 1);
}

TEST_CASE("a folder whose run was killed is waited for while a thread of it has not ended") {
  const FastTempDir dir;
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    static const SaveLock lock(dir.path());
    std::thread([] {
      // As one that is in the midst of an fsync, when its process is killed.
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      _exit(0);
    }).detach();
    CHECK(write(pipe[1], "x", 1) == 1);
    syscall(SYS_exit, 0);  // the first thread alone: for others the process is a zombie
  }
  char ready = 0;
  REQUIRE(read(pipe[0], &ready, 1) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  {
    const SaveLock next(dir.path());
    const auto message = ErrorOf(ExitCode::kUsage, [&] { SaveLock(dir.path()); });
    CHECK(Has(message, "process " + std::to_string(getpid())));
  }
  CHECK(waitpid(pid, nullptr, 0) == pid);
  close(pipe[0]);
  close(pipe[1]);
}

TEST_CASE("checkpoint of another model: the difference is named, no other is offered") {
  const SavedToDamage saved;
  const auto resume = [&](const std::function<void(ModelSpec&)>& change) {
    ModelSpec spec = SmallModel();
    change(spec);
    const auto message = ErrorOf(ExitCode::kUsage, [&] {
      CheckpointSource::Open(saved.dir.path(), spec, BuildParamTable(spec));
    });
    CHECK(Has(message, "step-00000002/meta.json: was saved for a model ('small')"));
    CHECK_FALSE(message.find("intact") != std::string::npos);
    return message;
  };
  CHECK(Has(resume([](ModelSpec& s) { s.layers = 3; }), "layers 2, the one to resume has 3"));
  CHECK(Has(resume([](ModelSpec& s) { s.heads = 4; }), "heads 2"));
  CHECK(Has(resume([](ModelSpec& s) { s.vocab = 301; }), "vocabulary 300"));
  CHECK(Has(resume([](ModelSpec& s) { s.layer_norm_eps = 1e-6f; }), "epsilon"));
}

}  // namespace
}  // namespace zeroplan
