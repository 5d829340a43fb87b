// The facts in the log of a run of another program: DeepSpeed, transformers' Trainer, accelerate,
// torchrun, torchtitan, torchtune or plain PyTorch. Unknown text is skipped; nothing is concluded
// from it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/program_options.h"

namespace zeroplan {

// The part of a run in which something happened, according to the frames of a traceback.
enum class RunPhase : uint8_t {
  kUnknown,
  kLoading,     // the model is made or its weights are read
  kResume,      // a checkpoint is loaded
  kInit,        // the engine, its shards and optimizer are made
  kForward,     // up to the logits
  kLoss,        // logits and loss
  kBackward,    // includes recompute of checkpointed layers
  kStep,        // clipping and the optimizer
  kEvaluation,  // without gradients
  kSaving,      // a checkpoint, or whole weights gathered for it
  kGather       // all parameters gathered outside a step: GatheredParameters, generation
};
std::string_view RunPhaseName(RunPhase phase);  // "backward"; kUnknown: ""
std::string_view RunPhaseText(RunPhase phase);  // "the backward pass"

enum class FailureKind : uint8_t {
  kGpuMemory,    // PyTorch's allocator, or the driver
  kHostMemory,   // an allocation that failed
  kKilled,       // SIGKILL, the signal with which the kernel ends a process when memory is short
  kTimeout,      // a collective that not all ranks joined
  kInterrupted,  // SIGINT, SIGTERM, SIGHUP
  kError,        // another exception
  kCrashed,      // a signal of native code: SIGSEGV, SIGBUS
  kAborted,      // SIGABRT, which often follows another rank's failure
  kHardware,     // a GPU, a link or a node failed
  kScheduler,    // a time limit, preemption
  kExited        // an exit code alone
};
std::string_view FailureKindName(FailureKind kind);  // "gpu_memory"

// A message of the CUDA allocator, bytes. Values that its wording lacks are unset.
struct OomMessage {
  std::optional<int> gpu;
  std::optional<uint64_t> wanted, total, free;
  std::optional<uint64_t> allocated;            // in tensors
  std::optional<uint64_t> reserved;             // tensors and cached memory
  std::optional<uint64_t> in_use;               // this process, context included
  std::optional<uint64_t> allowed;              // set_per_process_memory_fraction
  std::optional<uint64_t> Unallocated() const;  // reserved minus allocated
};

struct RunFailure {
  FailureKind kind = FailureKind::kError;
  int64_t line = 0;
  std::optional<int> rank;
  std::string message;  // shortened
  RunPhase phase = RunPhase::kUnknown;
  bool recomputing = false;         // backward is recomputing a checkpointed layer
  std::vector<std::string> frames;  // "trainer.py:2772 training_step", the outermost first
  OomMessage gpu;                   // kGpuMemory
  std::optional<uint64_t> host_wanted;
  // The cause and the way out that are known of such an end (known_ends.h); empty: none.
  std::string what, way_out;
  // The operation that makes a list of tensors, of which the wanted memory is one
  // ("torch._foreach_sqrt"); empty: none is in the traceback.
  std::string of_list;
  int64_t steps_before = 0;  // RunLog::steps_told at the time of the failure

  // Whether a host's memory ran out, as far as is known.
  bool of_host() const { return kind == FailureKind::kHostMemory || kind == FailureKind::kKilled; }
  bool of_memory() const { return kind == FailureKind::kGpuMemory || of_host(); }
};

// A log's value for a field of a request, in the form of an option.
struct LogFact {
  std::string field;  // "⟦micro_batch⟧"
  std::string text;   // "4"
  int64_t line = 0;
  std::string from;  // its source: "--per_device_train_batch_size 4", "frames of liger_kernel/"
  int strength = 0;  // a stronger one replaces a weaker one
};

// A measured figure, and its place in the log.
struct LogFigure {
  double value = 0;
  int64_t line = 0;
  std::string from;  // "RunningAvgSamplesPerSec"
};

// A reason why the run is not predicted as another program's: "Unsloth has kernels of its own".
struct NotPredicted {
  std::string why;
  std::string unless;  // a field that overrides it, if given
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
  std::string gpus_doubt;  // a note, if its statements about the GPUs differ
  // A printed DeepSpeed config or model's config.json; empty: none.
  std::string config, model_config;
  int64_t config_line = 0, model_config_line = 0;
  std::vector<std::string> programs;  // "DeepSpeed 0.16.4", "transformers Trainer"; as they appear
  bool fsdp1 = false;                 // FullyShardedDataParallel, not fully_shard
  bool adapters = false;              // PEFT's
  int64_t trained_params = 0;         // as counted by Trainer or PEFT; 0: not found
  int64_t all_params = 0;             // the model's, without adapters; 0: not found
  int64_t params_line = 0;            // the line of all_params
  std::string task;                   // "GRPO", if it is no supervised training; see run_tasks.h
  int64_t task_line = 0;
  std::optional<NotPredicted> not_predicted;
  int64_t plain_backward_line = 0;  // Tensor.backward called without an engine; 0: not seen
  // A Trainer's forward pass without frames of DDP, FSDP or DeepSpeed; 0: not seen.
  int64_t plain_forward_line = 0;
  int highest_rank = -1;   // in the lines' prefixes; -1: none has one
  std::string last_error;  // the last line that speaks of an error and is not understood
  int64_t last_error_line = 0;

  std::vector<RunFailure> failures;  // in the order of the log, the first of each kind and rank
  bool finished = false;             // training reports its end, after the last failure
  std::string last_seen;   // the last progress before the end: "Loading checkpoint shards"
  int64_t steps_seen = 0;  // optimizer steps reported as done
  int64_t steps_told = 0;  // how often it reports one more step as done, over all restarts

  // For one optimizer step and all GPUs, unless the name differs.
  std::optional<LogFigure> step_seconds, samples_per_second, tokens_per_second_of_gpu;
  // the whole run, including all time outside steps
  std::optional<LogFigure> run_samples_per_second;
  // Bytes of one GPU, peak.
  std::optional<LogFigure> allocated, reserved, device;
  std::vector<MemoryLine> memory_lines;  // the first ones
  // Bytes of a host: peak use, by any process there, and the total in that line.
  std::optional<LogFigure> host_used, host_total;
  int64_t cache_flushes = 0;  // lines that report emptied caches
  int64_t cache_flush_line = 0;
  int64_t one_thread_line = 0;  // torchrun set OMP_NUM_THREADS to 1; 0: it did not

  const LogFact* Fact(std::string_view field) const;
  // Whether training went on after the failure: it was caught, or the run restarted.
  bool WentOn(const RunFailure& failure) const;
  // The failure that ended the run: among several the one that the others follow from; null: none
  // is reported.
  const RunFailure* Cause() const;
  // Whether it recognised anything of a run.
  bool HasAnything() const;
};

// Reads a log of any length piece by piece, in bounded memory.
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
