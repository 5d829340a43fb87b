// The sections `cluster`, `lower` and `origin` of a plan file. Each struct has one list of its
// fields, which reader and writer share. (The model's list is core/model/model_fields.h.)
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "core/lowering/lower.h"
#include "planner/cluster.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

struct PlanField {
  const char* key;
  int64_t min = 0;        // for whole numbers
  bool nullable = false;  // for strings: empty is written as null
  bool optional = false;  // older files lack it: flags are then false, numbers 0, others null
  bool sparse = false;    // optional, and files lack it too where it is false or 0
};

// Calls visit(field, value); `T` is Cluster or const Cluster.
template <typename T, typename Visit>
  requires std::same_as<std::remove_const_t<T>, Cluster>
void ForEachField(T& c, Visit&& visit) {
  visit(PlanField{"hw"}, c.hardware);
  visit(PlanField{"gpu"}, c.gpu_name);
  visit(PlanField{.key = "network", .nullable = true}, c.network);
  visit(PlanField{.key = "intra_node_bandwidth", .nullable = true}, c.intra_node_bandwidth);
  visit(PlanField{.key = "nvme_drives", .min = 1, .optional = true}, c.nvme_drives);
  visit(PlanField{"gpus", 1}, c.gpus);
  visit(PlanField{"gpus_per_node", 1}, c.gpus_per_node);
  visit(PlanField{"gpu_capacity_bytes"}, c.gpu_capacity_bytes);
  visit(PlanField{"host_capacity_bytes"}, c.host_capacity_bytes);
  visit(PlanField{.key = "pinned_limit_bytes", .optional = true}, c.pinned_limit_bytes);
  visit(PlanField{"nvme_capacity_bytes"}, c.nvme_capacity_bytes);
  visit(PlanField{"runtime_bytes"}, c.runtime_bytes);
  visit(PlanField{"communicator_bytes"}, c.communicator_bytes);
  visit(PlanField{"gpu_reserve_bytes"}, c.gpu_reserve_bytes);
  visit(PlanField{"host_reserve_bytes"}, c.host_reserve_bytes);
}

// The same for LowerOptions; a plan's purpose is always training.
template <typename T, typename Visit>
  requires std::same_as<std::remove_const_t<T>, LowerOptions>
void ForEachField(T& lower, Visit&& visit) {
  visit(PlanField{"backend"}, lower.backend);
  visit(PlanField{"logits_chunk_bytes", 1}, lower.logits_chunk_bytes);
  visit(PlanField{"flash_attention"}, lower.flash_attention);
  visit(PlanField{"checkpoints"}, lower.checkpoints);
  visit(PlanField{.key = "async_save", .optional = true}, lower.async_save);
  visit(PlanField{.key = "document_borders", .optional = true}, lower.document_borders);
  visit(PlanField{.key = "own_documents", .optional = true, .sparse = true}, lower.own_documents);
  visit(PlanField{.key = "visible_keys", .optional = true, .sparse = true}, lower.visible_keys);
  visit(PlanField{"checkpoint_chunk_elements", 1}, lower.checkpoint_chunk_elements);
}

// The same for PlanOrigin, whose section may be missing.
template <typename T, typename Visit>
  requires std::same_as<std::remove_const_t<T>, PlanOrigin>
void ForEachField(T& origin, Visit&& visit) {
  visit(PlanField{.key = "model_folder", .nullable = true}, origin.model_folder);
  visit(PlanField{.key = "hw_file", .nullable = true}, origin.hw_file);
  visit(PlanField{.key = "config", .nullable = true}, origin.config);
}

// Keys of `predicted` and `search` that reader, writer and schema know by name.
inline constexpr const char* kPlanTraffic[] = {"comm_bytes_per_step", "pcie_bytes_per_step"};
inline constexpr const char* kPlanAxes[] = {"within", "across", "all"};
inline constexpr const char* kPlanStepSeconds[] = {"compute", "exposed_comm", "exposed_offload",
                                                   "optimizer", "total"};
inline constexpr const char* kPlanSearchCounts[] = {"candidates", "cut_by_memory", "cut_by_score",
                                                    "judged",     "left",          "lowered"};
// Keys of `interruptions`. A run reads only the first.
inline constexpr const char* kInterruptionKeys[] = {
    "rate_per_hour",      "interval_steps",  "interval_seconds",     "save_seconds",
    "whole_save_seconds", "restart_seconds", "lost_share",           "expected_seconds",
    "expected_gpu_hours", "expected_price",  "notice_needs_seconds", "fits_notice"};
// Top-level keys that `plan --format json` adds and a plan file lacks.
inline constexpr const char* kPlanReportKeys[] = {"gap",    "stages",  "claims",     "assumed",
                                                  "notes",  "run",     "checkpoint", "data",
                                                  "choice", "training"};

}  // namespace zeroplan
