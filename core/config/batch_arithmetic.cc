#include "core/config/batch_arithmetic.h"

#include <limits>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr int64_t kTooLarge = std::numeric_limits<int64_t>::max();

// a * b, or kTooLarge, which equals and divides no batch size.
int64_t SaturatedMul(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? kTooLarge : out;
}

// total / part, which must come out whole.
int64_t DivideBatch(int64_t total, int64_t part, const std::string& part_text,
                    const std::string& where) {
  if (part != kTooLarge && total % part == 0) return total / part;
  const int64_t below = total / part * part;
  ThrowUsage(
      "{}train_batch_size: {} is not a multiple of {} = {}; use {}{}, or change the other sizes",
      where, total, part_text, part, below > 0 ? fmt::format("{} or ", below) : std::string(),
      static_cast<uint64_t>(below) + static_cast<uint64_t>(part));
}

}  // namespace

BatchSpec ResolveBatch(const BatchSizes& sizes, int world_size, int64_t seq_len,
                       const std::string& where) {
  BatchSpec out;
  out.world_size = world_size;
  out.seq_len = seq_len;
  if (world_size < 1) {
    ThrowUsage("@@gpus: {} is not allowed; use a whole number of at least 1", world_size);
  }
  const auto& [global, micro, accum] = sizes;
  if (micro) out.micro_batch = *micro;
  if (accum) out.grad_accum = *accum;
  if (!global) {
    if (accum && !micro) {
      ThrowUsage(
          "{}gradient_accumulation_steps: {} alone gives no batch size; add "
          "train_micro_batch_size_per_gpu or train_batch_size",
          where, *accum);
    }
    return out;
  }
  const std::string ranks = fmt::format("{} GPUs", world_size);
  if (micro && accum) {
    const int64_t product = SaturatedMul(SaturatedMul(*micro, *accum), world_size);
    if (product == kTooLarge || product != *global) {
      ThrowUsage(
          "{}train_batch_size: {} is not train_micro_batch_size_per_gpu {} x "
          "gradient_accumulation_steps {} x {} = {}; change one of them, or leave one out",
          where, *global, *micro, *accum, ranks, product);
    }
  } else if (micro) {
    out.grad_accum =
        DivideBatch(*global, SaturatedMul(*micro, world_size),
                    fmt::format("train_micro_batch_size_per_gpu {} x {}", *micro, ranks), where);
  } else if (accum) {
    out.micro_batch =
        DivideBatch(*global, SaturatedMul(*accum, world_size),
                    fmt::format("gradient_accumulation_steps {} x {}", *accum, ranks), where);
  } else {
    out.micro_batch = DivideBatch(*global, world_size, ranks, where);
  }
  return out;
}

}  // namespace zeroplan
