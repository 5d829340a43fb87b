// Saves that fail or die: at every step of a save, and at random instants, the checkpoint before or
// the new one can be resumed from.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/hf_weights.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/quiet_log.h"
#include "tests/temp_dir.h"
#include "text/files/token_dataset.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr int kSilentDeath = 9;

// Acts at the `at`-th step of a save.
class AtStep : public IoHook {
 public:
  AtStep(int at, int error) : at_(at), error_(error) {}
  int Before(IoStep step, const fs::path& path) override {
    if (count_++ != at_) return 0;
    path_ = path.string();
    step_ = step;
    if (error_ == 0) _exit(kSilentDeath);  // as SIGKILL: no destructors, no flushing
    return error_;
  }
  bool reached() const { return count_ > at_; }
  const std::string& path() const { return path_; }
  IoStep step() const { return step_; }

 private:
  int at_, error_, count_ = 0;
  std::string path_;
  IoStep step_ = IoStep::kCreate;
};

// Runs `child` in a process of its own; returns its wait status.
template <typename Child>
int InChild(Child&& child) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    int code = 1;
    try {
      code = child();
    } catch (...) {
    }
    _exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return status;
}

TEST_CASE("save: an error at any step leaves the checkpoint before") {
  const QuietLog quiet;
  const ParamLayout layout = SmallLayout(2, 2);
  int steps = 0;
  for (bool reached = true; reached; ++steps) {
    const FastTempDir dir;
    SaveCheckpoint(dir.path(), layout, 1);
    SaveCheckpoint(dir.path(), layout, 2);
    AtStep hook(steps, ENOSPC);
    bool saved = false;
    try {
      SaveCheckpoint(dir.path(), layout, 3, {.hook = &hook});
      saved = true;
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kRuntime);
      CHECK(Has(error.what(), std::strerror(ENOSPC)));
      CHECK(Has(error.what(), hook.path()));
      CHECK(NothingUnfinished(dir.path()));  // to fill the disk
    }
    reached = hook.reached();
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(IsConsistent(source));
    // After `latest` has changed, errors are about the sync of its folder, or warnings.
    const bool renamed =
        hook.reached() && !saved && hook.step() == IoStep::kSyncFolder && source.meta().step == 3;
    CHECK(source.meta().step == (saved || renamed ? 3 : 2));
    SaveCheckpoint(dir.path(), layout, 4);
    CHECK(OpenCheckpoint(dir.path()).meta().step == 4);
  }
  CHECK(steps > 50);
}

TEST_CASE("save: death at any step leaves the checkpoint before or the new one") {
  const QuietLog quiet;
  const ParamLayout layout = SmallLayout(2, 2);
  for (const bool first_save : {false, true}) {
    bool died = true;
    int64_t newest = 2;
    for (int at = 0; died; ++at) {
      const FastTempDir dir;
      if (!first_save) {
        SaveCheckpoint(dir.path(), layout, 1);
        SaveCheckpoint(dir.path(), layout, 2);
      }
      const int status = InChild([&] {
        AtStep hook(at, 0);
        SaveCheckpoint(dir.path(), layout, 3, {.hook = &hook});
        return 0;
      });
      REQUIRE(WIFEXITED(status));
      died = WEXITSTATUS(status) == kSilentDeath;
      REQUIRE((died || WEXITSTATUS(status) == 0));
      if (!first_save || HasCheckpoint(dir.path())) {
        const CheckpointSource source = OpenCheckpoint(dir.path());
        CHECK(IsConsistent(source));
        CHECK(source.meta().step >= newest);  // once new, it stays new at later deaths
        newest = source.meta().step;
      }
      // The next save cleans up.
      SaveCheckpoint(dir.path(), layout, 4);
      CHECK(OpenCheckpoint(dir.path()).meta().step == 4);
      CHECK(NothingUnfinished(dir.path()));
      CHECK(ListCheckpoints(dir.path()).size() <= 2);
    }
    CHECK(newest == 3);
  }
}

TEST_CASE("save: SIGKILL at random instants") {
  const QuietLog quiet;
  const TempDir dir;
  const ParamLayout layout = SmallLayout(3, 3);
  const auto start = std::chrono::steady_clock::now();
  SaveCheckpoint(dir.path(), layout, 1);
  std::chrono::duration<double> save = std::chrono::steady_clock::now() - start;
  std::mt19937 random(7);
  std::uniform_real_distribution<> saves(0, 3);
  int64_t step = 1;
  int moved = 0;
  for (int kill = 0; kill < 40 || moved == 0; ++kill) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      try {
        for (int64_t next = step + 1;; ++next) SaveCheckpoint(dir.path(), layout, next);
      } catch (...) {
      }
      _exit(1);
    }
    std::this_thread::sleep_for(save * saves(random));
    REQUIRE(::kill(pid, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFSIGNALED(status));
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(IsConsistent(source));
    CHECK(source.meta().step >= step);
    moved += source.meta().step > step ? 1 : 0;
    step = source.meta().step;
    if (moved == 0) save *= 1.2;  // the machine has become slower
  }
}

TEST_CASE("save: a file that the system refuses to grow is an error, the old checkpoint stays") {
  const QuietLog quiet;
  const TempDir dir;
  const ParamLayout layout = SmallLayout(1, 2);
  SaveCheckpoint(dir.path(), layout, 1);
  const int status = InChild([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      SaveCheckpoint(dir.path(), layout, 2);
    } catch (const Error& error) {
      const std::string message = error.what();
      return error.code() == ExitCode::kRuntime &&
                     message.find("rank-0000.safetensors") != std::string::npos &&
                     message.find(std::strerror(EFBIG)) != std::string::npos
                 ? 0
                 : 2;
    }
    return 3;
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  const CheckpointSource source = OpenCheckpoint(dir.path());
  CHECK(source.meta().step == 1);
  CHECK(IsConsistent(source));
}

// All elements are `value`.
class ConstantSource : public StateSource {
 public:
  explicit ConstantSource(float value) : value_(value) {}
  void Read(const TensorRange&, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), value_);
  }

 private:
  float value_;
};

// A kind of file: how 1 or 2 is written to it, and read back.
struct FileKind {
  const char* name;
  std::function<void(const fs::path&, int, IoHook*)> write;
  std::function<int(const fs::path&)> read;
};

std::vector<FileKind> FileKinds() {
  const auto table = std::make_shared<std::vector<ParamTensor>>(BuildParamTable(SmallModel()));
  const auto write_text = [](const fs::path& path, int value, IoHook* hook) {
    WriteFileAtomically(path, std::string(1, static_cast<char>(value)), hook);
  };
  const auto read_text = [](const fs::path& path) {
    const MappedFile file = MappedFile::Open(path);
    return file.size() == 1 ? std::to_integer<int>(file.bytes()[0]) : 0;
  };
  const auto write_tokens = [](const fs::path& path, int value, IoHook* hook) {
    WriteTokenFile(path, std::vector<int32_t>(5000, value), hook);
  };
  const auto read_tokens = [](const fs::path& path) {
    const TokenDataset data = TokenDataset::Open(std::vector{path.string()});
    std::vector<int32_t> tokens(5000);
    data.Read(0, tokens);
    return data.size() == 5000 && tokens.front() == tokens.back() ? tokens.front() : 0;
  };
  const auto write_weights = [table](const fs::path& path, int value, IoHook* hook) {
    WriteHfWeights(path, SmallModel(), *table, ConstantSource(static_cast<float>(value)),
                   {.hook = hook});
  };
  const auto read_weights = [table](const fs::path& path) {
    const HfWeightsSource source(path, SmallModel(), *table);
    float first = 0, last = 0;
    source.Read({0, StateKind::kMaster, 0, 1}, std::span(&first, 1));
    source.Read({static_cast<int>(table->size()) - 1, StateKind::kMaster, 15, 1},
                std::span(&last, 1));
    return first == last ? static_cast<int>(first) : 0;
  };
  return {{"text", write_text, read_text},
          {"tokens.bin", write_tokens, read_tokens},
          {"weights", write_weights, read_weights}};
}

TEST_CASE("sharded weights: an error or death at any step leaves the old, the new or no whole") {
  const auto table = BuildParamTable(SmallModel());
  const auto write = [&](const fs::path& path, int value, uint64_t max_bytes, IoHook* hook) {
    WriteHfWeights(path, SmallModel(), table, ConstantSource(static_cast<float>(value)),
                   {.max_shard_bytes = max_bytes, .hook = hook});
  };
  constexpr uint64_t kWhole = 1 << 30, kThird = 12'000;
  const struct {
    uint64_t before, after;
  } cases[] = {{kThird, kThird}, {kThird, 2 * kThird}, {kThird, kWhole}, {kWhole, kThird}};
  for (const auto& [before, after] : cases) {
    const FastTempDir dir;
    const fs::path path = fs::path(dir.path()) / "weights";
    for (const int error : {EIO, 0}) {
      CAPTURE(before);
      CAPTURE(after);
      CAPTURE(error);
      bool reached = true;
      int absent = 0;
      for (int at = 0; reached; ++at) {
        write(path, 1, before, nullptr);
        const int status = InChild([&] {
          AtStep hook(at, error);
          try {
            write(path, 2, after, &hook);
          } catch (const Error&) {
          }
          return hook.reached() ? kSilentDeath : 0;
        });
        REQUIRE(WIFEXITED(status));
        reached = WEXITSTATUS(status) == kSilentDeath;
        int value = 0;
        try {
          const HfWeightsSource source(path, SmallModel(), table);
          std::vector<float> values;
          for (size_t t = 0; t < table.size(); ++t) {
            values.resize(static_cast<size_t>(table[t].unpadded_rows * table[t].shape[1]));
            source.Read({static_cast<int>(t), StateKind::kMaster, 0, values.size()}, values);
            if (value == 0) value = static_cast<int>(values[0]);
            CHECK(std::all_of(values.begin(), values.end(),
                              [&](float v) { return v == static_cast<float>(value); }));
          }
        } catch (const Error& failure) {
          CHECK(failure.code() == ExitCode::kUsage);
          ++absent;
        }
        CHECK((value == 2 || reached));
      }
      // A single file, before or after, is never without one.
      const bool several = before != kWhole && after != kWhole;
      CHECK((absent > 0) == several);
    }
  }
}

TEST_CASE("other files: an error or death at any step leaves the old or the new one") {
  for (const FileKind& kind : FileKinds()) {
    const FastTempDir dir;
    const fs::path path = fs::path(dir.path()) / kind.name;
    for (const int error : {EIO, 0}) {
      CAPTURE(kind.name);
      CAPTURE(error);
      bool reached = true;
      for (int at = 0; reached; ++at) {
        kind.write(path, 1, nullptr);
        const int status = InChild([&] {
          AtStep hook(at, error);
          try {
            kind.write(path, 2, &hook);
          } catch (const Error&) {
          }
          return hook.reached() ? kSilentDeath : 0;
        });
        REQUIRE(WIFEXITED(status));
        reached = WEXITSTATUS(status) == kSilentDeath;
        const int value = kind.read(path);
        CHECK((value == 2 || (value == 1 && reached)));
      }
    }
  }
}

TEST_CASE("a save that is given up leaves nothing, though other ranks still make files in it") {
  for (int round = 0; round < 50; ++round) {
    const FastTempDir dir;
    const fs::path staging = StageCheckpoint(dir.path(), 4);
    std::atomic<int> made{0};
    std::atomic<bool> discarded = false;
    std::thread writer([&] {
      while (!discarded && std::ofstream(staging / fmt::format("rank-{}", made.load()))) ++made;
    });
    while (made == 0) std::this_thread::yield();
    DiscardStaging(staging);
    discarded = true;
    writer.join();
    CHECK(NothingUnfinished(dir.path()));
  }
}

}  // namespace
}  // namespace zeroplan
