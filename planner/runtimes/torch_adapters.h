// Linear modules with a LoRA adapter, as in PEFT 0.21, over a frozen weight in 16 bit or, by
// bitsandbytes 0.50, in NF4: the tensors that they allocate and keep for backward, and the kernels
// that they launch. Rows are data, counted from PEFT's own layers (benchmarks/peers/count_peft.py;
// a test compares them with tests/data/runtimes/peft_counts.jsonl).
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/runtimes/torch_code.h"

namespace zeroplan {

// Properties of adapters in addition to the model's spec.
struct AdapterRun {
  // A and B are in fp32 and cast under autocast, as PEFT makes them; else in 16 bit.
  bool fp32 = false;
  // prepare_model_for_kbit_training has cast all but NF4 weights to fp32, and autocast is on, so
  // tensors between a layer's parts are fp32.
  bool kbit = false;

  // The adapter of the matmul after attention, whose input is always in 16 bit.
  AdapterRun OfAttention() const { return {fp32, false}; }
};

// Words as in CodePart, by stage: of the base's matmul, of A, of B, and of their sum. Further
// elements: y of the output, b of A's output, w of the weight, z of its blocks of 64. Autograd adds
// gradients of one tensor in place. The count does not show that, because a dispatch mode prevents
// it.
struct AdaptedLinear {
  std::string_view base, down, up, sum;                      // given i, makes o
  std::string_view sum_back, up_back, down_back, base_back;  // given g, makes d
  bool keeps_input = false;
  // Bytes that kernels move, without matmuls and dequantization of NF4.
  std::string_view forward_moves, backward_moves;
  int forward_launches = 0, backward_launches = 0;
};
const AdaptedLinear& AdaptedLinearOf(const AdapterRun& run, bool quantized, bool dropout);

// A linear in NF4 without an adapter.
struct QuantizedLinear {
  std::string_view forward, backward;
};
const QuantizedLinear& QuantizedLinearOf(const AdapterRun& run);

// Bytes that the kernels move that dequantize an NF4 weight with double quantization to 16 bit.
double DequantizedBytes(double weight_elements);
inline constexpr int kDequantizeLaunches = 3;
// The number of tensors that such a weight has in addition to its codes: 8-bit maxima of blocks of
// 64, fp32 scales for 256 of the maxima, and tables.
inline constexpr int kQuantTensors = 5;
uint64_t QuantTensorBytes(uint64_t weight_elements, int tensor);

// `style` with frozen norms, and with the parts that k-bit training has cast to fp32.
const StyleCode& FrozenStyle(CodeStyle style, const AdapterRun& run, bool autocast);

}  // namespace zeroplan
