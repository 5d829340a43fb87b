#include "cli/plan/proposal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/config/deepspeed_writer.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

std::string Joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, ", "));
}

// `setup` as the writer says it. What it leaves to "auto" is not asked for.
Json Written(TrainSetup setup, int64_t layers) {
  for (uint64_t* elements :
       {&setup.zero.reduce_bucket_elements, &setup.zero.prefetch_bucket_elements,
        &setup.zero.max_live_parameters}) {
    if (*elements == kAuto) *elements = 1;
  }
  const auto name_folder = [](auto& offload) {
    if (offload.nvme_path.empty()) offload.nvme_path = kSwapFolder;
  };
  name_folder(setup.zero.offload_optimizer);
  name_folder(setup.zero.offload_param);
  return Json::parse(WriteConfig(setup, layers));
}

// What to change in the config, key by key.
std::vector<std::string> Edits(const PlanOptions& options, const PlanRequest& request,
                               const Candidate& found) {
  const int64_t layers = request.inputs().model.layers;
  const TrainSetup& base = request.inputs().base;
  const Json now = Written(base, layers);
  const Json then = Written(SetupOf(found, base), layers);
  std::vector<std::string> edits;
  for (const char* pointer :
       {"/zero_optimization/stage", "/zero_optimization/offload_optimizer",
        "/zero_optimization/offload_param", "/activation_checkpointing", "/_zeroplan"}) {
    const Json::json_pointer at(pointer);
    const Json before = now.contains(at) ? now[at] : Json();
    const Json after = then.contains(at) ? then[at] : Json();
    if (before == after) continue;
    std::string key = pointer + 1;
    std::replace(key.begin(), key.end(), '/', '.');
    edits.push_back(after.is_null() ? fmt::format("no {}", key)
                                    : fmt::format("{} {}", key, after.dump()));
  }
  const std::string& file = options.common.config;
  const JsonNode root = ParseJsonText(ReadTextFile(file), file);
  JsonSection config(&root, "", file);
  const auto set = [&](const char* key, int64_t before, int64_t after) {
    if (config.Value(key) != nullptr && before != after) {
      edits.push_back(fmt::format("{} {}", key, after));
    }
  };
  set("train_micro_batch_size_per_gpu", base.batch.micro_batch, found.micro_batch);
  set("gradient_accumulation_steps", base.batch.grad_accum, found.grad_accum);
  set("train_batch_size", base.batch.global_batch(),
      found.micro_batch * found.grad_accum * found.gpus);
  return edits;
}

// Options that a config leaves open and that are to change.
std::vector<std::string> BesideConfig(const PlanOptions& options, const PlanRequest& request,
                                      const Candidate& found) {
  const BatchOptions& batch = options.common.batch;
  std::vector<std::string> changed;
  const auto set = [&](const char* option, const std::optional<int64_t>& given, int64_t after) {
    if (given && *given != after) changed.push_back(fmt::format("{} {}", option, after));
  };
  if (request.inputs().space.gpus.back() != found.gpus) {
    changed.push_back(fmt::format("--gpus {}", found.gpus));
  }
  set("--micro-batch", batch.micro_batch, found.micro_batch);
  set("--grad-accum", batch.grad_accum, found.grad_accum);
  return changed;
}

// Options that say how a choice is to be made which `found` does not make.
std::vector<std::string> LeftOut(const ChoiceOptions& choice, const Candidate& found) {
  std::vector<std::string> names;
  // A share or a number of layers of 1 goes without its option.
  if (choice.offload_ratio && (found.optimizer.device != OffloadDevice::kCpu ||
                               (found.optimizer.ratio >= 1 && *choice.offload_ratio < 1))) {
    names.push_back("--offload-ratio");
  }
  if (choice.checkpoint_every && (found.recompute.kind != RecomputeKind::kFull ||
                                  (found.recompute.every <= 1 && *choice.checkpoint_every > 1))) {
    names.push_back("--checkpoint-every");
  }
  return names;
}

}  // namespace

std::string Proposal(const PlanOptions& options, const PlanRequest& request, const Change& change) {
  const Candidate& found = change.found.candidate;
  if (options.common.config.empty()) {
    const std::vector<std::string> left_out = LeftOut(options.common.choice, found);
    return left_out.empty() ? change.options
                            : fmt::format("{} without {}", change.options, Joined(left_out));
  }
  const std::vector<std::string> edits = Edits(options, request, found);
  const std::vector<std::string> beside = BesideConfig(options, request, found);
  std::string text;
  if (!edits.empty()) text = fmt::format("in {}: {}", options.common.config, Joined(edits));
  if (!beside.empty()) {
    text += fmt::format("{}{}", text.empty() ? "" : "; and ", fmt::join(beside, " "));
  }
  return text;
}

}  // namespace zeroplan
