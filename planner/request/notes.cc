#include <fmt/format.h>

#include <algorithm>

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
                         bool documents = false) {
  AttentionLaunch launch;
  launch.dims = {setup.batch.micro_batch, tokens, model.heads, model.KvHeads(), model.HeadSize()};
  launch.dtype = setup.precision.dtype;
  launch.backward = backward;
  launch.compute_capability = ComputeCapability(gpu.architecture);
  launch.documents = documents;
  launch.deterministic = (backward || documents) && setup.deterministic;
  if (backward) {
    launch.workspace_bytes = AttentionWorkspaceBytes(launch.dims, ordered_program);
  }
  return launch;
}

// The longest sequence, in steps of 128 tokens, whose deterministic backward pass cuDNN supports.
int64_t LongestOrdered(const ModelSpec& model, const TrainSetup& setup, const GpuProfile& gpu) {
  int64_t tokens = setup.batch.seq_len / 128 * 128;
  while (tokens > 128 &&
         !AttentionPathOf(LaunchOf(model, setup, tokens, true, gpu, true)).fused()) {
    tokens -= 128;
  }
  return tokens;
}

constexpr const char* kWithoutDocuments = "Use ⟦packing⟧ off or stream.";

// The remedy, as a sentence.
std::string Fix(const ModelSpec& model, const TrainSetup& setup, const AttentionLaunch& launch,
                PlainReason reason, const GpuProfile& gpu, bool ordered_program) {
  const int64_t head = model.HeadSize();
  // There is no default, so that the compiler reports a new reason without a remedy.
  switch (reason) {
    case PlainReason::kNone:
      break;
    case PlainReason::kGpu:
      return "Use a GPU from Ampere on.";
    case PlainReason::kDtype:
      return fmt::format("Use ⟦dtype⟧ {}.", gpu.bf16 ? "bf16" : "fp16");
    case PlainReason::kHeadSteps:
      if (launch.documents) return kWithoutDocuments;
      if (head < 8) return "Use a model whose heads have 8 channels.";
      return fmt::format("Use a model whose heads have {} or {} channels.", head / 8 * 8,
                         head / 8 * 8 + 8);
    case PlainReason::kHeadSize:
      return fmt::format("Use a model whose heads have at most {} channels{}.",
                         MostFusedHead(launch.compute_capability, true),
                         head <= MostFusedHead(90, true) ? ", or a Hopper GPU" : "");
    case PlainReason::kLength:
      return "Use longer sequences.";
    case PlainReason::kWorkspace:
      if (!ordered_program) return "Plan again with ⟦deterministic⟧, or leave it out.";
      return fmt::format("Leave ⟦deterministic⟧ out, or use ⟦seq_len⟧ {} or less.",
                         LongestOrdered(model, setup, gpu));
    case PlainReason::kDocumentsGpu:
      return kWithoutDocuments;
    case PlainReason::kDocumentsOrdered:
      return "Leave ⟦deterministic⟧ out, or use ⟦packing⟧ off or stream.";
  }
  return "";
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

std::string PlainWithinDocuments(const ModelSpec& model, const TrainSetup& setup,
                                 const GpuProfile& gpu) {
  AttentionLaunch launch =
      LaunchOf(model, setup, setup.batch.seq_len, true, gpu, setup.deterministic);
  if (!AttentionPathOf(launch).fused()) return "";
  launch.documents = true;
  const AttentionPath path = AttentionPathOf(launch);
  return path.fused() ? "" : PlainReasonText(launch, path.plain);
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
    return LaunchOf(model, setup, tokens, backward, gpu, ordered_program, lower.document_borders);
  };
  const AttentionLaunch forward = launch_of(false), backward = launch_of(true);
  const AttentionPath forward_path = AttentionPathOf(forward);
  const AttentionPath backward_path = AttentionPathOf(backward);
  if (!forward_path.fused() || !backward_path.fused()) {
    const bool both = !forward_path.fused() && !backward_path.fused();
    const bool only_forward = backward_path.fused();
    const AttentionLaunch& launch = only_forward ? forward : backward;
    const PlainReason reason = only_forward ? forward_path.plain : backward_path.plain;
    const bool measured = gpu.architecture == "hopper";
    return fmt::format(
        "Attention{} runs on plain kernels, many times slower than cuDNN's: {}.{} {}",
        both           ? ""
        : only_forward ? "'s forward pass"
                       : "'s backward pass",
        PlainReasonText(launch, reason),
        measured ? "" : " Their predicted time is a guess, measured on an H200 alone.",
        Fix(model, setup, launch, reason, gpu, ordered_program));
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

void ApplyPacking(const Request& request, LowerOptions& lower, Assumptions& assumptions) {
  lower.document_borders = request.settings.packing == Packing::kDocuments;
  if (!lower.document_borders) return;
  assumptions.notes.push_back(
      "Attention is timed as over whole rows (⟦packing⟧ documents): within documents, less where "
      "they are long, more where they are a few dozen tokens.");
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
