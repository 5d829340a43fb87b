// Quantizes and dequantizes numbers for compare_nf4.py, by the CPU's kernel.
// Usage: nf4_blocks < fp32 > blocks
// Writes the blocks (core/base/nf4.h), then the numbers that they stand for in fp32, bf16 and fp16.
#include <cstdio>
#include <vector>

#include "executor/kernels/nf4.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {
namespace {

std::vector<char> Convert(ThreadPool& pool, std::vector<char>& from, Dtype from_dtype,
                          Dtype to_dtype, int64_t n) {
  std::vector<char> to(StoredBytes(to_dtype, static_cast<uint64_t>(n)));
  const KernelArg args[] = {{from.data(), from.size(), from_dtype},
                            {to.data(), to.size(), to_dtype}};
  const KernelContext context{.pool = &pool};
  CpuKernels().rows[static_cast<size_t>(KernelId::kConvert)](
      {KernelId::kConvert, 0, {n}, args, context});
  return to;
}

void Write(const std::vector<char>& bytes) { std::fwrite(bytes.data(), 1, bytes.size(), stdout); }

void Run() {
  std::vector<char> numbers;
  char buffer[1 << 16];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, stdin)) {
    numbers.insert(numbers.end(), buffer, buffer + got);
  }
  const auto n = static_cast<int64_t>(numbers.size() / sizeof(float));
  ThreadPool pool(2);
  std::vector<char> blocks = Convert(pool, numbers, Dtype::kF32, Dtype::kNf4, n);
  Write(blocks);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    Write(Convert(pool, blocks, Dtype::kNf4, dtype, n));
  }
}

}  // namespace
}  // namespace zeroplan

int main() { zeroplan::Run(); }
