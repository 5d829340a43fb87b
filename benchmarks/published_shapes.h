// The GPT-style runs of tests/fixtures/published_runs.jsonl as shapes, for what predicts them by
// other means than a request: zeroplan's own executor, and the step timer alone.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace zeroplan {

struct PublishedShape {
  std::string id, framework, machine;
  bool recompute = false, offload = false, fp32_reduction = false;
  int gpus = 1, stage = 0;
  int64_t layers = 0, hidden = 0, heads = 0, vocab = 0, seq = 0, micro_batch = 1, grad_accum = 1;
  double tokens_per_second = 0;  // of one GPU
};

// Those whose time is sure enough to be judged. `folder`: the source tree.
inline std::vector<PublishedShape> ReadPublishedShapes(const std::string& folder) {
  std::ifstream in(folder + "/tests/fixtures/published_runs.jsonl");
  ZEROPLAN_CHECK(in.good(), "no published_runs.jsonl in {}", folder);
  std::vector<PublishedShape> shapes;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("about") || json.at("trust") == "low") continue;
    const nlohmann::json measured = json.value("measured", nlohmann::json::object());
    const nlohmann::json& request = json.at("request");
    const nlohmann::json& model = request.at("model");
    const bool gpt2 = model.is_object() && model.at("model_type") == "gpt2";
    if (!gpt2 || !measured.contains("tokens_per_second_of_gpu")) continue;
    if (json.value("leave_out", nlohmann::json::object()).contains("fit")) {
      const std::string why = json.at("leave_out").at("fit");
      if (why.starts_with("fp8")) continue;
    }
    PublishedShape& shape = shapes.emplace_back();
    shape.id = json.at("id");
    shape.framework = json.at("framework");
    shape.machine = request.at("hw");
    shape.recompute = request.at("checkpointing") == "full";
    shape.offload = request.value("offload_optimizer", "none") == "cpu";
    shape.fp32_reduction = request.value("communication_dtype", "") == "fp32";
    shape.gpus = request.at("gpus");
    shape.stage = request.at("stage");
    shape.layers = model.at("n_layer");
    shape.hidden = model.at("n_embd");
    shape.heads = model.at("n_head");
    shape.vocab = model.at("vocab_size");
    shape.seq = request.at("seq_len");
    shape.micro_batch = request.at("micro_batch");
    shape.grad_accum = request.at("grad_accum");
    shape.tokens_per_second = measured.at("tokens_per_second_of_gpu");
  }
  return shapes;
}

}  // namespace zeroplan
