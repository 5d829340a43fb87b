// The GraphBuilder's head: logits, loss and their gradients by chunks of rows, logits of one row.
#include <algorithm>

#include "core/lowering/graph_builder.h"

namespace zeroplan {
namespace {

// Rows of a chunk of logits: as few chunks as `most_rows` allows, of equal size but for the last,
// and that in whole tiles of the head's products where it fits.
int64_t LogitsChunkRows(int64_t rows, int64_t most_rows) {
  constexpr int64_t kTileRows = 128;
  const int64_t chunks = (rows + most_rows - 1) / most_rows;
  const int64_t equal = (rows + chunks - 1) / chunks;
  const int64_t tiled = (equal + kTileRows - 1) / kTileRows * kTileRows;
  return tiled <= most_rows ? tiled : equal;
}

int64_t LogitsChunkRows(int64_t rows, uint64_t row_bytes, uint64_t chunk_bytes) {
  return LogitsChunkRows(
      rows, std::clamp<int64_t>(static_cast<int64_t>(chunk_bytes / row_bytes), 1, rows));
}

}  // namespace

uint64_t LogitsChunkBytes(const ModelSpec& model, Dtype dtype, int64_t rows,
                          const LowerOptions& options) {
  const uint64_t row_bytes = static_cast<uint64_t>(model.padded_vocab) * DtypeBytes(dtype);
  return row_bytes *
         static_cast<uint64_t>(LogitsChunkRows(rows, row_bytes, options.logits_chunk_bytes));
}

Ref GraphBuilder::Rows(const Value& value, int64_t begin, int64_t rows) const {
  const uint64_t row_bytes = static_cast<uint64_t>(value.cols) * DtypeBytes(dtype_);
  return {value.buffer, static_cast<uint64_t>(begin) * row_bytes,
          static_cast<uint64_t>(rows) * row_bytes, 0};
}

Value GraphBuilder::HeadLoss(const Value& y_MC, int head, bool train) {
  const int64_t all_rows = y_MC.rows, hidden = In(head), padded_vocab = Out(head);
  const auto row_bytes = static_cast<uint64_t>(padded_vocab) * DtypeBytes(dtype_);
  const int64_t chunk = LogitsChunkRows(all_rows, row_bytes, logits_chunk_bytes_);
  const Value logits{AddBuffer(program_, "logits", Role::kLogits, dtype_,
                               static_cast<uint64_t>(chunk) * row_bytes),
                     chunk, padded_vocab};
  const BufferId loss =
      AddBuffer(program_, "loss", Role::kLoss, Dtype::kF32, static_cast<uint64_t>(all_rows) * 4);
  for (BufferId id : {logits.buffer, loss}) {
    program_.buffers[id].memory_class = MemoryClass::kActivations;
  }
  const Value dy_MC = train ? Gradient("d_ln_f", hidden) : Value{};
  const Ref state = All(program_.state_buffer);
  for (int64_t begin = 0; begin < all_rows; begin += chunk) {
    const int64_t rows = std::min(chunk, all_rows - begin);
    const auto ubegin = static_cast<uint64_t>(begin), urows = static_cast<uint64_t>(rows);
    const Ref y_RC = Rows(y_MC, begin, rows), logits_RVp = Rows(logits, 0, rows);
    const Ref targets_R{program_.tokens_buffer, static_cast<uint64_t>(all_rows + begin) * 4,
                        urows * 4, 0};
    const Ref loss_R{loss, ubegin * 4, urows * 4, 0};
    const KernelDims dims = {rows, hidden, padded_vocab};
    emit_.Tag(Phase::kForward, layer_);
    emit_.Launch(KernelId::kMatmulForward, dims, Lies(head),
                 {y_RC, Param(head), Ref{}, Ref{}, logits_RVp});
    emit_.Launch(KernelId::kCrossEntropy, {rows, program_.model.vocab, padded_vocab},
                 train ? kNoFlags : kForwardOnly, {logits_RVp, targets_R, state, loss_R});
    if (!train) continue;
    emit_.Tag(Phase::kBackward, layer_);
    const uint8_t add = begin > 0 ? kAccumulate : kNoFlags;
    if (Trains(head)) {
      emit_.Launch(KernelId::kMatmulBackwardWeight, dims, static_cast<uint8_t>(Lies(head) | add),
                   {y_RC, logits_RVp, Grad(head), Ref{}});
    }
    emit_.Launch(KernelId::kMatmulBackwardData, dims, Lies(head),
                 {logits_RVp, Param(head), Rows(dy_MC, begin, rows)});
  }
  const bool sums = train && program_.setup.batch.grad_accum > 1;
  emit_.Tag(Phase::kForward, layer_, sums ? kWritesGrads : kEvery);
  emit_.Launch(KernelId::kLossReduce, {all_rows}, kNoFlags, {All(loss), state});
  if (sums) {
    emit_.When(kAddsGrads)
        .Launch(KernelId::kLossReduce, {all_rows}, kAccumulate, {All(loss), state});
  }
  At(phase_, layer_);
  return dy_MC;
}

Value GraphBuilder::SelectRow(const Value& x_MC, Label label) {
  const Value row_1C = Activation(label, 1, x_MC.cols);
  emit_.Launch(KernelId::kSelectRow, {x_MC.cols}, kNoFlags,
               {All(x_MC), All(program_.state_buffer), All(row_1C)});
  return row_1C;
}

void GraphBuilder::RowLogits(const Value& y_1C, int head, BufferId logits_host) {
  const int64_t padded_vocab = Out(head);
  const BufferId logits = AddActivation("logits", static_cast<uint64_t>(padded_vocab), Dtype::kF32);
  emit_.Launch(KernelId::kMatmulForward, {1, y_1C.cols, padded_vocab}, Lies(head),
               {All(y_1C), Param(head), Ref{}, Ref{}, All(logits)});
  emit_.CopyTo(All(logits), All(logits_host));
}

}  // namespace zeroplan
