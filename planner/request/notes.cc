#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/program/attention_path.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/sanity.h"
#include "planner/request/resolve.h"

namespace zeroplan {
namespace {

// The attention launch of a program. `ordered_program`: it reserves the workspace of a
// deterministic one.
AttentionLaunch LaunchOf(const ModelSpec& model, const TrainSetup& setup, int64_t tokens,
                         bool backward, const GpuProfile& gpu, bool ordered_program,
                         const LowerOptions& lower) {
  AttentionLaunch launch;
  launch.dims = {setup.batch.micro_batch, tokens, model.heads, model.KvHeads(), model.HeadSize()};
  launch.dtype = setup.precision.dtype;
  launch.backward = backward;
  launch.compute_capability = ComputeCapability(gpu.architecture);
  launch.documents = lower.document_borders;
  launch.own_documents = launch.documents && lower.own_documents;
  launch.deterministic = (backward || launch.documents) && setup.deterministic;
  if (backward) {
    launch.workspace_bytes = AttentionWorkspaceBytes(launch.dims, ordered_program);
  }
  return launch;
}

// The remedy for plain kernels, as a sentence.
std::string Fix(const ModelSpec& model, OwnGap gap, const GpuProfile& gpu) {
  const int64_t head = model.HeadSize();
  // There is no default, so that the compiler reports a new reason without a remedy.
  switch (gap) {
    case OwnGap::kNone:
      break;
    case OwnGap::kGpu:
      return "Use a GPU from Ampere on.";
    case OwnGap::kDtype:
      return fmt::format("Use ⟦dtype⟧ {}.", gpu.bf16 ? "bf16" : "fp16");
    case OwnGap::kHeadSteps:
      if (head < 8) return "Use a model whose heads have 8 channels.";
      return fmt::format("Use a model whose heads have {} or {} channels.", head / 8 * 8,
                         head / 8 * 8 + 8);
    case OwnGap::kHeadSize:
      return fmt::format("Use a model whose heads have at most {} channels.", kMostOwnHead);
    case OwnGap::kWorkspace:
      return "Plan again.";
  }
  return "";
}

// "'s forward pass", "'s backward pass"; "" for both.
std::string_view PassText(bool forward, bool backward) {
  return forward && backward ? "" : forward ? "'s forward pass" : "'s backward pass";
}

std::string PartsText(const AttentionLaunch& launch, const AttentionPath& path) {
  const int64_t B = launch.dims[0], G = launch.dims[3];
  const std::string part = path.part.key_heads == G
                               ? fmt::format("{} of {} sequences", path.part.sequences, B)
                               : fmt::format("{} of {} heads of keys", path.part.key_heads, G);
  return fmt::format(
      "⟦deterministic⟧: attention's backward pass takes {} calls of cuDNN's kernel, each of {}, "
      "which keeps the gradients of its scores; the predicted time has that.",
      path.calls, part);
}

}  // namespace

void NoteRoundedBatch(const AskedSettings& asked, std::optional<int64_t> batch, int64_t seq_len,
                      Assumptions& assumptions) {
  const Given<int64_t>& tokens = asked.global_batch_tokens;
  if (!tokens || !batch || *tokens == *batch * seq_len) return;
  assumptions.notes.push_back(
      fmt::format("Batch: {} sequences of {} tokens a step, {} tokens, the nearest to "
                  "⟦global_batch_tokens⟧ {}.",
                  *batch, seq_len, *batch * seq_len, tokens.text));
}

std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                          const LowerOptions& lower, const GpuProfile& gpu, bool ordered_program) {
  if (!lower.flash_attention) {
    const std::string why =
        gpu.flash_attention
            ? fmt::format("no kernel that does without takes heads of {} channels in {} on {}",
                          model.HeadSize(), DtypeName(setup.precision.dtype), gpu.name)
            : fmt::format("cuDNN has no fused kernel for {}", gpu.name);
    return fmt::format(
        "Attention keeps the scores in memory ({}), which the predicted bytes and times have.",
        why);
  }
  const int64_t tokens = setup.batch.seq_len;
  const auto launch_of = [&](bool backward) {
    return LaunchOf(model, setup, tokens, backward, gpu, ordered_program, lower);
  };
  const AttentionLaunch forward = launch_of(false), backward = launch_of(true);
  const AttentionPath forward_path = AttentionPathOf(forward);
  const AttentionPath backward_path = AttentionPathOf(backward);
  const bool measured = gpu.architecture == "hopper";
  if (!forward_path.fused() || !backward_path.fused()) {
    const bool only_forward = backward_path.fused();
    const AttentionLaunch& launch = only_forward ? forward : backward;
    const OwnGap gap = only_forward ? forward_path.own_gap : backward_path.own_gap;
    return fmt::format(
        "Attention{} runs on plain kernels, many times slower than fused ones: {}.{} {}",
        PassText(!forward_path.fused(), !backward_path.fused()), OwnGapText(launch, gap),
        measured ? "" : " Their predicted time is a guess, measured on an H200 alone.",
        Fix(model, gap, gpu));
  }
  const bool own_forward = forward_path.kernels == AttentionKernels::kOwn;
  const bool own_backward = backward_path.kernels == AttentionKernels::kOwn;
  if ((own_forward || own_backward) && !measured) {
    return fmt::format(
        "Attention{} runs on zeroplan's own fused kernels ({}), whose predicted time is taken over "
        "from an H200, with a margin.",
        PassText(own_forward, own_backward),
        own_backward ? LibraryGapText(backward, backward_path.library_gap)
                     : LibraryGapText(forward, forward_path.library_gap));
  }
  return backward_path.calls > 1 ? PartsText(backward, backward_path) : "";
}

void NoteGuesses(const HardwareProfile& hardware, const Cluster& cluster,
                 std::span<const TrainSetup> setups, const TorchRecipe& recipe,
                 Assumptions& assumptions) {
  std::vector<MachinePart> parts;
  for (TrainSetup setup : setups) {
    if (recipe.offload_activations) setup.recompute.offload.device = OffloadDevice::kCpu;
    for (const MachinePart part : PartsUsed(setup, cluster.nodes(), cluster.gpus_per_node)) {
      if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    }
  }
  std::sort(parts.begin(), parts.end());
  std::string note = GuessNote(GuessedFigures(hardware, parts, cluster.gpus_per_node));
  if (!note.empty()) assumptions.notes.push_back(std::move(note));
}

void SetVisibleKeys(double keys, const ModelSpec& model, const GpuProfile& gpu,
                    LowerOptions& lower) {
  lower.visible_keys = keys;
  const bool timed = ComputeCapability(gpu.architecture) / 10 == 9;
  if (timed && OwnFasterWithin(model.HeadSize(), keys)) lower.own_documents = true;
}

void ApplyPacking(const Request& request, const ModelSpec& model, const GpuProfile& gpu,
                  LowerOptions& lower, Assumptions& assumptions) {
  lower.document_borders = request.settings.packing == Packing::kDocuments;
  if (!lower.document_borders) return;
  SetVisibleKeys(request.goal.data.visible_keys, model, gpu, lower);
  if (lower.visible_keys > 0) return;
  assumptions.notes.push_back(
      "Attention is timed as over whole rows (⟦packing⟧ documents), because the documents' lengths "
      "were not counted, as 'plan ⟦data⟧' does: shorter documents take less.");
}

void NoteStates(const TrainSetup& setup, Assumptions& assumptions) {
  const StatesKind states = StatesOf(setup.precision);
  if (states == StatesKind{}) return;
  assumptions.notes.push_back(fmt::format("Optimizer states: {}; {}.", StatesLabel(states),
                                          AccuracyText(states, setup.precision.dtype)));
}

void NoteKernels(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& lower,
                 const HardwareProfile& hardware, bool ordered_program, Assumptions& assumptions) {
  std::string note = AttentionNote(model, setup, lower, hardware.gpu, ordered_program);
  if (!note.empty()) assumptions.notes.push_back(std::move(note));
  if (!setup.deterministic || hardware.gpu.architecture == kCpuArchitecture) return;
  assumptions.notes.push_back(
      "⟦deterministic⟧: matrix products run by cuBLASLt's first suggestion, which need not be the "
      "fastest; the predicted time is that of the fastest.");
}

void AssumeSums(const Request& request, std::span<const TrainSetup> setups,
                Assumptions& assumptions) {
  if (request.settings.grad_accum_dtype || request.config.given()) return;
  int64_t most = 1;
  Dtype dtype = Dtype::kF32;
  for (const TrainSetup& setup : setups) {
    if (setup.batch.grad_accum <= most || DtypeBytes(setup.precision.grad_accum_dtype) > 2)
      continue;
    most = setup.batch.grad_accum;
    dtype = setup.precision.grad_accum_dtype;
  }
  if (most == 1) return;
  assumptions.assumed.push_back(
      fmt::format("⟦grad_accum_dtype⟧ {} (gradients of {} micro-steps are summed "
                  "in it)",
                  DtypeName(dtype), most));
}

void NoteIdleSums(std::span<const TrainSetup> setups, Assumptions& assumptions) {
  const bool idle = std::any_of(setups.begin(), setups.end(), [](const TrainSetup& setup) {
    return setup.precision.grad_accum_dtype != setup.precision.dtype && !Accumulates(setup) &&
           !GradsInPlace(setup) && !ReducesInFp32(setup);
  });
  if (!idle) return;
  assumptions.notes.push_back(
      "fp32 sums over micro-steps: with one micro-step stages 2 and 3 sum nothing, so that they "
      "take 2 more bytes a gradient and change nothing; ⟦grad_accum⟧ above 1 makes use of them, "
      "⟦communication_dtype⟧ fp32 sums over GPUs in fp32.");
}

void DropOwnNotes(const Request& request, Assumptions& assumptions) {
  std::erase_if(assumptions.notes, [&](const std::string& note) {
    return request.config.given() && note.starts_with(request.config.name());
  });
}

}  // namespace zeroplan
