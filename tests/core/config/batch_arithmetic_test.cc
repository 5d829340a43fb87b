#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

TEST_CASE("batch: every combination of open sizes, at 8 GPUs") {
  struct Case {
    std::optional<int64_t> global, micro, accum;
    int64_t want_micro, want_accum;  // 0: an error
    const char* message = "";
  };
  const std::optional<int64_t> open;
  const Case cases[] = {
      {open, open, open, 1, 1},
      {open, 4, open, 4, 1},
      {open, 4, 3, 4, 3},
      {open, open, 3, 0, 0, "gradient_accumulation_steps: 3 alone"},
      {64, open, open, 8, 1},
      {63, open, open, 0, 0, "train_batch_size: 63 is not a multiple of 8 GPUs = 8; use 56 or 64"},
      {4, open, open, 0, 0, "train_batch_size: 4 is not a multiple of 8 GPUs = 8; use 8"},
      {64, 2, open, 2, 4},
      {64, 3, open, 0, 0, "train_micro_batch_size_per_gpu 3 x 8 GPUs = 24; use 48 or 72"},
      {64, open, 2, 4, 2},
      {64, open, 3, 0, 0, "gradient_accumulation_steps 3 x 8 GPUs = 24"},
      {64, 4, 2, 4, 2},
      {65, 4, 2, 0, 0, "train_batch_size: 65 is not train_micro_batch_size_per_gpu 4 x"},
      {INT64_MAX, INT64_MAX / 2, open, 0, 0, "is not a multiple"},
      {INT64_MAX - 1, INT64_MAX, INT64_MAX, 0, 0, "is not train_micro"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.message);
    if (c.want_micro == 0) {
      CHECK_THROWS_WITH_AS(ResolveBatch({c.global, c.micro, c.accum}, 8, 1024, "f:1: "),
                           doctest::Contains(c.message), Error);
      continue;
    }
    const BatchSpec batch = ResolveBatch({c.global, c.micro, c.accum}, 8, 1024, "f:1: ");
    CHECK(batch.micro_batch == c.want_micro);
    CHECK(batch.grad_accum == c.want_accum);
    CHECK(batch.world_size == 8);
    CHECK(batch.seq_len == 1024);
    CHECK(batch.global_batch() == c.global.value_or(c.want_micro * c.want_accum * 8));
  }
  CHECK_THROWS_AS(ResolveBatch({}, 0, 1024, ""), Error);
}

}  // namespace
}  // namespace zeroplan
