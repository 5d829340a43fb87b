// activation_checkpointing, and keys that do not steer a run.
#include <algorithm>

#include "core/base/units.h"
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

struct KeyNote {
  const char* key;
  const char* why;
};

constexpr KeyNote kNoEffect[] = {
    {"steps_per_print", "zeroplan has its own progress lines; see --metrics"},
    {"wall_clock_breakdown", "zeroplan has --trace and --metrics"},
    {"memory_breakdown", "zeroplan prints its planned and real memory"},
    {"dump_state", "nothing is dumped"},
    {"flops_profiler", "zeroplan counts FLOPs itself; see --metrics"},
    {"comms_logger", "zeroplan accounts for communication itself; see --metrics"},
    {"tensorboard", "not supported; see --metrics"},
    {"csv_monitor", "not supported; see --metrics"},
    {"wandb", "not supported; see --metrics"},
    {"comet", "not supported; see --metrics"},
    {"zero_allow_untested_optimizer", "zeroplan has its own optimizer"},
    {"zero_force_ds_cpu_optimizer", "zeroplan has its own optimizer"},
    {"seq_parallel_communication_data_type", "there is no sequence parallelism"},
    {"checkpoint", "zeroplan has its own checkpoints; see --save and --resume"},
    {"load_universal_checkpoint", "zeroplan's checkpoints load at any number of ranks"},
    {"autotuning", "zeroplan does not tune while it trains"},
    {"compile", "zeroplan has fused kernels of its own"},
    {"nebula", "not supported; see --save"},
    {"timers", "zeroplan has --trace and --metrics"},
    {"disable_allgather", "zeroplan chooses its collectives itself"},
    {"graph_harvesting", "the CPU backend has no graphs"},
    {"pipeline", "there is no pipeline parallelism"},
};

constexpr KeyNote kRejected[] = {
    {"amp", "zeroplan does not use Apex"},
    {"torch_autocast", "zeroplan computes in one dtype"},
    {"sparse_gradients", "zeroplan's gradients are dense"},
    {"sparse_attention", "zeroplan's attention is dense"},
    {"tensor_parallel", "zeroplan has no tensor parallelism"},
    {"expert_parallel", "zeroplan has no experts"},
    {"compression_training", "zeroplan does not compress models"},
    {"curriculum_learning", "zeroplan trains at one sequence length"},
    {"data_efficiency", "zeroplan reads its data in order"},
    {"hybrid_engine", "zeroplan does not switch to inference"},
    {"elasticity", "zeroplan's number of ranks is fixed for a run"},
    {"progressive_layer_drop", "zeroplan trains all layers"},
    {"eigenvalue", "zeroplan does not quantize"},
    {"quantize_training", "zeroplan does not quantize"},
    {"weight_quantization", "zeroplan does not quantize"},
};

void ReadAio(ReaderState* state) {
  JsonSection& aio = state->Open(&state->root(), "aio");
  for (const char* key : {"block_size", "queue_depth", "intra_op_parallelism", "thread_count"}) {
    aio.Int(key, 1);
  }
  for (const char* key : {"single_submit", "overlap_events"}) aio.Bool(key);
  state->Reject(&aio, "use_gds", "zeroplan does not use GPUDirect Storage", "remove it");
  if (aio.present()) {
    state->Note(state->root(), "aio", "has no effect yet: zeroplan chooses its own file I/O sizes");
  }
}

}  // namespace

void ReadRecompute(ReaderState* state) {
  RecomputeConfig& out = state->result.setup.recompute;
  JsonSection& section = state->Open(&state->root(), "activation_checkpointing");
  const std::optional<int64_t> checkpoints = section.Int("number_checkpoints", 1);
  state->OnlyDefault(&section, "cpu_checkpointing", false);
  for (const char* key : {"partition_activations", "contiguous_memory_optimization",
                          "synchronize_checkpoint_boundary", "profile"}) {
    section.Bool(key);
  }
  state->NoEffect(&section, "partition_activations", "there is no tensor parallelism");
  state->NoEffect(&section, "contiguous_memory_optimization", "zeroplan's arenas do not fragment");
  state->NoEffect(&section, "synchronize_checkpoint_boundary", "zeroplan orders work with events");
  state->NoEffect(&section, "profile", "zeroplan has --trace");
  if (!section.present()) return;
  out.every = 1;
  const int64_t layers = state->context.layers;
  if (checkpoints && layers > 0) {
    out.every = static_cast<int>(CeilDiv(static_cast<uint64_t>(layers),
                                         static_cast<uint64_t>(std::min(*checkpoints, layers))));
  } else if (checkpoints) {
    state->Note(section, "number_checkpoints",
                "needs the model's number of layers; until then every layer is recomputed");
  }
}

void ReadOtherKeys(ReaderState* state) {
  JsonSection& root = state->root();
  for (const KeyNote& entry : kNoEffect) state->NoEffect(&root, entry.key, entry.why);
  for (const KeyNote& entry : kRejected) {
    state->Reject(&root, entry.key, entry.why, "switch it off or remove it");
  }
  const std::string op = root.String("gradient_allreduce_op").value_or("avg");
  if (op != "avg" && op != "mean") {
    root.FailValue("gradient_allreduce_op", "\"avg\", or remove the key");
  }
  ReadAio(state);
}

}  // namespace zeroplan
