#include "planner/runtimes/torch_adapters.h"

#include <string>

namespace zeroplan {
namespace {

// torch.nn.Linear, then `result = result + lora_B(lora_A(dropout(x))) * scaling` of
// peft/tuners/lora/layer.py: x in the dtype of A, which autocast casts back.
constexpr std::string_view kProduct = "a2y";
constexpr std::string_view kSum = "s2y -r o2y -s -a", kSumBack = "k2y";
constexpr std::string_view kUp = "r2y", kUpBack = "m2b -k -e W";

constexpr AdaptedLinear kAdapted16 = {.base = kProduct,
                                      .down = "e2b",
                                      .up = kUp,
                                      .sum = kSum,
                                      .sum_back = kSumBack,
                                      .up_back = kUpBack,
                                      .down_back = "n2e -m W",
                                      .base_back = "p2e -p d:n",
                                      .keeps_input = true,
                                      .forward_moves = "10y",
                                      .backward_moves = "6e 4y",
                                      .forward_launches = 2,
                                      .backward_launches = 2};
constexpr AdaptedLinear kAdapted16Dropout = {.base = kProduct,
                                             .down = "b2e c1e e2b",
                                             .up = kUp,
                                             .sum = kSum,
                                             .sum_back = kSumBack,
                                             .up_back = kUpBack,
                                             .down_back = "n2e -m -b W t2e -n -c",
                                             .base_back = "p2e -p d:t",
                                             .forward_moves = "5e 10y",
                                             .backward_moves = "11e 4y",
                                             .forward_launches = 3,
                                             .backward_launches = 3};
constexpr AdaptedLinear kAdapted32 = {.base = kProduct,
                                      .down = "h4e b2e e2b",
                                      .up = kUp,
                                      .sum = "s2y -r o2y -s -a -h",
                                      .sum_back = kSumBack,
                                      .up_back = kUpBack,
                                      .down_back = "n2e -m -b t4e -n W u2e -t",
                                      .base_back = "p2e -p d:u",
                                      .forward_moves = "12e 10y",
                                      .backward_moves = "18e 4y",
                                      .forward_launches = 4,
                                      .backward_launches = 4};
constexpr AdaptedLinear kAdapted32Dropout = {.base = kProduct,
                                             .down = "h4e f4e c1e b2e e2b -f",
                                             .up = kUp,
                                             .sum = "s2y -r o2y -s -a -h",
                                             .sum_back = kSumBack,
                                             .up_back = kUpBack,
                                             .down_back = "n2e -m -b t4e -n W u4e -t -c v2e -u",
                                             .base_back = "p2e -p d:v",
                                             .forward_moves = "21e 10y",
                                             .backward_moves = "27e 4y",
                                             .forward_launches = 5,
                                             .backward_launches = 5};

// Linear4bit of peft/tuners/lora/bnb.py: the result is cloned, and under autocast x stays as it is.
// On a GPU the weight is made in 16 bit, forward and again backward, and multiplied with
// (bitsandbytes/backends/cuda/ops.py, _dequant_linear_fallback; autograd/_functions.py).
constexpr std::string_view kProduct4 = "x4z v4z z2w f2y -x -v -z a2y -f";

constexpr AdaptedLinear WithNf4(AdaptedLinear row, std::string_view base_back) {
  row.base = kProduct4;
  row.base_back = base_back;
  return row;
}
constexpr AdaptedLinear WithClone(AdaptedLinear row) {
  ++row.forward_launches;
  row.forward_moves = row.keeps_input ? "14y" : "5e 14y";
  return row;
}
constexpr AdaptedLinear kQuantized16 = WithClone(WithNf4(kAdapted16, "x4z z2w p2e -x -z -p d:n"));
constexpr AdaptedLinear kQuantized16Dropout =
    WithClone(WithNf4(kAdapted16Dropout, "x4z z2w p2e -x -z -p d:t"));

// x and the result are fp32.
constexpr std::string_view kProductKbit = "j2e x4z v4z z2w f2y -x -v -z l4y -f -j a4y -l";
constexpr std::string_view kSumKbit = "s2y -r o4y -s -a";
constexpr std::string_view kSumBackKbit = "l2y k2y -l";
constexpr AdaptedLinear kQuantizedKbit = {.base = kProductKbit,
                                          .down = "b2e e2b",
                                          .up = kUp,
                                          .sum = kSumKbit,
                                          .sum_back = kSumBackKbit,
                                          .up_back = kUpBack,
                                          .down_back = "n2e -m -b t4e -n W",
                                          .base_back = "l2y x4z z2w p2e -x -z -l u4e -p -u d:t",
                                          .forward_moves = "12e 28y",
                                          .backward_moves = "24e 16y",
                                          .forward_launches = 6,
                                          .backward_launches = 6};
constexpr AdaptedLinear kQuantizedKbitDropout = {
    .base = kProductKbit,
    .down = "f4e c1e b2e e2b -f",
    .up = kUp,
    .sum = kSumKbit,
    .sum_back = kSumBackKbit,
    .up_back = kUpBack,
    .down_back = "n2e -m -b t4e -n W u4e -t -c",
    .base_back = "l2y x4z z2w p2e -x -z -l v4e -p -v d:u",
    .forward_moves = "21e 28y",
    .backward_moves = "33e 16y",
    .forward_launches = 7,
    .backward_launches = 7};

constexpr QuantizedLinear kQuantized = {"x4z v4z z2w o2y -x -v -z", "x4z z2w d2e -x -z"};
constexpr QuantizedLinear kQuantizedFp32 = {"j2e x4z v4z z2w f2y -x -v -z o4y -f -j",
                                            "l2y x4z z2w p2e -x -z -l d4e -p"};

// ---- transformers 5.24, whose norms are operations of their own ----

constexpr CodePart kFrozenHfNorm = {
    "a4e b4e -b c4e e2e o2e -e -c -i",
    "f2e -g h4e -f k4e m4e -k -h n4e p4e q4e r4e -q -p -n -a s4e -m -r d2e -s",
    "36e",
    "84e",
    8,
    14};
constexpr CodePart kFrozenHfNormFp32 = {
    "a4e -a b4e o4e -b =i",
    "c4e -g e4e f4e -e -c h4e k4e m4e n4e -m -k -h -i d4e -f -n",
    "28e",
    "76e",
    6,
    12};

StyleCode FrozenHf(bool autocast) {
  StyleCode style = StyleCodeOf(CodeStyle::kHf, /*fp32_params=*/false, autocast);
  style.rms_norm = style.head_norm = kFrozenHfNorm;
  return style;
}

// Products give what they are given, fp32.
StyleCode KbitHf() {
  StyleCode style = StyleCodeOf(CodeStyle::kHf, /*fp32_params=*/true);
  style.rms_norm = style.head_norm = kFrozenHfNormFp32;
  style.gated = {"a4e o4e =i =j", "D4e b4e -g -j -a d4e -b -i", "20e", "36e", 2, 3};
  style.rotary = {
      "c4e e2e f4e -e h4e -f k4e -c -h m4k n2k p4k -n q4k -p r4k -m -q -i -j o2e O2k -k -r",
      "s4k -G t4e -g u4k v2k w4k -v x4k -u y4k -w -x z4k -s D4k -y -z A4e B2e C4e -B E4e -A F4e -C "
      "-E I4e -t d4e -F -I",
      "46e 46k",
      "62e 62k",
      12,
      16};
  style.add = {"o4e -i -j", "d:g D:g", "12e", "", 1, 0};
  // Values are cast to 16 bit, and their gradients back.
  style.flash.forward = "m2k -l l:m o2e b4n =i =j =l";
  static const std::string backward = std::string(style.flash.backward) + " N4k -M M:N";
  style.flash.backward = backward;
  return style;
}

}  // namespace

const StyleCode& FrozenStyle(CodeStyle style, const AdapterRun& run, bool autocast) {
  static const StyleCode plain = FrozenHf(false), cast = FrozenHf(true), kbit = KbitHf();
  if (style != CodeStyle::kHf) return StyleCodeOf(style, run.kbit, autocast);
  return run.kbit ? kbit : autocast ? cast : plain;
}

const AdaptedLinear& AdaptedLinearOf(const AdapterRun& run, bool quantized, bool dropout) {
  if (quantized && run.kbit) return dropout ? kQuantizedKbitDropout : kQuantizedKbit;
  if (quantized) return dropout ? kQuantized16Dropout : kQuantized16;
  if (run.fp32) return dropout ? kAdapted32Dropout : kAdapted32;
  return dropout ? kAdapted16Dropout : kAdapted16;
}

const QuantizedLinear& QuantizedLinearOf(const AdapterRun& run) {
  return run.kbit ? kQuantizedFp32 : kQuantized;
}

// Codes are read and a 16-bit weight written; of a block its maximum is read, made fp32, the mean
// added, and read again.
double DequantizedBytes(double weight_elements) {
  return weight_elements * (0.5 + 2 + (1 + 4 + 8 + 4) / 64.0);
}

uint64_t QuantTensorBytes(uint64_t weight_elements, int tensor) {
  const uint64_t blocks = (weight_elements + 63) / 64;
  const uint64_t bytes[kQuantTensors] = {blocks, 4 * ((blocks + 255) / 256), 4 * 256, 4 * 16, 4};
  return bytes[tensor];
}

}  // namespace zeroplan
