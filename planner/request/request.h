// A request: its fields as they were given, before anything is made of them (resolve.h). The
// command line fills them in from options, a library's caller from arguments.
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

// Of adapters (core/model/lora.h); each asks for them.
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

// Texts: names, files and rates that need a profile to be understood; "" is not given.
struct ModelFields {
  std::string model;
  ConfigDocument described;  // a config.json in place of `model`
  Given<uint64_t> params;
  std::string family;           // of `params`; empty: the first
  std::string freeze;           // ModelSpec::frozen
  Given<int64_t> image_tokens;  // of a sequence, of models that see
  Given<TuningMethod> method;   // what is trained: all of the model, or adapters of it
  LoraFields lora;
  std::string adapter;  // train's: the folder of one to go on from, which says all of these
  bool named() const { return !model.empty() || described.given(); }
  bool given() const { return named() || params.has_value(); }
};

struct HardwareFields {
  std::string profile, network, intra_node_bandwidth;
  Given<int> nvme_drives;
  // Called if `profile` is not given: the machine that this runs on. Unset: the default profile.
  // `measure_host`: the bandwidth of its memory too, in a fraction of a second of all cores.
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

// How records and texts are taken (TextChoices of text/documents/tokenize_files.h).
struct RecordFields {
  std::string text_field, map;
  Given<TrainOn> train_on;
  Given<int64_t> skip_bad;
  bool no_special_tokens = false;
};

// How documents become sequences.
struct SequencesAsked {
  int64_t seq_len = 0;
  int64_t global_batch = 1;  // sequences of a step; one at least is held back for validation
  Packing packing = Packing::kStream;
  // False: of another program, which pads a micro-batch to its longest document, cuts longer ones
  // off, and validates with files of its own.
  bool fixed_rows = true;
};

// Data that was read.
class DataCount {
 public:
  virtual ~DataCount() = default;
  // Whether it says which tokens count in the loss, as conversations do.
  virtual bool has_mask() const = 0;
  // Throws Error(kUsage) as train does where it is less than one sequence.
  virtual DataFacts As(const SequencesAsked& asked) const = 0;
};

// Reads data with the tokenizer in a folder ("": there is none), for a model of that vocabulary.
// Throws Error(kUsage) as train does. Unset: this program reads none. Called by one thread.
struct DataFields;
using DataReader = std::function<std::shared_ptr<const DataCount>(
    const DataFields& data, const std::string& folder, int64_t vocab)>;

// What is trained on (data_fields.h).
struct DataFields {
  std::vector<std::string> paths;
  Given<double> epochs;
  std::string tokenizer;  // a folder, or its tokenizer.json; empty: the model's
  RecordFields records;
  bool truncate = false;
  DataReader read;
  // What SettleData made of it (data_fields.h).
  std::shared_ptr<const DataCount> counted;
  Packing packing = Packing::kStream;

  bool given() const { return !paths.empty(); }
};

// How long a run trains, at what price, and how it is interrupted.
struct GoalFields {
  Given<int64_t> tokens;
  Given<double> gpu_hour_price;
  Given<double> interruptions;         // a second, of all machines of the run together
  Given<double> notice, restart_time;  // seconds
  DataFields data;
};

// The program whose memory and time are asked for.
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

  // The recipe of a PyTorch program. `written_for`: what a plan is written for, whose code is meant
  // where none is named.
  TorchRecipe recipe(std::optional<ConfigFormat> written_for = std::nullopt) const;
};

enum class Largest : uint8_t { kModel, kSeqLen, kMicroBatch };

// What a search may take beside what is said: of optimizer states, and of products of eight bits.
struct Allowed {
  std::vector<LightStates> states;
  std::vector<Fp8Recipe> products;
};

// What machines are compared by (planner/machines/machines.h).
enum class MachineObjective : uint8_t { kTime, kCost, kEnergy };

// Machines of which each is planned.
struct MachineFields {
  std::vector<std::string> hw;  // as HardwareFields::profile; empty: the one that it names
  std::vector<int> gpus;        // empty: as many as each has, or up to ClusterFields::gpus
  bool any = false;             // all that are built in
  Given<MachineObjective> objective;
  Given<double> deadline;  // seconds
  Given<double> budget;    // in the currency of the prices
  std::string prices;      // a file (hwprofiles/prices.h); "": what is built in
  bool given() const {
    return any || !hw.empty() || !gpus.empty() || objective || deadline || budget ||
           !prices.empty();
  }
};

struct PlanRequest {
  Request common;
  MachineFields machines;  // given: they are compared; else one is planned
  // Several methods that are compared (methods.h), in the enum's order; unset: one is planned.
  Given<std::vector<TuningMethod>> compared;
  Given<Largest> largest;  // plan_answer.h
  Given<Objective> objective;
  Given<Allowed> allow;
  bool quick = false;    // the answer alone, not what would change it
  Given<double> effort;  // a factor on the search's budgets
  // Whether a config is wanted, which then must be able to say what is chosen.
  bool for_config = false;
  Given<ConfigFormat> config_for;

  // AskedSettings::asks_fp8, or a search that is to have such products.
  bool asks_fp8() const {
    return common.settings.asks_fp8() || (allow && !allow->products.empty() && allow.text != "all");
  }
  // Without config_for DeepSpeed's own.
  ConfigFormat format() const { return config_for.value_or(ConfigFormat::kDeepSpeed); }
};

}  // namespace zeroplan
