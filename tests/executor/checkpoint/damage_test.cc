// Checkpoints that something has happened to: an error names the file and the way out.
#include <doctest/doctest.h>

#include <fstream>

#include "executor/checkpoint/checkpoint_folder.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/device/temp_dir.h"

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

// Two checkpoints, of steps 1 and 2.
struct Saved {
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
       [&](const fs::path& f) { Replace(f / meta, "checkpoint/1", "checkpoint/9"); },
       "schema: 'zeroplan.checkpoint/9', expected"},
      {"state too long",
       [&](const fs::path& f) { Replace(f / meta, "\"state\": \"", "\"state\": \"0"); },
       "state: must be 256 hexadecimal digits"},
      {"state no hex",
       [&](const fs::path& f) { Replace(f / meta, "\"state\": \"", "\"state\": \"zz"); },
       "state: must be 256 hexadecimal digits"},
      {"negative step",
       [&](const fs::path& f) { Replace(f / meta, "\"step\": 2", "\"step\": -2"); },
       "step: must be a non-negative integer"},
      {"key gone", [&](const fs::path& f) { Replace(f / meta, "\"seed\"", "\"sead\""); },
       "seed: missing"},
      {"path as file name",
       [&](const fs::path& f) { Replace(f / meta, "rank-0001", "../rank-0001"); },
       "'../rank-0001.safetensors' is not a file name"},
      {"file listed twice", [&](const fs::path& f) { Replace(f / meta, "rank-0001", "rank-0000"); },
       "rank-0000.safetensors: "},
      {"no folder", [&](const fs::path& f) { fs::remove_all(f); }, "meta.json"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const Saved saved;
    c.damage(saved.latest);
    const std::string message = saved.Error();
    CHECK(Contains(message, c.message));
    CHECK(Contains(message, "step-00000002"));
    CHECK(Contains(message, "step-00000001 is intact; to resume from it: echo step-00000001 > "));
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
  const Saved saved;
  std::string text = ReadAll(saved.latest / "meta.json");
  const size_t begin = text.find("    {\n      \"name\": \"rank-0001");
  const size_t end = text.find("    {\n      \"name\": \"rank-0002");
  WriteAll(saved.latest / "meta.json", text.erase(begin, end - begin));
  CHECK(Contains(saved.Error(), "master of transformer.wte.weight: elements"));
}

TEST_CASE("damaged checkpoint: nothing intact is said too") {
  const Saved saved;
  fs::remove(saved.latest / "rank-0000.safetensors");
  fs::remove(saved.first / "rank-0002.safetensors");
  CHECK(Contains(saved.Error(), "no other checkpoint in"));
}

TEST_CASE("damaged checkpoint: what latest may hold") {
  const Saved saved;
  const fs::path latest = CheckpointsFolder(saved.dir.path()) / "latest";
  for (const char* text : {"", "\n", "../../etc", "step-", "step-1/..", "step-12x",
                           "step-00000001-", "/step-00000001"}) {
    CAPTURE(text);
    WriteAll(latest, text);
    CHECK(Contains(saved.Error(), "is not the name of a checkpoint such as step-00000123"));
  }
  WriteAll(latest, "step-00000009");
  CHECK(Contains(saved.Error(), "step-00000002 is intact"));
  WriteAll(latest, "step-00000001");  // without a newline
  CHECK(OpenCheckpoint(saved.dir.path()).meta().step == 1);
}

TEST_CASE("checkpoint of another model: the difference is named, no other is offered") {
  const Saved saved;
  const auto resume = [&](const std::function<void(ModelSpec&)>& change) {
    ModelSpec spec = SmallModel();
    change(spec);
    const auto message = ErrorOf(ExitCode::kUsage, [&] {
      CheckpointSource::Open(saved.dir.path(), spec, BuildParamTable(spec));
    });
    CHECK(Contains(message, "step-00000002/meta.json: was saved for a model ('small')"));
    CHECK_FALSE(message.find("intact") != std::string::npos);
    return message;
  };
  CHECK(Contains(resume([](ModelSpec& s) { s.layers = 3; }), "layers 2, the one to resume has 3"));
  CHECK(Contains(resume([](ModelSpec& s) { s.heads = 4; }), "heads 2"));
  CHECK(Contains(resume([](ModelSpec& s) { s.vocab = 301; }), "vocabulary 300"));
  CHECK(Contains(resume([](ModelSpec& s) { s.layer_norm_eps = 1e-6f; }), "epsilon"));
}

}  // namespace
}  // namespace zeroplan
