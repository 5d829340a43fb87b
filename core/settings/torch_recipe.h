// The properties of a PyTorch program that a setup lacks: its modelling code, the parts that are
// compiled, the dtype of its parameters, and its optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/words.h"

namespace zeroplan {

// The parts of a model that run under torch.compile.
struct TorchCompile {
  bool layers = false, loss = false;
  bool operator==(const TorchCompile&) const = default;
};

// The origin of the modelling code. Rows of planner/runtimes/torch_code.cc hold the activations
// that each keeps for backward and the kernels that it launches. kPlain: unmodified PyTorch
// modules.
enum class CodeStyle : uint8_t { kPlain, kHf, kLiger, kComposer, kTorchtitan, kTorchtune };
template <>
inline constexpr WordTable<CodeStyle, 6> kWords<CodeStyle> = {
    {{"plain", CodeStyle::kPlain},
     {"hf", CodeStyle::kHf},
     {"liger", CodeStyle::kLiger},
     {"composer", CodeStyle::kComposer},
     {"torchtitan", CodeStyle::kTorchtitan},
     {"torchtune", CodeStyle::kTorchtune}}};

// The attention that the code calls. kSdpa: scaled_dot_product_attention, whose kernel depends on
// the GPU; kEager: matmuls and a softmax; kFlash: the package flash-attn; kTriton: FlashAttention
// in Triton of 2022 and 2023, llm-foundry's attn_impl triton.
enum class TorchAttention : uint8_t { kSdpa, kEager, kFlash, kTriton };
template <>
inline constexpr WordTable<TorchAttention, 4> kWords<TorchAttention> = {
    {{"sdpa", TorchAttention::kSdpa},
     {"eager", TorchAttention::kEager},
     {"flash", TorchAttention::kFlash},
     {"triton", TorchAttention::kTriton}}};

// Optimizers, named as in transformers (TrainingArguments.optim). kAdamWFused:
// torch.optim.AdamW(fused=True); kAdamW: its default, foreach; kAdamW8bit and the paged ones are
// bitsandbytes', kAdamWTorchao8bit torchao's AdamW8bit, kAdafactor transformers'.
enum class TorchOptimizer : uint8_t {
  kAdamWFused,
  kAdamW,
  kAdamW8bit,
  kPagedAdamW,
  kPagedAdamW8bit,
  kAdamWTorchao8bit,
  kAdafactor
};
template <>
inline constexpr WordTable<TorchOptimizer, 7> kWords<TorchOptimizer> = {
    {{"adamw_torch_fused", TorchOptimizer::kAdamWFused},
     {"adamw_torch", TorchOptimizer::kAdamW},
     {"adamw_bnb_8bit", TorchOptimizer::kAdamW8bit},
     {"paged_adamw_32bit", TorchOptimizer::kPagedAdamW},
     {"paged_adamw_8bit", TorchOptimizer::kPagedAdamW8bit},
     {"adamw_torch_8bit", TorchOptimizer::kAdamWTorchao8bit},
     {"adafactor", TorchOptimizer::kAdafactor}}};

// torchao's FP8 recipes (torchao.float8): one scale a tensor; the same, with FSDP2's gathers in FP8
// too (enable_fsdp_float8_all_gather); one scale a row.
enum class TorchFloat8 : uint8_t { kTensorwise, kTensorwiseGathers, kRowwise };
template <>
inline constexpr WordTable<TorchFloat8, 3> kWords<TorchFloat8> = {
    {{"tensorwise", TorchFloat8::kTensorwise},
     {"tensorwise-gathers", TorchFloat8::kTensorwiseGathers},
     {"rowwise", TorchFloat8::kRowwise}}};

// The parameters of a layer's experts. kFused: one for all experts, as in transformers 5. kModules:
// a linear module for each matrix of each expert, as in transformers 4. kLeaf: the same modules;
// DeepSpeed's stage 3 gathers all of a layer at once (deepspeed.utils.set_z3_leaf_modules).
enum class ExpertModules : uint8_t { kFused, kModules, kLeaf };
template <>
inline constexpr WordTable<ExpertModules, 3> kWords<ExpertModules> = {
    {{"fused", ExpertModules::kFused},
     {"modules", ExpertModules::kModules},
     {"leaf", ExpertModules::kLeaf}}};

// Names TorchRecipe::param_dtype.
inline constexpr WordTable<Dtype, 2> kParamDtypeWords = {
    {{"fp32", Dtype::kF32}, {"bf16", Dtype::kBF16}}};

// Names TorchRecipe::quant_storage.
inline constexpr WordTable<Dtype, 4> kQuantStorageWords = {
    {{"uint8", Dtype::kU8}, {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}, {"fp32", Dtype::kF32}}};

struct TorchRecipe {
  TorchCompile compile;
  CodeStyle code = CodeStyle::kPlain;
  TorchAttention attention = TorchAttention::kSdpa;
  // The dtype in which the optimizer holds parameters: kF32, or kBF16 ("pure bf16": no masters).
  // None: the program's default. DeepSpeed has keys for it instead.
  std::optional<Dtype> param_dtype;
  // None: the runtime's default (DeepSpeed's own Adam; adamw_torch_fused).
  std::optional<TorchOptimizer> optimizer;
  // Each parameter is updated in the backward pass, as soon as its gradient is complete.
  bool optimizer_in_backward = false;
  // QLoRA only: PEFT's prepare_model_for_kbit_training has cast all but the 4-bit weights to fp32.
  bool kbit = false;
  // QLoRA only: the dtype whose elements hold the packed 4-bit weights (bitsandbytes'
  // bnb_4bit_quant_storage). FSDP shards those in a floating dtype and leaves uint8 whole. None:
  // the compute dtype with FSDP2, else uint8.
  std::optional<Dtype> quant_storage;
  // The activations that checkpointed layers keep stay in page-locked host memory until backward
  // needs them.
  bool offload_activations = false;
  // DeepSpeed's TiledMLP runs MLPs in tiles of tokens.
  bool tiled_mlp = false;
  ExpertModules experts = ExpertModules::kFused;
  // The recipe of FP8 matmuls; none: kTensorwise.
  std::optional<TorchFloat8> float8;
  // PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
  bool expandable_segments = false;
  // The Trainer's argument of that name; none: its default.
  std::optional<int64_t> per_device_eval_batch_size;

  // The optimizer of programs that have none of their own.
  TorchOptimizer UsedOptimizer() const { return optimizer.value_or(TorchOptimizer::kAdamWFused); }
  bool operator==(const TorchRecipe&) const = default;
};

inline std::string_view CodeStyleName(CodeStyle code) { return WordOf(code); }
inline std::string_view TorchAttentionName(TorchAttention attention) { return WordOf(attention); }
inline std::string_view ExpertModulesName(ExpertModules experts) { return WordOf(experts); }
inline std::string_view TorchFloat8Name(TorchFloat8 float8) { return WordOf(float8); }
inline std::string_view TorchOptimizerName(TorchOptimizer optimizer) { return WordOf(optimizer); }

}  // namespace zeroplan
