// Keys that no part of the reader asked for.
#include <algorithm>
#include <array>

#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

struct Misplaced {
  std::string_view key;
  std::string_view fix;
};

// Slips seen in published configs that no edit distance finds.
constexpr std::array<Misplaced, 12> kMisplaced = {{
    {"lr_scheduler", "use 'scheduler'"},
    {"max_grad_norm", "use 'gradient_clipping'"},
    {"clip_grad", "use 'gradient_clipping'"},
    {"micro_batch_size_per_gpu", "use 'train_micro_batch_size_per_gpu'"},
    {"micro_batch_size", "use 'train_micro_batch_size_per_gpu'"},
    {"batch_size", "use 'train_batch_size'"},
    {"zero3_init_flag", "this is a key of accelerate's own config; remove it"},
    {"zero_stage", "use 'zero_optimization': {\"stage\": ...}"},
    {"learning_rate", "use 'optimizer': {\"params\": {\"lr\": ...}}"},
    {"comm_overlap", "use 'overlap_comm'"},
    {"allreduce_bucket_size", "use 'reduce_bucket_size'"},
    {"gradient_checkpointing", "use 'activation_checkpointing': {}"},
}};

std::string_view MisplacedFix(std::string_view key) {
  const auto* found = std::find_if(kMisplaced.begin(), kMisplaced.end(),
                                   [&](const Misplaced& m) { return m.key == key; });
  return found == kMisplaced.end() ? std::string_view() : found->fix;
}

bool IsComment(std::string_view key) {
  return key.starts_with('_') || key == "comment" || key == "comments" || key == "description";
}

}  // namespace

std::string ReaderState::HomeOf(std::string_view key, const JsonSection& asking) const {
  // Many sections have these; naming one of them would mislead.
  if (key == "enabled" || key == "type" || key == "params") return "";
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
    if (const std::string_view fix = MisplacedFix(key); !fix.empty()) {
      section.Fail(key, "is not a known key; {}", fix);
    }
    if (const std::string home = HomeOf(key, section); !home.empty()) {
      section.Fail(key, "is not a key of this section; move it to {}", home);
    }
    const std::string nearest = NearestName(key, section.known());
    if (!nearest.empty()) section.Fail(key, "is not a known key; did you mean '{}'?", nearest);
    section.Fail(key, "is not a known key; remove it (allowed here: {})",
                 fmt::join(section.known(), ", "));
  }
}

void ReaderState::CheckRootKey(const std::string& key) {
  if (IsComment(key)) return;
  if (const std::string_view fix = MisplacedFix(key); !fix.empty()) {
    root().Fail(key, "is not a known key; {}", fix);
  }
  if (const std::string home = HomeOf(key, root()); !home.empty()) {
    root().Fail(key, "is not a key of the top level; move it to {}", home);
  }
  const std::string nearest = NearestName(key, root().known());
  if (!nearest.empty()) root().Fail(key, "is not a known key; did you mean '{}'?", nearest);
  Note(root(), key, "is not a known key and is ignored, by DeepSpeed as well");
}

void ReaderState::CheckUnknownKeys() {
  for (size_t i = 1; i < sections_.size(); ++i) CheckSection(sections_[i]);
  for (const std::string& key : root().Unknown()) CheckRootKey(key);
}

}  // namespace zeroplan
