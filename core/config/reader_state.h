// The state and helpers that the parts of the DeepSpeed reader share. Internal to core/config.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json_section.h"
#include "core/config/deepspeed_reader.h"
#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// How a key that stands for one member is read and written (core/config/key_rows.inc).
struct ConfigKey {
  bool always = false;  // the writer writes it at its default, too
  bool chosen = false;  // "auto" leaves the value to zeroplan: kAuto
  double least = 0;
  double most = 0;           // 0: no limit
  const char* allowed = "";  // replaces the generic text of messages
};
// The section of the keys of stage 3 in key_rows.inc: they lie in zero_optimization.
inline constexpr std::string_view kStage3Keys = "stage 3";

// Kernels compute with floats.
constexpr double kMaxNumber = std::numeric_limits<float>::max();
constexpr const char* kRate = "a finite number of at least 0, such as 1e-4";

// Names who refuses a key that zeroplan lacks.
enum class RejectedBy : uint8_t { kZeroplan, kBoth };

// The formats that the sources set for masters or moments.
template <typename T>
struct StatesSaid {
  const char* own_key;  // a key of "_zeroplan"
  const char* option;
  std::string_view (*name)(T);
  std::optional<T> of_own{}, of_deepspeed{}, of_option{};
  std::string deepspeed_key{};  // the path of the DeepSpeed key that is set
  bool deepspeed_value = false;

  void OfDeepSpeed(std::string key, bool value, T says) {
    of_deepspeed = says;
    deepspeed_key = std::move(key);
    deepspeed_value = value;
  }
  bool by_config() const { return of_own || of_deepspeed; }
  bool by_deepspeed_key() const { return !of_own && of_deepspeed; }
  // The source that decides: a path of the config, else the option.
  std::string Source() const {
    return of_own ? std::string("_zeroplan.") + own_key : of_deepspeed ? deepspeed_key : option;
  }
  // The value as the source writes it. REQUIRES: a source sets it.
  std::string_view Value() const {
    if (by_deepspeed_key()) return deepspeed_value ? "true" : "false";
    return name(of_own ? *of_own : *of_option);
  }
};

// One reading of one config. Sections are kept until the end, because a key that is unknown in one
// may belong to another.
class ReaderState {
 public:
  // `root` and `context` must outlive the state.
  ReaderState(const JsonNode& root, std::string_view source, const ReadContext& read_context);

  const ReadContext& context;
  ReadResult result;
  StatesSaid<MasterWeights> masters = {"master_weights", "⟦master_weights⟧", &MasterWeightsName};
  StatesSaid<Dtype> moments = {"optimizer_states", "⟦optimizer_states⟧", &MomentsName};

  JsonSection& root() { return sections_.front(); }
  // The section under `key` of `parent`, an absent one where it is missing, null or "auto". A
  // section is read in full (its known keys registered) whether or not it is there.
  JsonSection& Open(JsonSection* parent, std::string_view key);
  // The same for `node`, which is known to be an object; nullptr: an absent section.
  JsonSection& OpenNode(const JsonNode* node, JsonSection& parent, std::string_view key);
  const std::deque<JsonSection>& sections() const { return sections_; }
  std::deque<JsonSection>& sections() { return sections_; }

  // Note adds "SOURCE:LINE: path.key: text" to the notes, Warn adds it to the warnings.
  void Note(const JsonSection& section, std::string_view key, std::string_view text);
  void Warn(const JsonSection& section, std::string_view key, std::string_view text);
  // Handles a key that changes nothing here: adds a note if it is switched on.
  void NoEffect(JsonSection* section, std::string_view key, std::string_view why);
  // Reports a feature that DeepSpeed has and zeroplan lacks: a problem, but a note where the config
  // is checked for DeepSpeed.
  void Unsupported(const JsonSection& section, std::string_view key, std::string_view text);
  // Reports what zeroplan reads and DeepSpeed itself refuses, for the reason `why`: a problem where
  // the config is checked for DeepSpeed, a warning where it is checked for both.
  void DeepSpeedRefuses(const JsonSection& section, std::string_view key, std::string_view why);
  // Handles a key that is an error if it is switched on: "VALUE is not supported: WHY; FIX".
  void Reject(JsonSection* section, std::string_view key, std::string_view why,
              std::string_view fix, RejectedBy by = RejectedBy::kZeroplan);
  // Handles a switch of which zeroplan so far supports only DeepSpeed's default, `supported`.
  void OnlyDefault(JsonSection* section, std::string_view key, bool supported);

  // Unknown keys of sections are problems; unknown keys of the root are problems or warnings.
  void CheckUnknownKeys();
  // Adds a problem at `key`, a dotted path from the root, with the line of its nearest ancestor.
  void ReportAt(std::string_view key, std::string_view message);
  // Adds a problem with the value that a StatesSaid's source sets. `message` names options as
  // ⟦field⟧.
  void ReportSource(std::string_view source, std::string_view message);
  // Adds a problem whose text names its place itself.
  void AddProblem(int line, std::string text) { problems_.push_back({line, std::move(text)}); }
  bool HasProblems() const { return !problems_.empty(); }
  // Throws Error(kUsage) with all problems, a line each, in the order of the text.
  void ThrowProblems();

 private:
  void CheckSection(const JsonSection& section);
  void CheckRootKey(const std::string& key);
  // The path of the section that knows `key`, other than `asking`; "" if none.
  std::string HomeOf(std::string_view key, const JsonSection& asking) const;

  // The known key nearest to a key of the root: in the root, else in a section that steers a run.
  std::string NearestAnywhere(std::string_view key) const;

  const JsonNode& root_node_;
  std::string source_;
  std::vector<JsonProblem> problems_;
  std::deque<JsonSection> sections_;  // the first is the root; references stay valid
};

// Reads the keys of one section of key_rows.inc into state->result.setup.
void ReadKeyRows(ReaderState* state, JsonSection* section, std::string_view rows);

// The parts, in the order in which they run; each reads its sections into state->result.
void ReadBatch(ReaderState* state);          // the three sizes
void ReadPrecision(ReaderState* state);      // fp16, bf16, data_types
void ReadZero(ReaderState* state);           // zero_optimization and its offload sections
void ReadCommunication(ReaderState* state);  // dtype and scaling of gradients on their way
void ReadOptimizer(ReaderState* state);      // optimizer, gradient_clipping
void ReadScheduler(ReaderState* state);      // scheduler; needs the optimizer's lr
// Reads the keys of "_zeroplan" for a schedule that DeepSpeed lacks (RunScheduleConfig).
void ReadRunSchedule(ReaderState* state, JsonSection* own);
// Reads the keys of "_zeroplan" for the formats of states; runs after ReadZero.
void ReadOwnStates(ReaderState* state, JsonSection* own);
// Reads "_zeroplan.fp8"; runs after ReadPrecision. `deepspeed`: the config names DeepSpeed as its
// runtime.
void ReadOwnFp8(ReaderState* state, JsonSection* own, bool deepspeed);
// Reports formats of states that DeepSpeed does not run, at the source that sets them.
void ReportDeepSpeedStates(ReaderState* state);
// Reads the keys of "_zeroplan" for shard groups that DeepSpeed lacks; runs after ReadZero.
void ReadOwnGroups(ReaderState* state, JsonSection* own);
void ReadRecompute(ReaderState* state);  // activation_checkpointing
void ReadOtherKeys(ReaderState* state);  // everything that does not steer a run

// Reads "fp32", "fp16" or "bf16"; an open key gives the fallback.
Dtype ReadDtype(JsonSection* section, const char* key, Dtype fallback);
// The same for a key that the command line's `option` fills if it is open. A value of the option
// that contradicts the key is a problem.
std::optional<Dtype> ReadDtype(JsonSection* section, const char* key, const char* option,
                               std::optional<Dtype> of_option);

// The values of keys that a DeepSpeed config leaves out. They are DeepSpeed's defaults; the fields
// of zero_config.h have zeroplan's own defaults.
inline ZeroConfig ReaderZeroDefaults(int stage) {
  ZeroConfig zero;
  zero.stage = stage;
  zero.reduce_bucket_elements = 500'000'000;
  zero.allgather_bucket_elements = 500'000'000;
  zero.overlap_comm = stage == 3;
  zero.prefetch_bucket_elements = 50'000'000;
  zero.param_persistence_threshold = 100'000;
  zero.model_persistence_threshold = kUnlimited;
  zero.max_live_parameters = 1'000'000'000;
  zero.max_reuse_distance = 1'000'000'000;
  zero.offload_param.max_in_cpu_elements = 1'000'000'000;
  zero.sub_group_elements = 1'000'000'000;
  return zero;
}

// Sets sizes that are kAuto to DeepSpeed's defaults.
inline void FillReaderSizes(ZeroConfig& zero) {
  const ZeroConfig defaults = ReaderZeroDefaults(zero.stage);
  const auto fill = [](uint64_t& size, uint64_t otherwise) {
    if (size == kAuto) size = otherwise;
  };
  fill(zero.reduce_bucket_elements, defaults.reduce_bucket_elements);
  fill(zero.prefetch_bucket_elements, defaults.prefetch_bucket_elements);
  fill(zero.max_live_parameters, defaults.max_live_parameters);
}

// train_batch_size = micro_batch * grad_accum * world_size / sequence_ranks. Any of the three sizes
// may be open.

// The sizes that the config and the command line together set; nullopt: open.
struct BatchSizes {
  std::optional<int64_t> global_batch, micro_batch, grad_accum;
};

// Any two sizes give the third, which must be a whole number. One batch size alone means no
// accumulation; no size at all means micro-batch 1 without accumulation. Accumulation alone is an
// error. Throws Error(kUsage); `where` starts its message: "ds.json:3: ". REQUIRES: the sizes are
// positive.
BatchSpec ResolveBatch(const BatchSizes& sizes, int world_size, int64_t seq_len,
                       const std::string& where, int sequence_ranks = 1);

// Below: the keys and values that the reader of DeepSpeed configs knows, for schemas and help.

struct ConfigSection {
  std::string path;  // "zero_optimization.offload_param"; empty: the top level
  std::vector<JsonKey> keys;
};

// The sections and keys that the reader looks up while it reads `config`, in its order. It looks up
// most of them in any config. The parameters of a scheduler depend on its type, and a deprecated
// name is looked up only where it is used. Problems with `config` are ignored.
std::vector<ConfigSection> DescribeConfig(std::string_view config);

// True if a key of the top level is for people and other programs: "$schema", "_comment", ...
bool IsCommentKey(std::string_view key);
// The comment keys that do not begin with '_'.
const std::vector<std::string_view>& CommentKeys();

}  // namespace zeroplan
