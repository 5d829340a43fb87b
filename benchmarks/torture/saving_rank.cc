// Ranks that are processes without GPUs, for the torture bench: they meet, step, save and resume
// through the parts that `zeroplan train` does it with on GPUs. What they train is made up: every
// value of a step depends on all values of all ranks one step before, so a rank that lost or mixed
// up anything ends with another digest.
//
//   torture_rank launch RANKS RESTARTS rank DIR STEPS EVERY STAGE SILENCE_SECONDS
//   torture_rank rank DIR STEPS EVERY STAGE SILENCE_SECONDS [--resume]
//
// The second needs the environment of a launcher (docs/multi-gpu.md). A run goes on from what is in
// DIR. At its end rank 0 prints "final DIGEST".
#include <bit>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop_signals.h"
#include "core/families/gpt2/gpt2.h"
#include "core/model/param_table.h"
#include "core/program/layout.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/shard_writer.h"
#include "executor/process/launch_environment.h"
#include "executor/process/launcher.h"
#include "executor/process/process_group.h"
#include "executor/process/tcp_group.h"
#include "executor/train/group_save.h"
#include "executor/train/run_agreement.h"
#include "executor/train/run_open.h"

namespace zeroplan {
namespace {

// So that a run lasts about a second.
constexpr std::chrono::milliseconds kStepPause(2);

ModelSpec TortureModel() {
  ModelSpec spec;
  spec.name = "torture";
  spec.family = &Gpt2();
  spec.layers = 2;
  spec.hidden = 32;
  spec.heads = 2;
  spec.ffn = 128;
  spec.vocab = 300;
  spec.padded_vocab = 384;
  spec.positions = 24;
  return spec;
}

// splitmix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// In [-1, 1).
float ToFloat(uint64_t x) { return static_cast<float>(static_cast<int64_t>(x) >> 40) * 0x1p-23f; }

struct RunWords {
  std::string folder;
  int64_t steps = 0, every = 0;
  int stage = 0;
  int silence_seconds = 20;
};

class SavingRank {
 public:
  SavingRank(ProcessGroup& group, const RunWords& words)
      : group_(group),
        words_(words),
        table_(std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(TortureModel()))),
        layout_(MakeLayout()) {}

  void Run() {
    std::optional<SaveLock> lock;
    if (group_.rank() == 0) lock.emplace(words_.folder);
    Start();
    while (done_ < words_.steps) {
      OneStep();
      if (done_ % words_.every == 0 || done_ == words_.steps) Save();
    }
    const std::string digest = Exchange();
    if (group_.rank() == 0) fmt::print("final {}\n", digest);
    group_.Barrier();
  }

 private:
  struct Shard {
    StateKind state;
    ShardRange range;
    std::vector<float> values;
  };

  ParamLayout MakeLayout() const {
    ZeroConfig zero;
    zero.stage = words_.stage;
    zero.param_persistence_threshold = 100;
    return BuildParamLayout(table_, zero, group_.world_size());
  }

  // At stage 0 every rank has all of it, and rank 0 alone saves it.
  int ShardRank() const {
    return group_.rank() < static_cast<int>(layout_.shards) ? group_.rank() : 0;
  }

  void Start() {
    AgreeAtStart(group_, {{"--save", words_.folder}});
    ResumeChoice choice =
        ChooseCheckpoint(group_, words_.folder, TortureModel(), *table_, /*strict=*/false);
    for (const StateKind state : kStateKinds) {
      for (const ShardRange& range : OwnerRanges(layout_, ShardRank())) {
        Shard& shard = shards_.emplace_back(Shard{state, range, {}});
        shard.values.resize(range.count);
        for (uint64_t i = 0; i < range.count; ++i) shard.values[i] = ToFloat(Mix(Key(shard, i)));
        if (!choice.source) continue;
        choice.source->Read({range.tensor, state, range.begin, range.count}, shard.values);
      }
    }
    damaged_ = choice.damaged;
    if (choice.source) done_ = choice.source->meta().step;
    if (group_.rank() == 0 && choice.source) {
      fmt::print(stderr, "resumed from {} at step {}\n", choice.source->folder().string(), done_);
    }
  }

  static uint64_t Key(const Shard& shard, uint64_t i) {
    return (static_cast<uint64_t>(shard.range.tensor) << 48) ^
           (static_cast<uint64_t>(shard.state) << 40) ^ (shard.range.begin + i);
  }

  // Of all values of all ranks.
  std::string Exchange() {
    uint64_t mine = static_cast<uint64_t>(done_);
    for (const Shard& shard : shards_) {
      for (const float value : shard.values) mine = Mix(mine ^ std::bit_cast<uint32_t>(value));
    }
    std::string all;
    for (const std::string& of_rank : group_.AllGather(fmt::format("{:016x}", mine))) {
      all += of_rank;
    }
    return DigestText(all);
  }

  void OneStep() {
    group_.SetDeadline(std::chrono::seconds(600), fmt::format("step {}", done_ + 1));
    const uint64_t gradient = std::stoull(Exchange(), nullptr, 16);
    ++done_;
    for (Shard& shard : shards_) {
      for (uint64_t i = 0; i < shard.values.size(); ++i) {
        shard.values[i] = 0.75f * shard.values[i] + 0.25f * ToFloat(Mix(gradient ^ Key(shard, i)));
      }
    }
    std::this_thread::sleep_for(kStepPause);
  }

  void Save() {
    CheckpointMeta meta;
    meta.step = done_;
    meta.samples_consumed = static_cast<uint64_t>(done_);
    meta.seed = 1;
    meta.world_size = group_.world_size();
    meta.model = TortureModel();
    GroupSave save;
    save.save_dir = words_.folder;
    save.layout = &layout_;
    save.first_local_rank = group_.rank();
    save.spared = damaged_;
    const auto folder = SaveTogether(group_, save, meta, [&](std::span<StateSink* const> sinks) {
      if (group_.rank() < static_cast<int>(layout_.shards)) {
        for (const Shard& shard : shards_) {
          sinks[0]->Write({shard.range.tensor, shard.state, shard.range.begin, shard.values.size()},
                          shard.values);
        }
      }
      StepState state;
      state.step = done_;
      return state;
    });
    if (group_.rank() == 0) fmt::print(stderr, "step {}  saved {}\n", done_, folder.string());
  }

  ProcessGroup& group_;
  const RunWords words_;
  const std::shared_ptr<const std::vector<ParamTensor>> table_;
  const ParamLayout layout_;
  std::vector<Shard> shards_;
  std::vector<std::string> damaged_;
  int64_t done_ = 0;
};

int RunRank(const std::vector<std::string>& words) {
  const auto place = PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
  ZEROPLAN_CHECK(place.has_value(), "no launcher in the environment");
  const RunWords run = {words[2], std::stoll(words[3]), std::stoll(words[4]), std::stoi(words[5]),
                        std::stoi(words[6])};
  const InterruptScope interrupts;
  TcpGroupOptions options;
  options.stop_requested = StopRequested;
  options.silence_limit = std::chrono::seconds(run.silence_seconds);
  options.exit_when_stuck = std::chrono::seconds(20);
  try {
    TcpGroup group(*place, options);
    try {
      SpreadFailure(group, [&] { SavingRank(group, run).Run(); });
      return 0;
    } catch (const Error& error) {
      if (place->rank == 0 || !group.rank_0_says_it()) {
        fmt::print(stderr, "zeroplan: {}\n", error.what());
      }
      return static_cast<int>(error.code());
    }
  } catch (const Error& error) {
    fmt::print(stderr, "zeroplan: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

int Run(const std::vector<std::string>& words) {
  if (words.size() >= 7 && words[1] == "rank") return RunRank(words);
  if (words.size() != 10 || words[1] != "launch") {
    fmt::print(stderr, "usage: see the head of saving_rank.cc\n");
    return 2;
  }
  LaunchOptions options;
  options.ranks = std::stoi(words[2]);
  options.arguments = {words[0]};
  options.arguments.insert(options.arguments.end(), words.begin() + 4, words.end());
  const std::string folder = words[5];
  return LaunchWithRestarts(options, {std::stoi(words[3]), [folder] {
                                        const auto found = ListCheckpoints(folder);
                                        return found.empty() ? std::string("the start")
                                                             : found.front().folder.string();
                                      }});
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) { return zeroplan::Run({argv, argv + argc}); }
