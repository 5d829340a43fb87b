// zeroplan's planner as a library: the memory that ZeRO training of a model needs on a cluster, its
// speed, and the best choice. It neither needs nor uses a GPU, and depends on the standard library
// alone.
//
//   #include <zeroplan/zeroplan.h>
//   namespace zp = zeroplan::v1;
//   const zp::Plan plan = zp::MakePlan({{"model", "gpt2-xl"}, {"gpus", 8}, {"gpu-memory",
//   "24GB"}});
//
// Requests use the command line's options, and answers have the members of its JSON, under the same
// names. `zeroplan estimate --help` and `zeroplan plan --help` explain each option, docs/metrics.md
// each value. Bytes are whole numbers, times are seconds; an unknown value is unset, never 0.
//
// Functions may be called from several threads at once. They read the model and hardware files that
// options name, and write nothing but messages about such a file on stderr. Without "hw" they look
// for this machine's GPUs, as the command line does; name a profile to prevent that. Given "data"
// they read it with the tokenizer, by threads of their own, and keep its tokens where `zeroplan
// train` finds them ($ZEROPLAN_CACHE_DIR, else ~/.cache/zeroplan); a build without
// zeroplan-executor refuses "data".
//
// Stable: names in namespace v1 keep their meaning, and the library its SONAME, until there is a
// v2. New values are added at the end of a structure with a new SONAME only.
#pragma once

#include <zeroplan/choice.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define ZEROPLAN_EXPORT __attribute__((visibility("default")))

namespace zeroplan::v1 {

// A request that cannot be answered. what() is the command line's message: it names option or file,
// value, and what to do. Bugs of zeroplan are std::logic_error.
class ZEROPLAN_EXPORT Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message);
  ~Error() override;
  // The command line's exit code: 2 for wrong input, 3 where nothing fits, 4 for an unreadable
  // file.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// An option of the command line by its long name, with or without the leading dashes, and its value
// in the command line's form: "24GB", "0,1,2", "bf16". A flag has the value true or false; false is
// the same as leaving it out. "data" may be given several times, with a file or folder each.
struct Option {
  Option(std::string name, std::string value) : name(std::move(name)), value(std::move(value)) {}
  Option(std::string name, const char* value) : name(std::move(name)), value(value) {}
  Option(std::string name, bool flag) : name(std::move(name)), value(flag ? "true" : "false") {}
  template <typename Number, typename = std::enable_if_t<std::is_integral_v<Number>>>
  Option(std::string name, Number number) : Option(std::move(name), std::to_string(number)) {}
  // A number is passed as the shortest text that reads back as it.
  ZEROPLAN_EXPORT Option(std::string name, double number);

  std::string name, value;
};
using Options = std::vector<Option>;

// One GPU at the instant when most is live, by class (docs/memory.md). They sum to the total.
struct GpuBytes {
  uint64_t params = 0, grads = 0, optimizer = 0, activations = 0, buffers = 0;
  uint64_t runtime = 0;  // context, communicators, libraries
  uint64_t total = 0;
};

// The bytes of one host, all its ranks together.
struct HostBytes {
  uint64_t pinned = 0, pageable = 0, total = 0;
};

// One optimizer step by cause. They sum to the total.
struct StepSeconds {
  std::optional<double> compute;          // kernels of forward, backward and recompute
  std::optional<double> exposed_comm;     // compute waits for communication
  std::optional<double> exposed_offload;  // compute waits for PCIe, host kernels or the disk
  std::optional<double> optimizer;        // kernels of the update
  std::optional<double> total;
};

struct Model {
  std::string name;
  uint64_t params = 0;  // vocabulary padded
  int64_t layers = 0, hidden = 0, heads = 0, vocab = 0, seq_len = 0;
};

struct Machines {
  std::string hw;  // the hardware profile's name
  int gpus = 1, gpus_per_node = 1;
};

// A whole run, requested by "tokens" or "data". Tokens of data are positions, including padding.
struct Training {
  int64_t tokens = 0, steps = 0;
  double seconds = 0, gpu_hours = 0;
  std::optional<double> price;    // set with "gpu-hour-price"
  std::optional<double> gpu_kwh;  // upper bound, GPUs alone; set where their power limit is known
};

// The interval between saves, and the run with interruptions (docs/checkpoints.md), requested by
// "interruptions". Unset: unknown, not requested, or beyond any number.
struct Interruptions {
  double rate_per_hour = 0;
  std::optional<int64_t> interval_steps;     // from one save to the next
  std::optional<double> interval_seconds;    // time of `interval_steps` steps
  std::optional<double> save_seconds;        // time that steps wait for a save
  std::optional<double> whole_save_seconds;  // time until a save is complete
  std::optional<double> restart_seconds;     // from an interruption until steps run again
  std::optional<double> lost_share;          // share of the time that is lost
  std::optional<double> expected_seconds, expected_gpu_hours;  // set with "tokens"
  std::optional<double> expected_price;                        // set with "gpu-hour-price"
  std::optional<double> notice_needs_seconds;  // from a notice until all is saved, at most
  std::optional<bool> fits_notice;             // set with "notice"
};

// An epoch as sequences of the run's length, and the share of their positions that is padding.
struct EpochSequences {
  uint64_t sequences = 0;
  double padding = 0;
};

// The documents and tokens that sequences of `seq_len` cut: shares of all documents and of all
// tokens.
struct SequenceCuts {
  int64_t seq_len = 0;
  double cut_documents = 0, cut_tokens = 0;
};

// Tokens of a document; p95: at least 95 % have no more.
struct DocumentTokens {
  uint64_t least = 0, median = 0;
  double mean = 0;
  uint64_t p95 = 0, p99 = 0, longest = 0;
};

// The tokens of a GPU's micro-batch. `planned` and `largest` differ where another runtime pads to
// the longest document alone.
struct MicroBatchTokens {
  uint64_t planned = 0, largest = 0;
  double mean = 0;
};

// The data named by "data" in the answer's batches, as train reads it (docs/data.md).
struct Data {
  uint64_t documents = 0, tokens = 0;
  uint64_t counted_tokens = 0;  // tokens that count in the loss
  DocumentTokens document_tokens;
  int64_t seq_len = 0;
  std::string packing;                        // "stream", "documents", "off"
  std::optional<uint64_t> trained_documents;  // documents in an epoch; unset: "stream"
  uint64_t held_back = 0;         // held back for validation: documents, or sequences of a "stream"
  uint64_t longer_documents = 0;  // documents longer than a sequence
  uint64_t left_out_tokens = 0;   // tokens of longer documents left out; 0: they go on in pieces
  uint64_t uncounted_documents = 0, single_token_documents = 0;
  EpochSequences epoch;
  std::optional<EpochSequences> packed, one_a_sequence;  // the same data packed, and padded
  std::optional<SequenceCuts> cuts;                      // unset: "stream"
  std::optional<SequenceCuts> proposal;  // the least multiple of 128 that cuts 1 % at most
  int64_t sequences_per_step = 0;
  double epochs = 1;  // epochs requested
  int64_t steps = 0;
  MicroBatchTokens micro_batch_tokens;
};

struct EstimatedChoice {
  Choice choice;
  // In elements: zeroplan's own choice, unless a config sets them.
  std::optional<uint64_t> reduce_bucket, prefetch_bucket;  // none: the runtime has no such bucket
  uint64_t persistence_threshold = 0, reuse_distance = 0;
  bool overlap = true;  // communication overlaps compute
  GpuBytes gpu_bytes;
  uint64_t gpu_capacity = 0, gpu_reserve = 0;  // bytes of one GPU; bytes of it that stay free
  HostBytes host_bytes;
  std::optional<uint64_t> host_capacity;
  uint64_t host_reserve = 0;
  uint64_t nvme_bytes = 0;           // one node
  uint64_t comm_bytes_per_step = 0;  // sent by one rank; 0 where another runtime does not report it
  uint64_t pcie_bytes_per_step = 0;  // bytes of one GPU, both directions
  StepSeconds step_seconds;
  std::optional<double> tokens_per_second, mfu;  // all GPUs together
  std::optional<Training> training;
  std::optional<Interruptions> interruptions;
  bool fits = false;
  std::string why_not;  // the resource that is short, and by how much; empty if it fits
};

struct Estimate {
  Model model;
  Machines cluster;
  std::vector<EstimatedChoice> choices;     // by stage, offloads, recompute
  std::vector<std::string> assumed, notes;  // "--micro-batch 1"; further remarks
  std::string json;                         // the output of `estimate --format json`
  std::optional<Data> data;                 // set with "data"
};

// The best choice of one stage, or the one closest to fitting.
struct StageAnswer {
  int stage = 0;
  bool fits = false;
  Choice choice;
  GpuBytes gpu_bytes;
  HostBytes host_bytes;
  std::string why_not;  // set where it does not fit
  // Set where it fits. `lost_seconds`: the time that it loses to the answer, in a step of the
  // answer's tokens.
  bool proven = false;  // no other choice of the stage is better
  StepSeconds step_seconds, lost_seconds;
  std::optional<double> tokens_per_second;
};

// The answer if something were different, found by a search. The difference is the one member that
// is set of `gpu_memory_bytes`, `global_batch`, `bandwidth_scale`, `stages` and `gpus` (with
// `global_batch` where the present one cannot stay). Claims of the kinds "memory", "batch" and
// "crossover" (of bandwidth) give where the answer flips; claims of the kind "fewer" are as fast or
// faster.
struct Claim {
  std::string kind;  // kind of the line of advice; "chosen": the answer itself
  std::optional<uint64_t> gpu_memory_bytes;  // one GPU's memory
  std::optional<int64_t> global_batch;       // sequences a step
  std::optional<double> bandwidth_scale;     // scale of the scarcest link's bandwidth
  std::vector<int> stages;                   // the only stages searched
  std::optional<Choice> answer;              // unset: nothing fits
  std::optional<double> tokens_per_second;   // speed of `answer`
  std::vector<Choice> or_else;               // other kinds of answer within the range that follows
  // The range in which an answer of this kind (by bandwidth: of this stage) holds, both ends
  // included: bytes, sequences, or bytes a second.
  std::optional<double> holds_from, holds_to;
  double gap = 0;  // same meaning as in Plan
  std::optional<int> gpus;
};

// Counts and time of the search.
struct SearchFacts {
  std::string objective;
  uint64_t candidates = 0, cut_by_memory = 0, cut_by_score = 0, judged = 0, left = 0, lowered = 0;
  double seconds = 0;
};

struct Plan {
  Choice choice;
  GpuBytes gpu_bytes;
  HostBytes host_bytes;
  uint64_t nvme_bytes = 0, comm_bytes_per_step = 0, pcie_bytes_per_step = 0;
  StepSeconds step_seconds;
  std::optional<double> tokens_per_second, mfu;
  std::optional<Training> training;
  std::optional<Interruptions> interruptions;
  // 0: no other choice is better by more than 0.5 %; else how much better one could be at most.
  double gap = 0;
  std::vector<StageAnswer> stages;
  std::vector<Claim> claims;
  std::vector<std::string> advice;          // why, in paragraphs
  std::vector<std::string> assumed, notes;  // same meaning as in Estimate
  SearchFacts search;
  std::string largest;           // the model found for "largest", and why nothing larger fits
  std::string deepspeed_config;  // the choice as a DeepSpeed config, JSON
  std::string json;          // the output of `plan --format json`; also a file for `train --plan`
  std::optional<Data> data;  // set with "data"
};

// The best plan of one machine, and the time and cost of a run there.
struct MachinePlan {
  std::string hw;  // a value of "hw" for MakePlan
  int gpus = 1;
  bool fits = false;
  std::string why_not;           // why nothing fits, or why this machine cannot be planned for
  std::optional<Choice> choice;  // the choice of MakePlan
  std::optional<double> tokens_per_second;
  double gap = 0;  // same meaning as in Plan
  // The run's totals. `price`: on demand, or with "interruptions" on spot machines if their price
  // is known; unset: unknown. `steps_alone`: the seconds count steps only; false where
  // "interruptions" are given and their cost is known.
  std::optional<double> seconds, price, spot_price, gpu_kwh;
  bool steps_alone = true, in_time = false, in_budget = false;
  bool unbeaten = false;     // nothing is as fast and as cheap, and better in one of the two
  std::optional<Data> data;  // the data of "data", as this machine packs it
};

struct MachineComparison {
  std::optional<int64_t> tokens;  // tokens of the run; unset: it lasts epochs of data
  std::string objective;          // "time", "cost", "energy"
  std::optional<std::string> currency;
  std::vector<MachinePlan> machines;  // the best first
  std::vector<std::string> assumed, notes;
  std::string json;  // the output of `plan --format json` for machines: zeroplan.machines/1
};

// Receives the number of step programs judged so far while a search runs, on the caller's thread.
// An exception that it throws ends the search and reaches the caller.
using Progress = std::function<void(uint64_t programs)>;

// Memory and time of every choice that the options leave, whether it fits or not. Throws Error.
ZEROPLAN_EXPORT Estimate MakeEstimate(const Options& options);

// The best choice within the options. Throws Error; with exit code 3 where nothing fits, naming the
// smallest change that would fit. Runs for a fraction of a second, or for some seconds with many
// GPUs, deep models or "effort"; the flag "quick" leaves out where the answer flips.
ZEROPLAN_EXPORT Plan MakePlan(const Options& options, const Progress& progress = {});

// The best plan of each machine that "hw" and "gpus" name, several with commas or "any", by
// "objective" (time, cost, energy); the options are those of MakePlan. Throws as MakePlan does,
// except where nothing fits or nothing is within "deadline" and "budget": then no machine is both
// `in_time` and `in_budget`. Runs threads of its own. `progress` receives the number of machines
// that are done.
ZEROPLAN_EXPORT MachineComparison CompareMachines(const Options& options,
                                                  const Progress& progress = {});

// An answer in pictures, with tables of their numbers: the page that --report writes
// (docs/report.md). Holds the data of its pictures, some hundred kilobytes, and draws on request,
// in some milliseconds. Copies share the data. Several threads may draw at once.
class ZEROPLAN_EXPORT Report {
 public:
  Report();  // holds no answer yet
  ~Report();
  Report(const Report&);
  Report(Report&&) noexcept;
  Report& operator=(const Report&);
  Report& operator=(Report&&) noexcept;
  explicit operator bool() const { return state_ != nullptr; }

  // The page: HTML in UTF-8, without scripts, that fetches nothing. Its end names the command that
  // made it: `made_by`, or if that is empty the command line for the same request. Throws Error if
  // this report holds no answer.
  std::string Page(const std::string& made_by = "") const;
  // The page's pictures alone, small and side by side, with folded tables. The result is a page
  // too, for a frame (<iframe srcdoc>) of the caller's own. Class "light" or "dark" of its <html>
  // chooses the colours; without a class they follow the reader's system. Throws as Page does.
  std::string Pictures() const;

  struct State;  // private to the library

 private:
  friend Estimate MakeEstimate(const Options& options, Report& report);
  friend Plan MakePlan(const Options& options, Report& report, const Progress& progress);
  friend MachineComparison CompareMachines(const Options& options, Report& report,
                                           const Progress& progress);
  std::shared_ptr<const State> state_;
};

// Returns the same answer, and sets `report` to its pictures. If they throw, `report` is unchanged.
ZEROPLAN_EXPORT Estimate MakeEstimate(const Options& options, Report& report);
ZEROPLAN_EXPORT Plan MakePlan(const Options& options, Report& report,
                              const Progress& progress = {});
ZEROPLAN_EXPORT MachineComparison CompareMachines(const Options& options, Report& report,
                                                  const Progress& progress = {});

// Why a run of another program died or was slow: its log's figures next to those predicted of it.
struct RunExplained {
  std::string text;  // the output of `zeroplan why`
  std::string json;  // the output of `zeroplan why --format json` (docs/why.md)
  // Why there is no prediction, as the command line's message: a value that neither log nor options
  // give, or one that the program's model refuses. Empty: there is a prediction.
  std::string incomplete;
};
// `log`: a file. Throws Error if it holds nothing of a run.
ZEROPLAN_EXPORT RunExplained ExplainRun(const std::string& log, const Options& options = {});

// An option of a function above.
struct OptionHelp {
  std::string name;  // "--gpus"
  std::string type;  // the form of its value: "COUNT"; empty: a flag
  std::string help;  // includes unit and default
};
ZEROPLAN_EXPORT std::vector<OptionHelp> EstimateOptions();
ZEROPLAN_EXPORT std::vector<OptionHelp> PlanOptions();
ZEROPLAN_EXPORT std::vector<OptionHelp> ExplainRunOptions();

ZEROPLAN_EXPORT std::string Version();  // "0.1.0"

}  // namespace zeroplan::v1
