// A user's program: the installed header and library, nothing else.
#include <zeroplan/zeroplan.h>

#include <cstdio>

namespace zp = zeroplan::v1;

int main() {
  try {
    const zp::Plan plan =
        zp::MakePlan({{"model", "gpt2"}, {"gpus", 2}, {"hw", "dgx-a100-40gb"}, {"quick", true}});
    std::printf("zeroplan %s: stage %d, %llu bytes a GPU, %.0f tokens/s\n", zp::Version().c_str(),
                plan.choice.stage, static_cast<unsigned long long>(plan.gpu_bytes.total),
                *plan.tokens_per_second);
    zp::MakePlan({{"model", "gpt2"}, {"gpus", 0}});
  } catch (const zp::Error& error) {
    std::printf("refused with %d: %s\n", error.exit_code(), error.what());
    return 0;
  }
  return 1;
}
