// Whole runs of the trainer on the CPU backend, over text that a test writes.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "executor/train/trainer.h"
#include "tests/run_metrics.h"
#include "tests/temp_dir.h"

namespace zeroplan {

class Recorder : public TrainObserver {
 public:
  void OnStart(const StartReport& report) override { start = report; }
  void OnStep(const StepReport& report) override {
    steps.push_back(report);
    if (on_step) on_step(report);
  }
  void OnValidation(int64_t step, double loss) override {
    validated.push_back(step);
    validation_losses.push_back(loss);
  }
  void OnSaved(const SaveReport& report) override {
    saved.push_back(report.step);
    saves.push_back(report);
    if (on_saved) on_saved(report.step);
  }
  void OnEnd(const RunReport&) override {}

  StartReport start;
  std::vector<double> validation_losses;
  std::vector<StepReport> steps;
  std::vector<int64_t> validated, saved;
  std::vector<SaveReport> saves;
  std::function<void(const StepReport&)> on_step;
  std::function<void(int64_t)> on_saved;
};

// A small Llama over bytes, whose head is not its embedding: what is wrong with a byte's embedding
// is wrong with the batches that hold the byte, and with no others.
class TrainFixture {
 public:
  static constexpr int kRanks = 2, kSeqLen = 16;
  static constexpr char kBadByte = 'Z';

  TrainFixture() {
    std::ofstream(path("config.json"))
        << R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":32,"num_attention_heads":2,
               "intermediate_size":64,"max_position_embeddings":16,"vocab_size":256,
               "rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false})";
  }

  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Text of `steps` global batches in the stream's order, those in `bad` with kBadByte.
  std::string WriteText(const std::string& name, int steps, const std::vector<int>& bad) const {
    std::string text;
    for (int step = 1; step <= steps; ++step) AppendBatch(text, step, bad);
    text += '.';  // the last sample's last target
    std::ofstream(path(name)) << text;
    return path(name);
  }
  // Numbered from 1: different bytes in each, the same wherever it stands, and the same first byte
  // in all, which is the last target of the batch before.
  static void AppendBatch(std::string& text, int step, const std::vector<int>& bad) {
    for (int i = 0; i < kRanks * kSeqLen; ++i) {
      text += static_cast<char>('a' + (i == 0 ? 0 : i * 7 + step * 5) % 23);
    }
    for (const int b : bad) {
      if (b == step) text[text.size() - 3] = kBadByte;  // in the last rank's sample
    }
  }

  Program Lowered(int stage, bool offload, double lr = 1e-2, bool async_save = false,
                  const PrecisionConfig& precision = {.dtype = Dtype::kF32,
                                                      .grad_accum_dtype = Dtype::kF32}) const {
    TrainSetup setup;
    setup.zero.stage = stage;
    setup.zero.param_persistence_threshold = 100;
    if (offload) setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
    if (offload && stage == 3) setup.zero.offload_param.device = OffloadDevice::kCpu;
    setup.precision = precision;
    setup.batch = {.micro_batch = 1, .grad_accum = 1, .world_size = kRanks, .seq_len = kSeqLen};
    setup.optimizer.lr = lr;
    LowerOptions lower;
    lower.async_save = async_save;
    return Lower(LoadModel(path("config.json")), setup, lower);
  }

  TrainOptions Options(const std::string& data, int64_t steps, const std::string& save) const {
    TrainOptions options;
    options.data = {data};
    options.steps = steps;
    options.shuffle = false;
    options.engine.threads_per_rank = 1;
    if (!save.empty()) options.save_dir = path(save);
    return options;
  }

  // Weights whose row of kBadByte is infinite.
  std::string BadWeights() const {
    if (std::filesystem::exists(path("bad"))) return path("bad");
    Recorder nobody;
    Train(Lowered(0, false), Options(WriteText("one", 1, {}), 1, "bad"), nobody);
    std::filesystem::remove_all(path("bad/checkpoints"));
    const std::string file = path("bad/model.safetensors");
    std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_bytes = 0;
    weights.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    std::string header(header_bytes, ' ');
    weights.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const auto entry = nlohmann::json::parse(header).at("model.embed_tokens.weight");
    REQUIRE(entry.at("dtype") == "F32");
    const uint64_t row = entry.at("data_offsets").at(0).get<uint64_t>() + kBadByte * 32 * 4;
    const std::vector<float> infinite(32, std::numeric_limits<float>::infinity());
    weights.seekp(static_cast<std::streamoff>(8 + header_bytes + row));
    weights.write(reinterpret_cast<const char*>(infinite.data()), 32 * 4);
    return path("bad");
  }

 private:
  const TempDir dir_;
};

}  // namespace zeroplan
