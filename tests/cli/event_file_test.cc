// Event files for TensorBoard: bytes, names, folders.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/train/tensorboard_log.h"
#include "core/base/error.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Scalars = std::vector<std::pair<std::string_view, double>>;

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string Repeated(size_t count, auto&& of) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(of(i)));
  return bytes;
}

// RFC 3720, appendix B.4, and the check value that catalogues of CRCs have.
TEST_CASE("CRC-32C of known texts") {
  CHECK(Crc32c("") == 0);
  CHECK(Crc32c("123456789") == 0xe3069283);
  CHECK(Crc32c(Repeated(32, [](size_t) { return 0; })) == 0x8a9136aa);
  CHECK(Crc32c(Repeated(32, [](size_t) { return 0xff; })) == 0x62a8ab43);
  CHECK(Crc32c(Repeated(32, [](size_t i) { return i; })) == 0x46dd794e);
  CHECK(Crc32c(Repeated(32, [](size_t i) { return 31 - i; })) == 0x113fdb5c);
}

// The bytes are those of tensorboard 2.21: its own messages, written by its RecordWriter.
TEST_CASE("records have the bytes that TensorBoard's own writer gives them") {
  constexpr double kTime = 1700000000.25;
  CHECK(Hex(TfRecord(FileVersionEvent(kTime))) ==
        "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9");
  CHECK(Hex(TfRecord(SessionStartEvent(kTime, 21))) ==
        "0f000000000000006d532b090900001040fc54d94110153a0208010e937c4c");
  const Scalars scalars = {{"train/loss", 2.5}, {"train/lr", 1e-3}};
  CHECK(Hex(TfRecord(ScalarsEvent(kTime, 300, scalars))) ==
        "3200000000000000241956ec0900001040fc54d94110ac022a240a110a0a747261696e2f6c6f7373150000204"
        "00a0f0a08747261696e2f6c72156f12833a6f52fa10");
}

// What is in an event file, as far as it is whole.
struct EventFile {
  int64_t first_step = -1;                               // of the session's start
  std::vector<std::pair<int64_t, std::string>> scalars;  // step, and the summary's bytes
};

uint64_t TakeVarint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE_FALSE(bytes->empty());
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

// Calls visit(field, number or bytes) for each field of a message.
void ForEachField(std::string_view message, auto&& visit) {
  while (!message.empty()) {
    const uint64_t tag = TakeVarint(&message);
    size_t size = 0;
    uint64_t number = 0;
    if (tag % 8 == 0) number = TakeVarint(&message);
    if (tag % 8 == 1) size = 8;
    if (tag % 8 == 5) size = 4;
    if (tag % 8 == 2) size = TakeVarint(&message);
    REQUIRE(message.size() >= size);
    visit(tag / 8, number, message.substr(0, size));
    message.remove_prefix(size);
  }
}

template <typename T>
T Number(std::string_view bytes) {
  T value;
  REQUIRE(bytes.size() >= sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

EventFile ReadEventFile(const fs::path& path) {
  const std::string text = ReadWhole(path);
  EventFile file;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view size_bytes = rest.substr(0, 8);
    const auto size = Number<uint64_t>(size_bytes);
    REQUIRE(rest.size() >= size + 16);
    CHECK(Number<uint32_t>(rest.substr(8)) == MaskedCrc32c(size_bytes));
    const std::string_view payload = rest.substr(12, size);
    CHECK(Number<uint32_t>(rest.substr(12 + size)) == MaskedCrc32c(payload));
    int64_t step = 0;
    ForEachField(payload, [&](uint64_t field, uint64_t number, std::string_view bytes) {
      if (field == 2) step = static_cast<int64_t>(number);
      if (field == 5) file.scalars.emplace_back(step, bytes);
      if (field == 7) file.first_step = step;
    });
    rest.remove_prefix(size + 16);
  }
  return file;
}

// Of the tag `name`, by step.
std::map<int64_t, float> ValuesOf(const EventFile& file, std::string_view name) {
  std::map<int64_t, float> values;
  for (const auto& [step, summary] : file.scalars) {
    ForEachField(summary, [&, at = step](uint64_t, uint64_t, std::string_view value) {
      std::string_view tag, number;
      ForEachField(value, [&](uint64_t field, uint64_t, std::string_view bytes) {
        (field == 1 ? tag : number) = bytes;
      });
      if (tag == name) CHECK(values.emplace(at, Number<float>(number)).second);
    });
  }
  return values;
}

std::vector<fs::path> FilesIn(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST_CASE("a new event file sorts after those that are there, whatever the clock says") {
  const Workspace work;
  const fs::path folder = work.path("runs");
  CHECK(NextEventFileName(folder, 1'700'000'000).starts_with("events.out.tfevents.1700000000."));
  fs::create_directory(folder);
  std::ofstream(folder / "events.out.tfevents.1800000000.zzz.9.0");
  std::ofstream(folder / "events.out.tfevents.notes");
  CHECK(NextEventFileName(folder, 1'700'000'000).starts_with("events.out.tfevents.1800000001."));
  CHECK(NextEventFileName(folder, 1'900'000'000).starts_with("events.out.tfevents.1900000000."));
}

TEST_CASE("an event file that cannot grow ends with a warning, and what came before is whole") {
  const Workspace work;
  const fs::path folder = work.path("runs/first");
  const Scalars scalars = {{"train/loss", 2.5}};
  TensorboardLog log(folder, 1);
  log.Add(1, scalars);
  const fs::path file = FilesIn(folder).front();
  const uint64_t size = fs::file_size(file);
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit full = before;
  full.rlim_cur = size;  // as on a full disk: nothing more goes in
  REQUIRE(setrlimit(RLIMIT_FSIZE, &full) == 0);
  log.Add(2, scalars);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, handler);
  log.Add(3, scalars);  // not after a hole
  CHECK(fs::file_size(file) == size);
  CHECK(ValuesOf(ReadEventFile(file), "train/loss") == std::map<int64_t, float>{{1, 2.5f}});
}

TEST_CASE("train --tensorboard: the scalars of --metrics, and a resume in a file of its own") {
  const Workspace work;
  const std::string folder = work.path("logs/run"), metrics = work.path("m.jsonl");
  const std::string shared = "--gpus 2 --stage 2 --validate-every 4 --tensorboard " + folder +
                             " --metrics " + metrics + " --save " + work.path("out");
  REQUIRE(RunZeroplan(work.Train(shared, 6)).exit_code == 0);
  std::vector<fs::path> files = FilesIn(folder);
  REQUIRE(files.size() == 1);
  const EventFile first = ReadEventFile(files[0]);
  CHECK(first.first_step == 1);
  std::map<std::string, std::map<int64_t, float>> expected;
  for (const nlohmann::json& line : ReadMetricsLines(metrics)) {
    const int64_t step = line.value("step", 0);
    if (line["event"] == "step") {
      for (const char* name : {"loss", "grad_norm", "lr", "loss_scale"}) {
        expected[std::string("train/") + name][step] = line[name].get<float>();
      }
      for (const char* name : {"step_seconds", "tokens_per_second"}) {
        expected[std::string("speed/") + name][step] = line[name].get<float>();
      }
      expected["train/skipped"][step] = 0;
      expected["speed/mfu"];  // not known on a CPU, so not there
    } else if (line["event"] == "validation") {
      expected["validation/loss"][step] = line["loss"].get<float>();
      expected["validation/perplexity"][step] = line["perplexity"].get<float>();
    } else if (line["event"] == "saved") {
      expected["save/write_seconds"][step] = line["write_seconds"].get<float>();
    }
  }
  CHECK(expected.at("train/loss").size() == 6);
  CHECK(expected.at("validation/loss").size() == 2);
  for (const auto& [tag, values] : expected) {
    CAPTURE(tag);
    CHECK(ValuesOf(first, tag) == values);
  }

  // Another run would be drawn as one with it.
  const RunResult other = RunZeroplan(work.Train("--tensorboard " + folder, 6));
  CHECK(other.exit_code == 2);
  CHECK(Has(other.err, "--tensorboard: " + folder + ": the folder holds events.out.tfevents."));
  CHECK(Has(other.err, wording::kContinueThatWithOrChoose));
  const std::string before = ReadWhole(files[0]);
  REQUIRE(RunZeroplan(work.Train(shared + " --resume", 9)).exit_code == 0);
  files = FilesIn(folder);
  REQUIRE(files.size() == 2);
  CHECK(ReadWhole(files[0]) == before);
  const EventFile second = ReadEventFile(files[1]);
  CHECK(second.first_step == 7);
  CHECK(ValuesOf(second, "train/loss").size() == 3);
  CHECK(ValuesOf(second, "train/loss").begin()->first == 7);
}

TEST_CASE("train --tensorboard: a folder that cannot be is found before the work") {
  const Workspace work;
  std::ofstream(work.path("file")) << "text";
  const std::string bad = work.path("file") + "/runs";
  const RunResult run = RunZeroplan(work.Train("--tensorboard " + bad, 6));
  CHECK(run.exit_code == 2);
  CHECK(run.err == "zeroplan: --tensorboard: " + bad + ": " + work.path("file") +
                       " is no folder; choose another\n");
}

}  // namespace
}  // namespace zeroplan
