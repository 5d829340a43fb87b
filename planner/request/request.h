// A request: its fields as they were given, before they are resolved (resolve.h). The command line
// fills them from options, a caller of the library from arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/config/config_document.h"
#include "core/config/data_facts.h"
#include "core/settings/packing.h"
#include "core/settings/zero_config.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/light_states.h"
#include "planner/formats/config_format.h"
#include "planner/request/asked.h"
#include "planner/runtime.h"
#include "planner/search/search.h"

namespace zeroplan {

// kQlora: LoRA over a base in NF4.
enum class TuningMethod : uint8_t { kFull, kLora, kQlora };
template <>
inline constexpr WordTable<TuningMethod, 3> kWords<TuningMethod> = {
    {{"full", TuningMethod::kFull},
     {"lora", TuningMethod::kLora},
     {"qlora", TuningMethod::kQlora}}};

// Options of adapters (core/model/lora.h). Each of them turns adapters on.
struct LoraFields {
  Given<int64_t> rank;
  Given<double> alpha, dropout;
  bool rslora = false;
  std::string targets, save, tokens;
  bool given() const {
    return rank || alpha || dropout || rslora || !targets.empty() || !save.empty() ||
           !tokens.empty();
  }
};

// Texts hold names, files and rates; a profile is needed to interpret them. "": not given.
struct ModelFields {
  std::string model;
  ConfigDocument described;  // a config.json in place of `model`
  Given<uint64_t> params;
  std::string family;  // for a model derived from `params`; empty: the first
  std::string freeze;  // ModelSpec::frozen
  // ModelSpec::router_aux_loss and router_z_loss; not given: those of the model.
  Given<double> router_aux_loss, router_z_loss;
  Given<int64_t> image_tokens;  // in a sequence, for models with vision
  Given<TuningMethod> method;   // trains all of the model, or adapters
  LoraFields lora;
  std::string adapter;  // train's: folder of an adapter to continue, which sets all of these
  bool named() const { return !model.empty() || described.given(); }
  bool given() const { return named() || params.has_value(); }
};

struct HardwareFields {
  std::string profile, network, intra_node_bandwidth;
  Given<int> nvme_drives;
  // Finds this machine. Called if `profile` is not given. Unset: the default profile applies.
  // `measure_host`: also measures the bandwidth of its memory, in a fraction of a second on all
  // cores.
  std::function<FoundMachine(bool measure_host)> find;
};

struct ClusterFields {
  Given<int> gpus, gpus_per_node;
  Given<uint64_t> gpu_memory, host_memory, pinned_limit, nvme_capacity;  // bytes
  Given<uint64_t> gpu_reserve, host_reserve;                             // bytes
};

enum class TrainOn : uint8_t { kAnswers, kAll };
template <>
inline constexpr WordTable<TrainOn, 2> kWords<TrainOn> = {
    {{"answers", TrainOn::kAnswers}, {"all", TrainOn::kAll}}};

// Settings for reading records and texts (TextChoices of text/documents/tokenize_files.h).
struct RecordFields {
  std::string text_field, map;
  Given<TrainOn> train_on;
  Given<int64_t> skip_bad;
  bool no_special_tokens = false;
};

// How documents become sequences.
struct SequencesAsked {
  int64_t seq_len = 0;
  int64_t global_batch = 1;  // sequences of a step; at least one is held back for validation
  Packing packing = Packing::kStream;
  // False: another program, which pads a micro-batch to its longest document, truncates longer
  // ones, and validates with files of its own.
  bool fixed_rows = true;
};

// Data that was read.
class DataCount {
 public:
  virtual ~DataCount() = default;
  // Whether the data marks the tokens that count in the loss, as conversations do.
  virtual bool has_mask() const = 0;
  virtual uint64_t longest() const = 0;  // tokens of the longest document
  // Throws Error(kUsage) as train does if the data is less than one sequence.
  virtual DataFacts As(const SequencesAsked& asked) const = 0;
};

// Reads data with the tokenizer in a folder ("": there is none), for a model with that vocabulary.
// Throws Error(kUsage) as train does. Unset: this program reads no data. Called by one thread.
struct DataFields;
using DataReader = std::function<std::shared_ptr<const DataCount>(
    const DataFields& data, const std::string& folder, int64_t vocab)>;

// The training data (data_fields.h).
struct DataFields {
  std::vector<std::string> paths;
  Given<double> epochs;
  std::string tokenizer;  // a folder, or its tokenizer.json; empty: the model's
  RecordFields records;
  bool truncate = false;
  DataReader read;
  // SettleData sets these (data_fields.h).
  std::shared_ptr<const DataCount> counted;
  Packing packing = Packing::kStream;
  double visible_keys =
      0;  // LowerOptions::visible_keys of that packing; 0 where it is not documents

  bool given() const { return !paths.empty(); }
};

// How long a run trains, at what price, and how it is interrupted.
struct GoalFields {
  Given<int64_t> tokens;
  Given<double> gpu_hour_price;
  Given<double> interruptions;         // per second, over all machines of the run together
  Given<double> notice, restart_time;  // seconds
  DataFields data;
};

// The program whose memory and time are predicted.
struct RuntimeFields {
  Given<const Runtime*> runtime;  // unset: zeroplan's own executor

  const Runtime& of() const { return *runtime.value_or(&OwnExecutor()); }
};

// The fields that estimate, plan and train share.
struct Request {
  ModelFields model;
  HardwareFields hardware;
  ClusterFields cluster;
  AskedSettings settings;
  GoalFields goal;
  RuntimeFields runtime;
  ConfigDocument config;  // DeepSpeed's

  // The recipe of a PyTorch program. `written_for`: the target of a plan, whose code is the
  // default.
  TorchRecipe recipe(std::optional<ConfigFormat> written_for = std::nullopt) const;
};

enum class Largest : uint8_t { kModel, kSeqLen, kMicroBatch };

// Lighter optimizer states and FP8 recipes that a search may use in addition to the request's own.
struct Allowed {
  std::vector<LightStates> states;
  std::vector<Fp8Recipe> products;
};

// The figure that ranks machines (planner/machines/machines.h).
enum class MachineObjective : uint8_t { kTime, kCost, kEnergy };

// Machines to plan for, one plan each.
struct MachineFields {
  std::vector<std::string> hw;  // as HardwareFields::profile; empty: that profile
  std::vector<int> gpus;        // empty: the number each machine has, or up to ClusterFields::gpus
  bool any = false;             // all built-in machines
  Given<MachineObjective> objective;
  Given<double> deadline;  // seconds
  Given<double> budget;    // in the currency of the prices
  std::string prices;      // a file (hwprofiles/prices.h); "": the built-in prices
  bool given() const {
    return any || !hw.empty() || !gpus.empty() || objective || deadline || budget ||
           !prices.empty();
  }
};

struct PlanRequest {
  Request common;
  MachineFields machines;  // if given, machines are compared; else one is planned
  // Methods to compare (methods.h), in the enum's order. Unset: one method is planned.
  Given<std::vector<TuningMethod>> compared;
  Given<Largest> largest;  // plan_answer.h
  Given<Objective> objective;
  Given<Allowed> allow;
  bool quick = false;  // the answer alone, without advice
  // Methods and machines: the answer alone, looked for as long as without; rows that no screen has
  // are not searched to their end.
  bool brief = false;
  Given<double> effort;  // a factor on the search's budgets
  // Whether plan writes a config. If so, the config's format must support the choice.
  bool for_config = false;
  Given<ConfigFormat> config_for;

  // AskedSettings::asks_fp8, or ⟦allow⟧ names FP8 matmuls ("all" does not).
  bool asks_fp8() const {
    return common.settings.asks_fp8() || (allow && !allow->products.empty() && allow.text != "all");
  }
  // DeepSpeed's own if config_for is not given.
  ConfigFormat format() const { return config_for.value_or(ConfigFormat::kDeepSpeed); }
};

}  // namespace zeroplan
