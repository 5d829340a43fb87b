#include "executor/train/run_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/version.h"
#include "core/config/deepspeed_writer.h"
#include "core/model/model_fields.h"
#include "core/settings/settings.h"

namespace zeroplan {
namespace {

// The most that clocks may differ. Reading them takes as long as a barrier's answer takes to reach
// every rank.
constexpr int64_t kMaxSkewMs = 5'000;

std::string HashOfProgram() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
  if (bytes.empty()) return "unreadable";
  return fmt::format("{:016x}", HashBytes(std::as_bytes(std::span(bytes))));
}

// Between a fact's name and its value, and behind it.
constexpr char kBeforeValue = '\t', kAfterFact = '\n';
// The most that one message names.
constexpr size_t kNamedDifferences = 4;

NamedFacts FactsIn(const std::string& text) {
  NamedFacts facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, kAfterFact);) {
    const size_t tab = std::min(line.find(kBeforeValue), line.size());
    facts.emplace_back(line.substr(0, tab), line.substr(std::min(tab + 1, line.size())));
  }
  return facts;
}

// "stage: rank 1 has 2, rank 0 3", each that differs, joined; "" for none.
std::string DifferencesOf(const NamedFacts& first, const NamedFacts& other, size_t rank) {
  const auto value_in = [](const NamedFacts& facts, const std::string& name) -> std::string {
    const auto found = std::find_if(facts.begin(), facts.end(),
                                    [&](const auto& fact) { return fact.first == name; });
    return found == facts.end() ? "none" : found->second;
  };
  std::vector<std::string> named;
  const auto look = [&](const std::string& name) {
    const std::string of_first = value_in(first, name), of_other = value_in(other, name);
    if (of_first == of_other) return;
    named.push_back(fmt::format("{}: rank {} has {}, rank 0 {}", name, rank, of_other, of_first));
  };
  for (const auto& [name, value] : first) look(name);
  for (const auto& [name, value] : other) {
    if (value_in(first, name) == "none") look(name);
  }
  const size_t shown = std::min(named.size(), kNamedDifferences);
  std::string text = fmt::format("{}", fmt::join(named.begin(), named.begin() + shown, "; "));
  if (named.size() > shown) text += fmt::format("; and {} more", named.size() - shown);
  return text;
}

void CompareFacts(ProcessGroup& group, const NamedFacts& facts) {
  std::string mine;
  for (const auto& [name, value] : facts) {
    mine.append(name).append(1, kBeforeValue).append(value).append(1, kAfterFact);
  }
  const std::vector<std::string> all = group.AllGather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string differ = DifferencesOf(FactsIn(all[0]), FactsIn(all[rank]), rank);
    ThrowUsage("{}; give all ranks the same command line, files and version of zeroplan", differ);
  }
}

void CompareClocks(ProcessGroup& group) {
  group.Barrier();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::vector<int64_t> clocks;
  for (const std::string& text : group.AllGather(std::to_string(ms))) {
    const int64_t clock = std::strtoll(text.c_str(), nullptr, 10);
    clocks.push_back(std::clamp(clock, int64_t{0}, int64_t{1} << 52));  // whatever it sent
  }
  const std::string warning = ClockWarning(clocks);
  if (group.rank() == 0 && !warning.empty()) LogWarning("{}", warning);
}

}  // namespace

void AgreeAtStart(ProcessGroup& group, const NamedFacts& facts) {
  if (group.world_size() == 1) return;
  NamedFacts all = OwnBinary();
  all.insert(all.end(), facts.begin(), facts.end());
  CompareFacts(group, all);
  CompareClocks(group);
}

void AgreeOnFacts(ProcessGroup& group, const NamedFacts& facts) { CompareFacts(group, facts); }

NamedFacts SettingsOf(const Program& program) {
  NamedFacts settings = {{"⟦backend⟧", program.backend == Backend::kCuda ? "cuda" : "cpu"}};
  ForEachWrittenField(program.model, [&](const ModelField& field, const auto& value) {
    if (field.key == "name") return;  // a folder's, say, of which each host has another
    settings.emplace_back(fmt::format("model's {}", field.words),
                          fmt::format("{}", FieldText(value)));
  });
  TrainSetup setup = program.setup;
  setup.zero.offload_optimizer.nvme_path.clear();  // each host has its own
  setup.zero.offload_param.nvme_path.clear();
  // What is left to zeroplan is the same number everywhere, and the fingerprint has what it is.
  for (uint64_t* left : {&setup.zero.reduce_bucket_elements, &setup.zero.prefetch_bucket_elements,
                         &setup.zero.max_live_parameters}) {
    if (*left == kAuto) *left = 0;
  }
  const auto config = nlohmann::json::parse(WriteConfig(setup, program.model.layers)).flatten();
  for (const auto& [pointer, value] : config.items()) {
    std::string name = pointer.substr(1);  // "/zero_optimization/stage"
    std::replace(name.begin(), name.end(), '/', '.');
    settings.emplace_back(std::move(name), value.dump());
  }
  return settings;
}

NamedFacts OwnBinary() {
  static const std::string hash = HashOfProgram();
  return {{"version of zeroplan", std::string(kVersion)},
          {"build of zeroplan (hash of its program)", hash}};
}

std::string ClockWarning(const std::vector<int64_t>& clocks_ms) {
  std::vector<int64_t> sorted = clocks_ms;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.back() - sorted.front() <= kMaxSkewMs) return "";
  const int64_t median = sorted[(sorted.size() - 1) / 2];
  const auto off = [&](int64_t clock) { return std::max(clock, median) - std::min(clock, median); };
  const auto farthest = std::max_element(clocks_ms.begin(), clocks_ms.end(),
                                         [&](int64_t a, int64_t b) { return off(a) < off(b); });
  return fmt::format(
      "the clock of rank {} is {:.1f} s {} the other ranks'; set the clocks of the hosts (NTP), "
      "since times of files and logs are compared",
      farthest - clocks_ms.begin(), static_cast<double>(off(*farthest)) / 1e3,
      *farthest > median ? "ahead of" : "behind");
}

namespace {

std::string OfRunText(const RunScheduleConfig& run, int64_t total) {
  const std::string warmup =
      run.warmup_steps > 0 ? fmt::format("warm-up in {} steps, then ", run.warmup_steps) : "";
  if (run.shape == DecayShape::kConstant) return warmup + "constant";
  return fmt::format("{}{} to {} of the rate at step {}", warmup,
                     run.shape == DecayShape::kLinear ? "linear" : "cosine", run.min_ratio, total);
}

std::string ScheduleText(const ScheduleConfig& s, int64_t steps) {
  const OneCycleConfig& cycle = s.one_cycle;
  const RangeTestConfig& range = s.range_test;
  const int64_t total = s.total_steps > 0 ? s.total_steps : steps;
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kWarmup:
    case ScheduleKind::kWarmupDecay:
      return fmt::format("{} from {} to {} in {} steps{}{}",
                         s.log_warmup ? "logarithmic warm-up" : "linear warm-up", s.warmup_min_lr,
                         s.warmup_max_lr, s.warmup_steps,
                         s.kind == ScheduleKind::kWarmup ? "" : ", decay to step ",
                         s.kind == ScheduleKind::kWarmup ? "" : std::to_string(total));
    case ScheduleKind::kWarmupCosine:
      return fmt::format("{} warm-up from {} in {} steps, cosine to {} at step {}",
                         s.log_warmup ? "logarithmic" : "linear", s.warmup_min_ratio,
                         s.warmup_steps, s.cos_min_ratio, total);
    case ScheduleKind::kOneCycle:
      return fmt::format("one cycle {} to {}, {} + {} steps, {} + {} stairs, decay {} by {}",
                         cycle.min_lr, cycle.max_lr, cycle.first_steps, cycle.second_steps,
                         cycle.first_stairs, cycle.second_stairs, cycle.decay_steps,
                         cycle.decay_rate);
    case ScheduleKind::kRangeTest:
      return fmt::format("range test from {}, {} every {} steps{}", range.min_lr, range.step_rate,
                         range.step_size, range.staircase ? ", in stairs" : "");
    case ScheduleKind::kOfRun:
      return OfRunText(s.of_run, total);
  }
  ZEROPLAN_CHECK(false);
}

std::string PrecisionText(const PrecisionConfig& p) {
  std::string text =
      fmt::format("{}, gradients summed in {}{}", DtypeName(p.dtype), DtypeName(p.grad_accum_dtype),
                  p.fp32_reduction ? " and reduced in fp32" : "");
  if (p.dtype != Dtype::kF16) return text;
  return text +
         (p.loss_scale > 0
              ? fmt::format(", loss scale {}", p.loss_scale)
              : fmt::format(", loss scale from 2^{}, window {}, hysteresis {}{}, at least {}",
                            p.initial_scale_power, p.loss_scale_window, p.hysteresis,
                            p.consecutive_hysteresis ? " refilled" : "", p.min_loss_scale));
}

// As checkpoints hold it, options and all.
std::string OrderText(bool shuffle, Packing packing) {
  std::string order = shuffle ? "shuffled" : "the stream's (--no-shuffle)";
  if (packing == Packing::kStream) return order;
  return fmt::format("{}, --packing {}", order, PackingName(packing));
}

constexpr const char* kProducts = "products";
constexpr std::string_view kPlainProducts = "in the parameters' dtype";

std::string ProductsText(const Fp8Config& fp8) {
  if (!fp8.enabled) return std::string(kPlainProducts);
  return fmt::format("in FP8 (a scale a {}, gradients {}{}{})",
                     fp8.recipe == Fp8Recipe::kTensor ? "tensor" : "block",
                     DtypeName(fp8.gradients), fp8.fast_gradients ? "" : " from sums of fp32",
                     fp8.least_side > 0 ? fmt::format(", sides from {} on", fp8.least_side) : "");
}

constexpr const char* kMasterWeights = "master weights";
constexpr const char* kOptimizerStates = "optimizer states";
constexpr std::string_view kF32States = "fp32";

// What a resume makes of states that were kept in another way, "" for a fact that names none.
std::string_view Conversion(const std::string& name, const std::string& now) {
  if (name == kMasterWeights) {
    return now == MasterWeightsName(MasterWeights::kParam) ? ": rounded once"
                                                           : ": the same numbers";
  }
  if (name != kOptimizerStates) return "";
  return now == kF32States ? ": the same numbers" : ": rounded once";
}

bool IsHeld(const std::string& name) {
  return std::find(std::begin(kHeldFacts), std::end(kHeldFacts), name) != std::end(kHeldFacts);
}

}  // namespace

NamedFacts DecidingFacts(const TrainSetup& setup, int64_t steps, bool shuffle,
                         const std::string& data, Packing packing, bool truncate) {
  const OptimizerConfig& o = setup.optimizer;
  NamedFacts facts = {
      {"data", data},
      {"order", OrderText(shuffle, packing) + (truncate ? ", long documents cut off" : "")},
      {"seq-len", std::to_string(setup.batch.seq_len)},
      {"global batch", fmt::format("{} sequences", setup.batch.global_batch())},
      {"lr", fmt::format("{}", o.lr)},
      {"betas", fmt::format("{}, {}", o.betas[0], o.betas[1])},
      {"eps", fmt::format("{}", o.eps)},
      {"weight decay",
       fmt::format("{}{}", o.weight_decay, o.adam_w_mode ? "" : ", added to the gradient")},
      {"bias correction", o.bias_correction ? "on" : "off"},
      {"gradient clipping", fmt::format("{}", o.gradient_clipping)},
      {"schedule", ScheduleText(o.schedule, steps)},
      {"precision", PrecisionText(setup.precision)},
      {kProducts, ProductsText(setup.precision.fp8)},
      {kMasterWeights, std::string(MasterWeightsName(setup.precision.master_weights))},
      {kOptimizerStates, std::string(MomentsName(setup.precision.moment_dtype))}};
  for (const SettingRow* row : kSettingRows) {
    if (row->decides_numbers) facts.emplace_back(row->name, SettingText(row->get(setup)));
  }
  return facts;
}

std::vector<RunChange> CompareWithCheckpoint(const NamedFacts& now,
                                             const std::map<std::string, std::string>& saved,
                                             const std::vector<std::string>& allowed,
                                             const std::string& checkpoint) {
  std::vector<RunChange> changes;
  std::string refused, names;
  for (const auto& [name, value] : now) {
    const auto found = saved.find(name);
    // All states were fp32, no matmuls in 8 bits and all settings the default when runs did not
    // name them.
    const bool of_states = name == kMasterWeights || name == kOptimizerStates;
    const SettingRow* row = FindSetting(name);
    const bool of_row = row != nullptr && row->decides_numbers;
    const std::string before = found != saved.end() ? found->second
                               : of_states          ? std::string(kF32States)
                               : name == kProducts  ? std::string(kPlainProducts)
                               : of_row             ? SettingText(DefaultValue(*row))
                                                    : "not known";
    if (before == value) continue;
    const bool may =
        !IsHeld(name) || std::find(allowed.begin(), allowed.end(), name) != allowed.end();
    const std::string line = fmt::format("{}: {} in the checkpoint, {} from here on{}", name,
                                         before, value, Conversion(name, value));
    if (may) {
      changes.push_back({name, line});
      continue;
    }
    refused += (refused.empty() ? "" : "; ") + line;
    names += (names.empty() ? "" : ",") + name;
  }
  if (!refused.empty()) {
    ThrowUsage(
        "⟦resume⟧: {} was saved by a run of other samples: {}. Give what it was saved with; "
        "⟦allow_change⟧ {} trains on all the same",
        checkpoint, refused, names);
  }
  return changes;
}

}  // namespace zeroplan
