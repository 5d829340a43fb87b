// Linear modules with a LoRA adapter as PEFT 0.21 has them, over a frozen weight in 16 bit or, by
// bitsandbytes 0.50, in NF4: what they make, keep for backward and launch. Rows are data, counted
// from PEFT's own layers (benchmarks/peers/count_peft.py; a test holds them to
// tests/data/runtimes/peft_counts.jsonl).
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/runtimes/torch_code.h"

namespace zeroplan {

// Which adapters, beside what a model's spec says.
struct AdapterRun {
  // A and B are in fp32 and cast under autocast, as PEFT makes them; else in 16 bit.
  bool fp32 = false;
  // prepare_model_for_kbit_training has cast all that is not NF4 to fp32, and autocast is on: what
  // is between a layer's parts is fp32.
  bool kbit = false;

  // Of the product behind attention, whose input is in 16 bit at any rate.
  AdapterRun OfAttention() const { return {fp32, false}; }
};

// Words as CodePart has them, by stage: those of the base's product, of A, of B, and of their sum.
// Elements beside those: y of the output, b of A's output, w of the weight, z of its blocks of 64.
// Autograd adds gradients of one tensor in place, which the count does not show (a dispatch mode
// keeps it from doing so).
struct AdaptedLinear {
  std::string_view base, down, up, sum;                      // given i, makes o
  std::string_view sum_back, up_back, down_back, base_back;  // given g, makes d
  bool keeps_input = false;
  // Bytes that kernels move beside products and what makes a 16-bit weight of NF4.
  std::string_view forward_moves, backward_moves;
  int forward_launches = 0, backward_launches = 0;
};
const AdaptedLinear& AdaptedLinearOf(const AdapterRun& run, bool quantized, bool dropout);

// A linear in NF4 without an adapter.
struct QuantizedLinear {
  std::string_view forward, backward;
};
const QuantizedLinear& QuantizedLinearOf(const AdapterRun& run);

// To make a 16-bit weight of NF4 with double quantization: bytes that move, in kernels.
double DequantizedBytes(double weight_elements);
inline constexpr int kDequantizeLaunches = 3;
// What stands beside the codes of such a weight: 8-bit maxima of blocks of 64, their fp32 scales by
// 256, and tables; as many tensors.
inline constexpr int kQuantTensors = 5;
uint64_t QuantTensorBytes(uint64_t weight_elements, int tensor);

// `style` with frozen norms, and what k-bit training has cast to fp32.
const StyleCode& FrozenStyle(CodeStyle style, const AdapterRun& run, bool autocast);

}  // namespace zeroplan
