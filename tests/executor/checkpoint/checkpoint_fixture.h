// A small model whose saved state can be told from its tensor, state, element and step.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/param_table.h"
#include "core/program/layout.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/shard_writer.h"
#include "executor/process/process_group.h"
#include "executor/train/group_save.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/tiny_model.h"

namespace zeroplan {

inline ModelSpec SmallModel() {
  return testing::TinyModel({.name = "small",
                             .layers = 2,
                             .hidden = 16,
                             .ffn = 64,
                             .vocab = 300,
                             .padded_vocab = 384,
                             .positions = 24});
}

inline ParamLayout SmallLayout(int stage, int world_size, const ModelSpec& spec = SmallModel(),
                               const PrecisionConfig& precision = {}) {
  ZeroConfig zero;
  zero.stage = stage;
  zero.param_persistence_threshold = 100;
  return BuildParamLayout(std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(spec)),
                          zero, world_size, precision);
}

inline float StateValue(int tensor, StateKind state, uint64_t element, int64_t step) {
  return static_cast<float>(step) * 1000.0f + static_cast<float>(tensor) * 7.0f +
         static_cast<float>(state) * 0.25f + static_cast<float>(element % 977) * 0.001f;
}

// What Engine::Save does, one rank after the other, in pieces of `piece` elements.
inline void WriteState(const ParamLayout& layout, std::span<StateSink* const> sinks, int64_t step,
                       uint64_t piece = 4000) {
  std::vector<float> values;
  for (int rank = 0; rank < static_cast<int>(layout.shards); ++rank) {
    for (const StateKind state : kStateKinds) {
      for (const ShardRange& range : OwnerRanges(layout, rank)) {
        for (uint64_t done = 0; done < range.count; done += values.size()) {
          values.resize(std::min(piece, range.count - done));
          const uint64_t begin = range.begin + done;
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = StateValue(range.tensor, state, begin + i, step);
          }
          sinks[static_cast<size_t>(rank)]->Write({range.tensor, state, begin, values.size()},
                                                  values);
        }
      }
    }
  }
}

inline CheckpointMeta SmallMeta(int64_t step) {
  CheckpointMeta meta;
  meta.step = step;
  meta.samples_consumed = static_cast<uint64_t>(step) * 8;
  meta.seed = ~uint64_t{0} - 5;
  meta.model = SmallModel();
  meta.train_tokens = ~uint64_t{0} - 7;
  meta.run = {{"lr", "0.001"}};
  meta.state.step = step;
  meta.state.loss_scale = 65536.0f;
  meta.state.grad_norm_sq = 1.0 / 3.0;
  return meta;
}

// Rank `rank` alone of what WriteState writes.
inline StepState WriteRank(const ParamLayout& layout, int rank, StateSink& sink, int64_t step) {
  class Drop : public StateSink {
   public:
    void Write(const TensorRange&, std::span<const float>) override {}
  } drop;
  std::vector<StateSink*> sinks(layout.shards, &drop);
  if (rank < static_cast<int>(layout.shards)) sinks[static_cast<size_t>(rank)] = &sink;
  WriteState(layout, sinks, step);
  return SmallMeta(step).state;
}

struct SaveOptions {
  int world_size = 1;  // if the layout's is not it (stage 0)
  int keep = 2;
  std::vector<std::string> spared;
  IoHook* hook = nullptr;
};

using WriteSinks = std::function<void(std::span<StateSink* const> sinks)>;

// As a run whose ranks are threads.
inline std::filesystem::path SaveWith(const std::filesystem::path& dir, const ParamLayout& layout,
                                      CheckpointMeta meta, const SaveOptions& options,
                                      const WriteSinks& write) {
  meta.world_size = std::max(options.world_size, static_cast<int>(layout.shards));
  GroupSave save;
  save.save_dir = dir;
  save.layout = &layout;
  save.local_rank_count = meta.world_size;
  save.keep = options.keep;
  save.spared = options.spared;
  save.hook = options.hook;
  SingleProcess alone;
  return SaveTogether(alone, save, meta, [&](std::span<StateSink* const> sinks) {
    write(sinks);
    return meta.state;
  });
}

inline std::filesystem::path SaveCheckpoint(const std::filesystem::path& dir,
                                            const ParamLayout& layout, int64_t step,
                                            const SaveOptions& options = {}) {
  return SaveWith(dir, layout, SmallMeta(step), options,
                  [&](std::span<StateSink* const> sinks) { WriteState(layout, sinks, step); });
}

inline CheckpointSource OpenCheckpoint(const std::filesystem::path& dir) {
  return CheckpointSource::Open(dir, SmallModel(), BuildParamTable(SmallModel()));
}

// Whether every element of every state is the one of the step that meta.json names.
inline bool IsConsistent(const CheckpointSource& source) {
  const auto table = BuildParamTable(SmallModel());
  const int64_t step = source.meta().step;
  for (size_t t = 0; t < table.size(); ++t) {
    std::vector<float> values(table[t].elements());
    for (const StateKind state : kStateKinds) {
      source.Read({static_cast<int>(t), state, 0, values.size()}, values);
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] != StateValue(static_cast<int>(t), state, i, step)) return false;
      }
    }
  }
  return source.meta().state.step == step &&
         source.meta().samples_consumed == SmallMeta(step).samples_consumed;
}

// Of what lies in `folder`, sorted.
inline std::vector<std::string> FileNames(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Whether no save in `dir` left what it had begun (kStagingPrefix and the like).
inline bool NothingUnfinished(const std::filesystem::path& dir) {
  const std::vector<std::string> names = FileNames(CheckpointsFolder(dir));
  return std::none_of(names.begin(), names.end(),
                      [](const std::string& name) { return name.starts_with('.'); });
}

inline void FlipLastByte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

}  // namespace zeroplan
