// --runtime of estimate and plan: memory and time as another program than zeroplan's own executor
// takes them; and what estimate prints of it.
#pragma once

#include <string>

#include "hwprofiles/profile.h"
#include "planner/request/request.h"
#include "planner/runtimes/runtime_estimate.h"

namespace zeroplan {

TorchCompile CompileOf(const RuntimeFields& options);

// Refuses what `runtime` does not model of the options that estimate and plan share; `asked`: the
// option that names it, "--runtime deepspeed".
void RefuseForRuntime(OtherRuntime runtime, const std::string& asked, const Request& common);
// Refuses keys of a config that change DeepSpeed's memory in ways that are not modelled.
void RefuseUnknownKeys(const std::string& file, const std::string& asked);
// Refuses models whose attention PyTorch has no fused kernel for.
void RefuseUnfusedAttention(const ModelSpec& model, Dtype dtype, const HardwareProfile& hardware,
                            const std::string& asked);

// Prints the estimate of the runtime that is asked for. REQUIRES: common.runtime.IsOther().
void RunRuntimeEstimate(const Request& common, bool json, const std::string& output);

}  // namespace zeroplan
