// How much more GPU memory DeepSpeed takes than zeroplan for the same choice.
#pragma once

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/search/search.h"

namespace zeroplan {

// GPU memory that DeepSpeed 0.19.6 may use beyond zeroplan's planned total: an upper limit of what
// 20 measured runs of GPT-2 models used (tests/planner/plan/deepspeed_headroom_test.cc holds them).
// A PyTorch model keeps fp32 logits, their gradient and copies, 20 bytes a logit; its allocator and
// DeepSpeed's buffers grow with the parameters, most while stages up to 2 initialise.
ExtraMemory DeepSpeedExtraMemory(const ModelSpec& model, const TrainSetup& setup);

}  // namespace zeroplan
