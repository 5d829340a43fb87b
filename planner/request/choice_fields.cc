// The fields that say how a model is trained: stage, groups, offload and recompute.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"

namespace zeroplan {

namespace {

// Whose file decides a field of a choice.
const std::vector<std::string_view> kPlanOrConfig = {"⟦plan⟧", "⟦config⟧"};

}  // namespace

void AddChoiceFields(FieldSink& sink, Request& request, bool all_default, bool searched) {
  const char* group = "ZeRO, offload and recompute";
  // Disks that nobody named are not searched.
  const std::string some = !all_default ? "; or some, such as none,cpu (default: chosen as plan "
                                          "does; none on the CPU)"
                           : searched ? "; or some, such as none,cpu (default none,cpu; all where "
                                        "a disk is named or measured)"
                                      : "; or some, such as none,cpu (default all)";
  const char* places = all_default ? "none|cpu|nvme|all" : "none|cpu|nvme";
  ChoiceFields& choice = request.choice;
  sink.Value(
      {group, "⟦stage⟧", all_default ? "0|1|2|3|all" : "0|1|2|3",
       std::string("0 replicates; 1 shards optimizer states, 2 gradients too, 3 parameters too; or "
                   "some, such as 2,3 ") +
           (all_default ? "(default all)" : "(default: chosen as plan does; 0 on the CPU)"),
       kPlanOrConfig},
      choice.stages, ParseStages);
  const std::string sharing =
      "GPUs that share each sequence, each with a part of its tokens and in attention with a part "
      "of the heads; a divisor of ⟦gpus⟧, ⟦seq_len⟧ and the query heads (⟦runtime⟧ fsdp2: a ring, "
      "with all heads; ⟦seq_len⟧ is a multiple of twice as many)";
  if (searched) {
    sink.Value({group, "⟦sequence_ranks⟧", "COUNT|auto",
                sharing + "; or some, such as 1,2,4, or auto for all that may (default 1; searched "
                          "where ⟦global_batch⟧ has fewer sequences than GPUs)",
                kPlanOrConfig},
               choice.sequence_ranks, ParseSequenceRanks);
  } else {
    sink.Value({group, "⟦sequence_ranks⟧", "COUNT", sharing + " (default 1)", kPlanOrConfig},
               choice.sequence_ranks, [](const std::string& text, std::string_view option) {
                 return std::vector{static_cast<int>(ParseWhole(text, option, 1, kMaxGpus))};
               });
  }
  const std::string groups_default = searched      ? "searched over several nodes, else all"
                                     : all_default ? "all"
                                                   : "chosen as plan does; all on the CPU";
  sink.Value({group, "⟦shard_group⟧", "COUNT|node|all",
              "GPUs that share what the stage shards, neighbours in rank order: a node's, a part "
              "or a multiple of these; the groups hold replicas (default " +
                  groups_default + ")",
              kPlanOrConfig},
             choice.shard_group, ParseShardGroup);
  sink.Value({group, "⟦across_groups⟧", "replicate|optimizer|gradients",
              std::string("What shard groups share all the same: nothing, optimizer states, or "
                          "gradients too (default ") +
                  (searched      ? "searched"
                   : all_default ? "replicate"
                                 : "chosen as plan does; replicate on the CPU") +
                  ")",
              kPlanOrConfig},
             choice.across_groups, OneOf(kAcrossWords));
  sink.Value({group, "⟦offload_optimizer⟧", places,
              "Where optimizer states live, from stage 1" + some, kPlanOrConfig},
             choice.offload_optimizer, ParseOffload);
  sink.Value({group, "⟦offload_ratio⟧", "RATIO",
              "Share of the optimizer on the CPU, above 0 and up to 1; the rest stays on the "
              "GPU (default " +
                  std::string(all_default ? searched ? "searched" : "1"
                                          : "chosen as plan does; 1 on the CPU backend") +
                  "; cpu only)",
              kPlanOrConfig},
             choice.offload_ratio, ParseRatio);
  sink.Value({group, "⟦offload_param⟧", places, "Where parameter shards live, stage 3" + some,
              kPlanOrConfig},
             choice.offload_param, ParseOffload);
  sink.Value({group, "⟦pin_memory⟧", "on|off",
              std::string("Whether what is offloaded is staged in page-locked memory, which is "
                          "faster (default ") +
                  (all_default && !searched ? "on)"
                                            : "on; where ⟦pinned_limit⟧ is known, the "
                                              "faster one that fits)"),
              kPlanOrConfig},
             choice.pin_memory, OneOf(kWords<PinMemory>));
  const bool trains = !all_default;
  sink.Value({group, "⟦checkpointing⟧",
              trains     ? "none|selective|products|full"
              : searched ? "none|selective|products|full|all|auto"
                         : "none|selective|products|full|all",
              std::string("Activations: keep all, or recompute norms, GELU and SwiGLU, or of each "
                          "layer all but attention, or whole layers, in the backward pass") +
                  (trains     ? " (default: chosen as plan does; none on the CPU)"
                   : searched ? "; auto finds the best of them, of mixes layer by layer and of "
                                "⟦offload_activations⟧ (default none, selective and full; auto "
                                "from 8192 tokens of a sequence on)"
                              : " (default none)"),
              kPlanOrConfig},
             choice.checkpointing, OneOf(kWords<Checkpointing>, searched ? 6 : 5));
  sink.Value({group, "⟦checkpoint_every⟧", "LAYERS",
              trains ? std::string("With ⟦checkpointing⟧ full: layers that are recomputed together "
                                   "(default: chosen as plan does; 1 on the CPU)")
                     : std::string("Layers that are recomputed together (default ") +
                           (searched ? "searched" : "1") + "; implies ⟦checkpointing⟧ full)",
              kPlanOrConfig},
             choice.checkpoint_every, WholeIn<int>(1, 65535));
  sink.Value({group, "⟦checkpoint_layers⟧", "LAYERS",
              "How many layers, from the first on, ⟦checkpointing⟧ selective, products or full is "
              "of (default all)",
              kPlanOrConfig},
             choice.checkpoint_layers, WholeIn<int>(1, 65535));
  sink.Value(
      {group, "⟦checkpointing_above⟧", "none|selective",
       "With ⟦checkpoint_layers⟧: the same of the layers above them (default none)", kPlanOrConfig},
      choice.checkpointing_above, OneOf(kAboveWords));
  sink.Flag(group, "⟦offload_activations⟧",
            "Move what layers keep for the backward pass to page-locked host memory until then; "
            "with a PyTorch ⟦runtime⟧ what checkpointed layers keep",
            request.runtime.offload_activations);
  sink.Value({group, "⟦offload_activation_layers⟧", "LAYERS",
              "Of how many layers, spread evenly (default all but the last, whose backward pass "
              "comes at once); implies ⟦offload_activations⟧",
              kPlanOrConfig},
             choice.offload_activation_layers, WholeIn<int>(1, 65535));
  FieldInfo config = {group, "⟦config⟧", "FILE",
                      searched ? "A DeepSpeed JSON config, or - for stdin: what it sets stays, "
                                 "what it leaves to \"auto\" is searched"
                               : "A DeepSpeed JSON config, or - for stdin: exactly this choice, "
                                 "instead of the options above"};
  config.decided_by = {"⟦plan⟧"};
  sink.Take({config, "", [&request](const std::string& text, std::string_view) {
               request.config = ConfigDocument::FromFile(text);
             }});
}

void CheckRecomputeFields(const Request& request) {
  const ChoiceFields& fields = request.choice;
  const Given<Checkpointing>& kind = fields.checkpointing;
  const auto is = [&](Checkpointing of) { return kind == of; };
  const bool whole =
      is(Checkpointing::kFull) || is(Checkpointing::kAll) || is(Checkpointing::kSearched);
  if (fields.checkpoint_every && kind && !whole) {
    ThrowUsage("⟦checkpoint_every⟧: {} has no effect with ⟦checkpointing⟧ {}; leave one out",
               fields.checkpoint_every.text, kind.text);
  }
  const bool one_kind =
      kind ? !is(Checkpointing::kNone) && !is(Checkpointing::kAll) && !is(Checkpointing::kSearched)
           : fields.checkpoint_every.has_value();
  if (fields.checkpoint_layers && !one_kind) {
    ThrowUsage(
        "⟦checkpoint_layers⟧: {} is not allowed with{} ⟦checkpointing⟧{}; use selective, products "
        "or full, which is of these layers then",
        fields.checkpoint_layers.text, kind ? "" : "out", kind ? " " + kind.text : "");
  }
  const Given<RecomputeKind>& above = fields.checkpointing_above;
  if (above && !fields.checkpoint_layers) {
    ThrowUsage(
        "⟦checkpointing_above⟧: {} has no effect without ⟦checkpoint_layers⟧, above which it is; "
        "add that, or leave it out",
        above.text);
  }
  if (above == RecomputeKind::kSelective && is(Checkpointing::kSelective)) {
    ThrowUsage(
        "⟦checkpointing_above⟧: selective is not allowed with ⟦checkpointing⟧ selective: all "
        "layers are; leave ⟦checkpoint_layers⟧ and ⟦checkpointing_above⟧ out");
  }
  const Runtime& runtime = request.runtime.of();
  if (fields.offload_activation_layers && !runtime.facts().offloads_by_layer) {
    ThrowUsage(
        "⟦offload_activation_layers⟧: {} is not allowed with ⟦runtime⟧ {}, which moves those of "
        "all layers or of none; use ⟦offload_activations⟧ alone, or ⟦runtime⟧ zeroplan",
        fields.offload_activation_layers.text, runtime.key());
  }
}

RecomputeConfig WithRecomputeFields(RecomputeConfig recompute, const Request& request,
                                    int64_t layers) {
  const ChoiceFields& fields = request.choice;
  recompute.layers = fields.checkpoint_layers.value_or(0);
  recompute.above = fields.checkpointing_above.value_or(RecomputeKind::kNone);
  const bool offloads = request.runtime.offload_activations || fields.offload_activation_layers;
  // Of another runtime it is a part of the recipe.
  if (offloads && request.runtime.of().facts().offloads_by_layer) {
    recompute.offload = {OffloadDevice::kCpu, fields.offload_activation_layers.value_or(0)};
  }
  return OfModel(recompute, layers);
}

}  // namespace zeroplan
