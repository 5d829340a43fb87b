// Keys that no part of the reader asked for.
#include <algorithm>
#include <array>

#include "core/config/config_description.h"
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

struct Misplaced {
  std::string_view key;
  std::string_view fix;
};

// Slips seen in published configs that no edit distance finds.
constexpr std::array<Misplaced, 24> kMisplaced = {{
    {"lr_scheduler", "use 'scheduler'"},
    {"max_grad_norm", "use 'gradient_clipping'"},
    {"clip_grad", "use 'gradient_clipping'"},
    {"micro_batch_size_per_gpu", "use 'train_micro_batch_size_per_gpu'"},
    {"micro_batch_size", "use 'train_micro_batch_size_per_gpu'"},
    {"batch_size", "use 'train_batch_size'"},
    {"train_batch", "use 'train_batch_size'"},
    {"per_device_train_batch_size", "use 'train_micro_batch_size_per_gpu'"},
    {"global_batch_size", "use 'train_batch_size'"},
    {"accumulation_steps", "use 'gradient_accumulation_steps'"},
    {"grad_accumulation_steps", "use 'gradient_accumulation_steps'"},
    {"mixed_precision", "use 'bf16' or 'fp16': {\"enabled\": true}"},
    {"distributed_type", "this is a key of accelerate's own config; remove it"},
    {"offload_optimizer_device", "use 'offload_optimizer': {\"device\": ...}"},
    {"offload_param_device", "use 'offload_param': {\"device\": ...}"},
    {"zero3_save_16bit_model", "use 'stage3_gather_16bit_weights_on_model_save'"},
    {"opt_level", "this is a key of Apex's amp; remove it"},
    {"grad_clip", "use 'gradient_clipping'"},
    {"zero3_init_flag", "this is a key of accelerate's own config; remove it"},
    {"zero_stage", "use 'zero_optimization': {\"stage\": ...}"},
    {"learning_rate", "use 'optimizer': {\"params\": {\"lr\": ...}}"},
    {"comm_overlap", "use 'overlap_comm'"},
    {"allreduce_bucket_size", "use 'reduce_bucket_size'"},
    {"gradient_checkpointing", "use 'activation_checkpointing': {}"},
}};

// Keys of several sections, or words that people use for something of their own: naming one section
// for them would mislead.
constexpr std::array<std::string_view, 18> kCommonKeys = {
    "enabled", "type",        "params",   "device",  "nvme_path", "pin_memory",
    "debug",   "output_path", "job_name", "project", "verbose",   "buffer_count",
    "writer",  "group",       "team",     "mode",    "online",    "profile"};

std::string_view MisplacedFix(std::string_view key) {
  const auto* found = std::find_if(kMisplaced.begin(), kMisplaced.end(),
                                   [&](const Misplaced& m) { return m.key == key; });
  return found == kMisplaced.end() ? std::string_view() : found->fix;
}

}  // namespace

const std::vector<std::string_view>& CommentKeys() {
  static const std::vector<std::string_view> keys = {"$schema", "comment", "comments",
                                                     "description"};
  return keys;
}

bool IsCommentKey(std::string_view key) {
  const auto& keys = CommentKeys();
  return key.starts_with('_') || std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string ReaderState::HomeOf(std::string_view key, const JsonSection& asking) const {
  if (std::find(kCommonKeys.begin(), kCommonKeys.end(), key) != kCommonKeys.end()) return "";
  for (const JsonSection& section : sections_) {
    if (&section == &asking || section.path() == asking.path()) continue;
    const auto& known = section.known();
    if (std::find(known.begin(), known.end(), key) != known.end()) {
      return section.path().empty() ? "the top level" : "'" + section.path() + "'";
    }
  }
  return "";
}

void ReaderState::CheckSection(const JsonSection& section) {
  for (const std::string& key : section.Unknown()) {
    const std::string_view fix = MisplacedFix(key);
    const std::string home = HomeOf(key, section);
    const std::string nearest = NearestName(key, section.known());
    if (!fix.empty()) {
      section.Report(key, "is not a known key; {}", fix);
    } else if (!home.empty()) {
      section.Report(key, "is not a key of this section; move it to {}", home);
    } else if (!nearest.empty()) {
      section.Report(key, "is not a known key; did you mean '{}'?", nearest);
    } else {
      section.Report(key, "is not a known key; remove it (allowed here: {})",
                     fmt::join(section.known(), ", "));
    }
  }
}

std::string ReaderState::NearestAnywhere(std::string_view key) const {
  std::string nearest = NearestName(key, sections_.front().known());
  // A short word is near to too much.
  if (!nearest.empty() || key.size() < 8) return nearest;
  for (const JsonSection& section : sections_) {
    const std::string_view path = section.path();
    const bool steers = path.starts_with("zero_optimization") || path == "fp16" ||
                        path == "optimizer.params" || path == "scheduler.params";
    if (!steers) continue;
    const std::string inner = NearestName(key, section.known());
    if (!inner.empty()) return fmt::format("{}.{}", path, inner);
  }
  return "";
}

void ReaderState::CheckRootKey(const std::string& key) {
  if (IsCommentKey(key)) return;
  const std::string_view fix = MisplacedFix(key);
  const std::string home = HomeOf(key, root());
  const std::string nearest = NearestAnywhere(key);
  if (!fix.empty()) {
    root().Report(key, "is not a known key; {}", fix);
  } else if (!home.empty()) {
    root().Report(key, "is not a key of the top level; move it to {}", home);
  } else if (!nearest.empty()) {
    root().Report(key, "is not a known key; did you mean '{}'?", nearest);
  } else if (context.strict) {
    root().Report(key, "is not a known key; remove it (DeepSpeed ignores it)");
  } else {
    Warn(root(), key, "is not a known key and is ignored, by DeepSpeed as well");
  }
}

void ReaderState::CheckUnknownKeys() {
  for (size_t i = 1; i < sections_.size(); ++i) CheckSection(sections_[i]);
  for (const std::string& key : root().Unknown()) CheckRootKey(key);
}

}  // namespace zeroplan
