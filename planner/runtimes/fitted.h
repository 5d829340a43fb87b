// All constants of the runtimes' memory and time that cannot be counted from their code and were
// fitted to measured runs. docs/runtimes.md has the runs, and the errors if some are left out of
// the fit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"
#include "planner/footprint.h"
#include "planner/runtimes/run_errors.h"

namespace zeroplan {

// Errors against measured runs (docs/runtimes.md; a test compares them with the runs), as shares of
// the prediction (|measured / predicted - 1|): the largest of memory; the median and the largest of
// step times, each with constants fitted to the other models' runs.
struct RuntimeMargins {
  int runs;
  double allocated, reserved, device, host;
  int timed_runs;
  double time_median, time_worst;
  // Choices of plan --runtime that were run afterwards.
  int chosen_runs;
  double chosen_median, chosen_worst;
  // Runs of DeepSpeed's stage 3 with recompute and without offload; none of the times above
  // includes them. Their largest error with constants fitted to the other models' runs; the
  // smallest and the largest ratio of measured to predicted time.
  int recompute_runs = 0;
  double recompute_worst = 0, recompute_fastest = 0, recompute_slowest = 0;
  // The finding from published runs on several nodes (docs/cost-model.md, "Several nodes"), and the
  // largest error that it names; 0: none.
  std::string_view across_nodes;
  double across_nodes_worst = 0;
};
// The largest time error of runs with torchao's FP8 matmuls
// (tests/data/runtimes/float8_runs.jsonl), as a share of the prediction.
inline constexpr double kFloat8TimeWorst = 0.263;
// The finding for FSDP. It also applies to the parts that zeroplan's own executor has in common
// with FSDP.
inline constexpr std::string_view kFsdpAcrossNodes =
    "published runs of FSDP on 2 to 64 nodes took 2 % more or less than its model says in the "
    "median, 11 % more and 15 % less at most, beside the smallest run of the same work";
inline constexpr double kFsdpAcrossNodesWorst = 0.147;
// Steps of GPT-2 medium, stage 1, the optimizer on the host, not page-locked, on one H100: measured
// over predicted, less 1 (docs/performance.md, "Predicted and measured").
inline constexpr double kPageableOnce = 0.07, kPageableSummed = 0.44;
inline constexpr RuntimeMargins kDeepSpeedMargins{
    80,
    0.0428,
    0.0926,
    0.0884,
    0.0807,
    45,
    0.0442,
    0.184,
    30,
    0.0373,
    0.225,
    5,
    0.457,
    0.748,
    1.453,
    "published runs of its stage 3 on 24 to 280 nodes, of 2021 to 2023, took 0.95 to 3.0 times as "
    "long as predicted, of ZeRO++ on 24 nodes 1.0 to 1.2 times",
    2.0};
inline constexpr RuntimeMargins kFsdp2Margins{33,
                                              0.0037,
                                              0.0411,
                                              0.0985,
                                              0.0590,
                                              20,
                                              0.0526,
                                              0.107,
                                              13,
                                              0.0678,
                                              0.206,
                                              0,
                                              0,
                                              0,
                                              0,
                                              kFsdpAcrossNodes,
                                              kFsdpAcrossNodesWorst};

// Runs of transformers' Trainer on one H200, of all three runtimes, with its own code and Liger's
// and without adapters (tests/data/runtimes/trainer*_runs.jsonl); most are DDP's. The largest
// errors of memory; the median and the largest error of step times over the runs to which nothing
// was fitted.
inline constexpr RuntimeMargins kDdpMargins{.runs = 53,
                                            .allocated = 0.00129,
                                            .reserved = 0.117,
                                            .timed_runs = 16,
                                            .time_median = 0.0830,
                                            .time_worst = 0.225};

// From tests/fixtures/published_runs.jsonl, without runs of low trust and without the values of a
// run that are not judged.
inline constexpr PublishedMargin kPublishedMargins[] = {
    {"ddp", "NVIDIA A100 SXM 40 GB", "A100", "", {}, {1, 0.0658, 0.0658, 0.0658}},
    {"ddp",
     "NVIDIA A100 SXM 80 GB",
     "A100",
     "",
     {14, 0.0466, -0.0775, 0.1735},
     {9, 0.0198, 0.0022, 0.1073}},
    {"ddp",
     "NVIDIA GeForce RTX 4090",
     "RTX 4090",
     "",
     {5, 0.1254, -0.2131, 0.0677},
     {2, 0.1175, -0.0131, 0.1175}},
    {"ddp", "NVIDIA L40", "L40", "", {1, 0.1754, -0.1754, -0.1754}, {}},
    {"deepspeed", "NVIDIA A100 SXM 80 GB", "A100", "", {}, {3, 0.0325, -0.0494, 0.0325}},
    {"deepspeed",
     "NVIDIA B200 SXM",
     "B200",
     "",
     {8, 0.0137, -0.1931, 0.3756},
     {7, 0.0274, -0.0347, 0.1294}},
    {"deepspeed",
     "NVIDIA GeForce RTX 4090",
     "RTX 4090",
     "",
     {6, 0.1179, -0.0430, 0.7642},
     {},
     true},
    {"deepspeed",
     "NVIDIA H200 SXM",
     "H200",
     "",
     {8, 0.1125, -0.0460, 0.1833},
     {7, 0.0292, -0.0355, 0.1251}},
    {"deepspeed", "NVIDIA V100 SXM3 32 GB", "V100", "", {1, 0.0391, -0.0391, -0.0391}, {}},
    {"fsdp2",
     "NVIDIA A100 SXM 40 GB",
     "A100",
     "",
     {39, 0.0630, -0.0964, 0.2449},
     {1, 0.0931, 0.0931, 0.0931}},
    {"fsdp2",
     "NVIDIA A100 SXM 80 GB",
     "A100",
     "",
     {77, 0.0748, -0.0977, 0.3214},
     {10, 0.0857, -0.0942, 0.1321}},
    {"fsdp2", "NVIDIA GeForce RTX 4090", "RTX 4090", "", {9, 0.1166, -0.1933, -0.0194}, {}, true},
    {"fsdp2",
     "NVIDIA H100 96 GB, 500 W",
     "H100",
     "",
     {2, 0.1724, 0.1614, 0.1724},
     {2, 0.0658, -0.0055, 0.0658}},
    {"fsdp2", "NVIDIA H100 SXM", "H100", "", {35, 0.0261, -0.0547, 0.3231}, {}},
    // Programs whose kernels are about as fast as zeroplan's, against its own executor's prediction
    // (tests/data/scale/published_scale_runs.jsonl; tests/cost_models/published_runs_test.cc).
    {"zeroplan",
     "NVIDIA A100 SXM 80 GB",
     "A100",
     "llm.c and flash-attention's training",
     {3, 0.2161, 0.0316, 0.2869},
     {}},
    {"zeroplan", "NVIDIA GeForce RTX 4090", "RTX 4090", "LLM.Q", {3, 0.0918, -0.1101, -0.0708}, {}},
    {"zeroplan",
     "NVIDIA GeForce RTX 5060 Ti",
     "RTX 5060 Ti",
     "LLM.Q",
     {1, 0.1087, -0.1087, -0.1087},
     {}},
    {"zeroplan", "NVIDIA GeForce RTX 5090", "RTX 5090", "LLM.Q", {1, 0.0563, -0.0563, -0.0563}, {}},
    {"zeroplan", "NVIDIA H100 SXM", "H100", "LLM.Q", {8, 0.0191, -0.0361, 0.0018}, {}},
    {"zeroplan",
     "NVIDIA L40S",
     "L40S",
     "LLM.Q (its rate is fitted to them)",
     {5, 0.0276, -0.0603, 0.0477},
     {}},
    {"zeroplan",
     "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
     "RTX PRO 6000",
     "LLM.Q",
     {13, 0.0221, -0.0598, 0.0296},
     {}},
    {"zeroplan", "NVIDIA V100 SXM3 32 GB", "V100", "Megatron", {2, 0.2581, 0.2274, 0.2581}, {}},
};

// Constants of the runtimes' time that follow neither from their code nor from the machine's
// profile. They assume that the host's Python is as fast as on the hosts of the runs; one choice at
// stage 3 took 1.38 times as long on one of these hosts as on another. Unless marked as assumed,
// they were fitted to the timed runs of tests/data/runtimes; docs/runtimes.md explains how, and
// gives the errors if the runs of a group are left out.
struct TimeConstants {
  // Seconds of the Python thread. PyTorch:
  double launch = 13.3e-6;        // for an operation of eager code
  double compiled_launch = 5e-6;  // for a kernel of compiled code; assumed
  double graph = 776e-6;          // to enter a compiled layer, forward or backward
  double checkpoint = 1.2e-3;     // for a layer within torch.utils.checkpoint, eager
  double collective = 60e-6;      // to issue a collective; assumed
  double read_back = 20e-6;       // to read a number back from the GPU; assumed
  // PEFT: the forward pass of a linear with an adapter, in addition to `launch` for each of its
  // operations. bitsandbytes: a matmul with an NF4 weight, forward and backward. Set by hand to the
  // Trainer's runs of LoRA and QLoRA that wait for the Python thread.
  double adapter = 120e-6, four_bit_forward = 300e-6, four_bit_backward = 400e-6;
  // DeepSpeed, stages 1 and 2:
  double gradient_hook = 20e-6;        // for each gradient
  double offloaded_gradient = 300e-6;  // in addition, if it is copied to the host
  // DeepSpeed, stage 3:
  double module_hooks = 440e-6;          // for a module, forward or backward
  double module_graph = 465e-6;          // to enter a module, if it is compiled
  double gathered_param = 150e-6;        // for each gathered parameter, and twice for each gather
  double partitioned_gradient = 185e-6;  // for each gradient
  double offloaded_shard = 885e-6;       // in addition, if its shard is copied to the host
  // transformers' Trainer, after a micro-step's loss has been read (trainer.py, _run_epoch and
  // training_step: it counts FLOPs over all parameters, calls train() and zero_grad): for a
  // micro-step, and for each of the modules. Medians of transformers 5.24 on a CPU, with Llama
  // layers.
  double trainer_micro_step = 60e-6, trainer_module = 9.5e-6;
  // clip_grad_norm_ and a fused optimizer without DTensors, for each parameter; also a median of
  // transformers 5.24 on a CPU.
  double updated_param = 13e-6;
  // FSDP2: for a group's gather or reduction, set by hand to the runs of gpt2-large, gpt3-1.3b and
  // gpt2-xl that wait for it; for a parameter in clipping and update, assumed.
  double group_hook = 0.8e-3, dtensor = 20e-6;

  // Shares of the memory bandwidth that PyTorch's pointwise, norm and reduction kernels reach.
  double eager_memory = 0.67, compiled_memory = 0.95;
  // The speed of scaled_dot_product_attention relative to the profile's rates: equal. Runs with
  // older kernels are slower.
  double attention = 1;
  // The speed of matmuls and attention of transformers' models relative to the profile's rates,
  // which were measured on repeated random numbers: the kernels of seven profiled runs of its
  // Trainer on one H200 took 0.80 to 0.87 of the profile's times. Plain code was fitted with the
  // unchanged rates. Published runs on other GPUs (B200, RTX 4090) do not show this, so it applies
  // to H200s only.
  double transformers_products = 1.18;
  // Seconds of an operation of the eager code of transformers' models, from the Trainer's runs that
  // wait for Python: 22 to 26 us (qwen3-0.6b and llama3.2-1b, micro-batch 1). With Liger, whose
  // kernels Triton launches: set to the runs of qwen3-1.7b with FSDP2, which alone would give 80
  // us, and of llama3.2-1b with LoRA, 51 to 63 us.
  double transformers_launch = 25e-6, triton_launch = 55e-6;
  // The speed of matmuls with a width that 8 does not divide (a vocabulary of 50257) relative to
  // other matmuls, because their kernels use no aligned loads. From the three matmuls of
  // gpt2-large's head, profiled.
  double unaligned_products = 0.19;
  // TorchClock::Overlap's first_kernel, with NCCL as PyTorch starts it.
  double beside_collective = 0.39;
  // The share of the host's memory bandwidth under an Adam-shaped loop that DeepSpeed's CPU Adam
  // reaches, and the share that clip_grad_norm_ on the host reaches.
  double cpu_adam = 0.83, cpu_clip = 0.145;
};

// Resident set of Python with PyTorch and DeepSpeed, without tensors. The one row of stage 0: 1.7
// GiB. The rows of stages 1 and 2 without offload: 2.0 to 2.1. Before the first step less is
// loaded: the rows of stage 3 on several GPUs, whose shards pass through the host at that time, are
// 2.6 to 2.9 with shards of 1.2 to 1.55 GiB.
inline uint64_t HostBaseBytes(int stage, TorchPhase phase) {
  if (phase == TorchPhase::kInit) return 1'450'000'000;
  return stage == 0 ? 1'825'000'000 : 2'180'000'000;
}

// Device memory in use minus the allocator's reserved memory: CUDA context, modules, NCCL's
// buffers. The rows of one GPU: 1.68 to 1.75 GiB, except the four of gpt2-10b and those of 1.77 (up
// to 2.04). NCCL with several: 0.37 GiB where gradients are all-reduced (stages 0 to 2: 2.05 GiB in
// all), 0.08 at stage 3, which gathers and reduce-scatters (1.77 to 1.78). Ulysses on four H100s
// had 1.0 more, because NCCL's sends and receives have connections to each rank of the node that a
// rank `exchanges_with`. The connections of quantized gradients and of FSDP2's ring were not
// measured and are not counted.
inline uint64_t ContextBytes(int stage, int gpus, int exchanges_with) {
  const uint64_t nccl = gpus == 1 ? 0 : stage == 3 ? 85'000'000 : 385'000'000;
  return 1'815'000'000 + nccl + static_cast<uint64_t>(exchanges_with) * 360'000'000;
}

}  // namespace zeroplan
