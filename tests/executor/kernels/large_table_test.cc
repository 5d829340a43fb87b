// Kernels of the CPU on a table past 2^31 elements, of which they touch a few rows: it is address
// space, with memory behind those rows alone. Legend: V rows of C columns.
#include <sys/mman.h>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

constexpr int64_t kTableRows = 1 << 18, kTableColumns = 8448;
static_assert(kTableRows * kTableColumns > int64_t{1} << 31);

class UntouchedTable {
 public:
  UntouchedTable()
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  ~UntouchedTable() { munmap(data_, kBytes); }
  UntouchedTable(const UntouchedTable&) = delete;
  UntouchedTable& operator=(const UntouchedTable&) = delete;

  KernelArg arg() const { return {data_, kBytes, Dtype::kBF16}; }
  double Get(int64_t row, int64_t column) const {
    return static_cast<double>(ReadScalar(Dtype::kBF16, data_, row * kTableColumns + column));
  }
  void Set(int64_t row, int64_t column, double value) {
    WriteScalar(Dtype::kBF16, data_, row * kTableColumns + column, static_cast<float>(value));
  }

 private:
  static constexpr uint64_t kBytes = 2ull * kTableRows * kTableColumns;
  void* data_;
};

TEST_CASE("a table past 2^31 elements: embeddings, their gradients and a row of it") {
  constexpr int64_t V = kTableRows, C = kTableColumns, kBorder = (int64_t{1} << 31) / C;
  const std::vector<int32_t> ids = {0, kBorder, kBorder + 1, V - 1};
  const auto T = static_cast<int64_t>(ids.size());
  UntouchedTable table;
  const auto value = [](int64_t row, int64_t column) {  // exact in bf16
    return static_cast<double>((row % 13 * 16 + column % 11) % 128 + 1);
  };
  for (const int32_t id : ids) {
    for (int64_t c = 0; c < C; ++c) table.Set(id, c, value(id, c));
  }
  Program program;
  ThreadPool pool(2);
  const KernelContext context{&program, 0, 7, &pool};
  const auto run = [&](KernelId id, const KernelDims& dims, const std::vector<KernelArg>& args) {
    CpuKernels().rows[static_cast<size_t>(id)]({id, 0, dims, args, context, UsualScalars(id)});
  };
  Tensor tokens = Tensor::Ints(ids), x(Dtype::kF32, T * C), row(Dtype::kF32, C);
  const auto check_row = [&](const Tensor& got, int64_t first, int64_t of) {
    for (int64_t c = 0; c < C; ++c) REQUIRE(got[first + c] == value(of, c));
  };

  run(KernelId::kEmbedForward, {1, T, C, V}, {tokens.arg(), table.arg(), {}, x.arg()});
  for (int64_t t = 0; t < T; ++t) check_row(x, t * C, ids[static_cast<size_t>(t)]);
  for (const int32_t id : ids) {
    StepState at;
    at.position = id;
    Tensor state = Tensor::State(at), token = Tensor::Ints({id});
    run(KernelId::kSelectRow, {C}, {table.arg(), state.arg(), row.arg()});
    check_row(row, 0, id);
    run(KernelId::kEmbedToken, {C, V}, {token.arg(), table.arg(), {}, state.arg(), row.arg()});
    check_row(row, 0, id);
  }

  // Adds each row to what is there: twice as much.
  run(KernelId::kEmbedBackward, {1, T, C, V}, {tokens.arg(), x.arg(), table.arg(), {}});
  for (const int32_t id : ids) {
    for (int64_t c = 0; c < C; ++c) REQUIRE(table.Get(id, c) == 2 * value(id, c));
  }
  CHECK(table.Get(1, 0) == 0);
}

}  // namespace
}  // namespace zeroplan::kernel_test
