// What the log of a run of other people's programs says: DeepSpeed, transformers' Trainer,
// accelerate, torchrun, torchtitan, torchtune or plain PyTorch. Text that is not known is passed
// over; nothing is concluded from it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// Where in a run something happened, as the frames of a traceback tell it.
enum class RunPhase : uint8_t {
  kUnknown,
  kLoading,     // the model is made or its weights are read
  kResume,      // a checkpoint is loaded
  kInit,        // the engine, its shards and optimizer are made
  kForward,     // up to the logits
  kLoss,        // logits and loss
  kBackward,    // with recompute of checkpointed layers
  kStep,        // clipping and the optimizer
  kEvaluation,  // without gradients
  kSaving       // a checkpoint, or whole weights gathered
};
std::string_view RunPhaseName(RunPhase phase);  // "backward"; kUnknown: ""
std::string_view RunPhaseText(RunPhase phase);  // "the backward pass"

enum class FailureKind : uint8_t {
  kGpuMemory,    // PyTorch's allocator, or the driver
  kHostMemory,   // an allocation that failed
  kKilled,       // SIGKILL, as the kernel ends a process where memory is short
  kTimeout,      // a collective that not all ranks joined
  kInterrupted,  // SIGINT, SIGTERM
  kError         // another exception
};
std::string_view FailureKindName(FailureKind kind);  // "gpu_memory"

// A message of the CUDA allocator, bytes. What its wording does not say is unset.
struct OomMessage {
  std::optional<int> gpu;
  std::optional<uint64_t> wanted, total, free;
  std::optional<uint64_t> allocated;            // in tensors
  std::optional<uint64_t> reserved;             // tensors and what is cached
  std::optional<uint64_t> in_use;               // of this process, context included
  std::optional<uint64_t> allowed;              // set_per_process_memory_fraction
  std::optional<uint64_t> Unallocated() const;  // reserved less allocated
};

struct RunFailure {
  FailureKind kind = FailureKind::kError;
  int64_t line = 0;
  std::optional<int> rank;
  std::string message;  // shortened
  RunPhase phase = RunPhase::kUnknown;
  bool recomputing = false;         // a checkpointed layer is made again in backward
  std::vector<std::string> frames;  // "trainer.py:2772 training_step", the outermost first
  OomMessage gpu;                   // kGpuMemory
  std::optional<uint64_t> host_wanted;
  int64_t steps_before = 0;  // RunLog::steps_told when it came

  // Whether it was a host's memory, as far as is known.
  bool of_host() const { return kind == FailureKind::kHostMemory || kind == FailureKind::kKilled; }
};

// Of a fact that is no field of a request: the sequences that Trainer evaluates at once on a GPU.
inline constexpr std::string_view kEvalBatchFact = "per_device_eval_batch_size";

// What a log says of a field of a request, as an option has it.
struct LogFact {
  std::string field;  // "⟦micro_batch⟧"
  std::string text;   // "4"
  int64_t line = 0;
  std::string from;  // what said it: "--per_device_train_batch_size 4", "frames of liger_kernel/"
  int strength = 0;  // a stronger one replaces a weaker one
};

// A figure that was measured, and where it stands.
struct LogFigure {
  double value = 0;
  int64_t line = 0;
  std::string from;  // "RunningAvgSamplesPerSec"
};

// A line of DeepSpeed's see_memory_usage, bytes.
struct MemoryLine {
  int64_t line = 0;
  std::string label;
  uint64_t allocated = 0, max_allocated = 0, reserved = 0;
};

struct RunLog {
  std::string source;  // the file's name; "-": stdin
  int64_t lines = 0;
  uint64_t bytes = 0;
  bool has_nul = false;                               // binary, or a text in UTF-16
  std::map<std::string, LogFact> facts;               // by field
  std::map<std::string, std::string> unknown_values;  // by field, a note each
  std::string gpus_doubt;  // where what it says of the GPUs differs: a note
  // A DeepSpeed config, or a model's config.json, that was printed; empty: none.
  std::string config, model_config;
  int64_t config_line = 0, model_config_line = 0;
  std::vector<std::string> programs;  // "DeepSpeed 0.16.4", "transformers Trainer"; as they appear
  bool fsdp1 = false;                 // FullyShardedDataParallel, not fully_shard
  bool adapters = false;              // PEFT's
  int64_t trained_params = 0;         // as Trainer or PEFT counts them; 0: not told
  int64_t plain_backward_line = 0;    // Tensor.backward called without an engine; 0: not seen

  std::vector<RunFailure> failures;  // in the order of the log, the first of each kind and rank
  bool finished = false;             // training says that it ended, after the last failure
  std::string last_seen;   // the last progress before the end: "Loading checkpoint shards"
  int64_t steps_seen = 0;  // optimizer steps that it says are done
  int64_t steps_told = 0;  // how often it says that one more is done, over all restarts

  // Of one optimizer step and all GPUs, unless named otherwise.
  std::optional<LogFigure> step_seconds, samples_per_second, tokens_per_second_of_gpu;
  std::optional<LogFigure> run_samples_per_second;  // of the whole run, with all that is no step
  // Bytes of one GPU, at most.
  std::optional<LogFigure> allocated, reserved, device;
  std::vector<MemoryLine> memory_lines;  // the first ones
  // Bytes of a host: in use at most, by whatever runs there, and in all as that line has it.
  std::optional<LogFigure> host_used, host_total;
  int64_t cache_flushes = 0;  // lines that tell of emptied caches
  int64_t cache_flush_line = 0;
  int64_t one_thread_line = 0;  // torchrun set OMP_NUM_THREADS to 1; 0: it did not

  const LogFact* Fact(std::string_view field) const;
  // Whether training went on after it: it was caught, or the run began anew.
  bool WentOn(const RunFailure& failure) const;
  // What ended the run: of several failures the one that others follow from; null: none is told.
  const RunFailure* Cause() const;
  // Whether anything of a run was recognised.
  bool HasAnything() const;
};

// Reads a log piece by piece: of any length, in memory that does not grow with it.
class LogReader {
 public:
  explicit LogReader(std::string source);
  ~LogReader();
  void Take(std::string_view bytes);
  RunLog Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

RunLog ParseLog(std::string_view text, std::string source);
// `file` "-": stdin. Throws Error(kUsage) if it cannot be read.
RunLog ReadRunLog(const std::string& file);

}  // namespace zeroplan
