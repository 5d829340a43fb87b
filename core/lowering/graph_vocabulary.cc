// The parts of a graph that know tokens: embedding, head and loss, and rows of single tokens.
#include <algorithm>

#include "core/base/error.h"
#include "core/lowering/graph_builder.h"
#include "core/model/lora.h"

namespace zeroplan {

// ---- embedding ----

Value GraphBuilder::Embedding(int tokens, int positions, Label label) {
  // Rows of a table of positions begin at the rank's own, which no launch says.
  ZEROPLAN_CHECK(positions == kNoParam || seq_ == whole_seq_,
                 "learned positions of sequences over ranks");
  const Value x_MC = Activation(label, batch_ * seq_, Tensor(tokens).shape[1]);
  if (decodes_) {
    emit_.Launch(
        KernelId::kEmbedToken, {x_MC.cols, program_.model.vocab}, kNoFlags,
        {Inputs(), Param(tokens), Param(positions), All(program_.state_buffer), All(x_MC)});
    return x_MC;
  }
  const int own = TokenRows(tokens);
  Ref rows_nC = own != kNoParam ? Param(own) : Ref{};
  if (own != kNoParam && positions != kNoParam) {
    // A kernel takes parameters of one unit, and positions are frozen: it gets a copy of the rows.
    const Value copy = Activation("token_rows", Out(own), x_MC.cols);
    emit_.Launch(KernelId::kConvert, {copy.rows * copy.cols}, kNoFlags, {rows_nC, All(copy)});
    rows_nC = All(copy);
  }
  emit_.Launch(KernelId::kEmbedForward, {batch_, seq_, x_MC.cols, program_.model.vocab}, kNoFlags,
               {Inputs(), Param(tokens), Param(positions), All(x_MC)}, Stream::kCompute, {},
               Starts());
  if (own != kNoParam) {
    emit_.Launch(
        KernelId::kEmbedRows, {batch_, seq_, x_MC.cols, Out(own)}, kNoFlags,
        {program_.row_places(program_.tokens_buffer), rows_nC, Param(positions), All(x_MC)},
        Stream::kCompute, {}, Starts());
  }
  return x_MC;
}

int GraphBuilder::TokenRows(int weight) const {
  const auto id = static_cast<size_t>(LoraTokensId(weight));
  const bool has = id < home_layer_.size() && home_layer_[id] != kNoHome;
  return has ? static_cast<int>(id) : kNoParam;
}

void GraphBuilder::EmbeddingBackward(int tokens, int positions, const Value& dx_MC) {
  CheckTogether(tokens, positions);
  if (const int own = TokenRows(tokens); own != kNoParam) {
    // The gradient of all positions, with a row behind the others for those that have none.
    const int64_t rows = Out(own), cols = dx_MC.cols;
    const BufferId all =
        AddActivation("d_token_rows", static_cast<uint64_t>((rows + 1) * cols), Dtype::kF32);
    program_.buffers[all].role = Role::kActivationGrad;
    emit_.Launch(KernelId::kFill, {static_cast<int64_t>(program_.buffers[all].bytes)}, kNoFlags,
                 {All(all)});
    emit_.Launch(KernelId::kEmbedBackward, {batch_, seq_, cols, rows + 1}, kNoFlags,
                 {program_.row_places(program_.tokens_buffer), All(dx_MC), All(all), Ref{}},
                 Stream::kCompute, {}, Starts());
    // A tied head's gradient is there already.
    const bool adds = Tensor(tokens).use == ParamUse::kHead;
    emit_.Launch(KernelId::kConvert, {rows * cols}, adds ? kAccumulate : kNoFlags,
                 {All(all).Part(0, static_cast<uint64_t>(rows * cols) * 4), Grad(own)});
  }
  if (!Trains(tokens)) return;
  const Ref dtokens_VpC = Grad(tokens);
  // The kernel adds to the rows of the tokens that there are; a head's gradient is there already.
  if (Tensor(tokens).use != ParamUse::kHead) {
    emit_.Launch(KernelId::kFill, {static_cast<int64_t>(dtokens_VpC.bytes)}, kNoFlags,
                 {dtokens_VpC});
  }
  // It writes the positions of a row alone.
  if (const Ref all = Grad(positions); !all.null()) {
    const uint64_t row = all.bytes / static_cast<uint64_t>(Tensor(positions).shape[0]);
    const uint64_t written = static_cast<uint64_t>(seq_) * row;
    if (written < all.bytes) {
      const Ref rest = all.Part(written, all.bytes - written);
      emit_.Launch(KernelId::kFill, {static_cast<int64_t>(rest.bytes)}, kNoFlags, {rest});
    }
  }
  emit_.Launch(KernelId::kEmbedBackward, {batch_, seq_, dx_MC.cols, program_.model.vocab}, kNoFlags,
               {Inputs(), All(dx_MC), dtokens_VpC, Grad(positions)}, Stream::kCompute, {},
               Starts());
}

// ---- head ----

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

void GraphBuilder::SwapColumns(const Ref& own_Rn, const Ref& logits_RVp, int64_t rows, int64_t n) {
  emit_.Launch(KernelId::kSwapColumns, {rows, n, program_.model.padded_vocab}, kNoFlags,
               {program_.head_tokens(program_.tokens_buffer), own_Rn, logits_RVp});
}

void GraphBuilder::OwnLogits(const Ref& y_RC, int own, const Ref& own_Rn, const Ref& logits_RVp,
                             int64_t rows) {
  const int64_t n = Out(own);
  emit_.Launch(KernelId::kMatmulForward, {rows, In(own), n}, Lies(own),
               {y_RC, Param(own), Ref{}, Ref{}, own_Rn});
  SwapColumns(own_Rn, logits_RVp, rows, n);
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
  // Tokens with rows of their own: their columns of the logits, then of the logits' gradient.
  const int own = TokenRows(head);
  const Value of_own = own != kNoParam ? Activation("token_logits", chunk, Out(own)) : Value{};
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
    const Ref own_Rn = own != kNoParam ? Rows(of_own, 0, rows) : Ref{};
    if (own != kNoParam) OwnLogits(y_RC, own, own_Rn, logits_RVp, rows);
    emit_.Launch(KernelId::kCrossEntropy, {rows, program_.model.vocab, padded_vocab},
                 train ? kNoFlags : kForwardOnly, {logits_RVp, targets_R, state, loss_R});
    if (!train) continue;
    emit_.Tag(Phase::kBackward, layer_);
    const uint8_t add = begin > 0 ? kAccumulate : kNoFlags;
    if (own != kNoParam) {  // those columns of the matrix itself have no gradient then
      emit_.Launch(KernelId::kFill, {static_cast<int64_t>(own_Rn.bytes)}, kNoFlags, {own_Rn});
      SwapColumns(own_Rn, logits_RVp, rows, Out(own));
      emit_.Launch(KernelId::kMatmulBackwardWeight, {rows, hidden, Out(own)},
                   static_cast<uint8_t>(Lies(own) | add), {y_RC, own_Rn, Grad(own), Ref{}});
    }
    if (Trains(head)) {
      emit_.Launch(KernelId::kMatmulBackwardWeight, dims, static_cast<uint8_t>(Lies(head) | add),
                   {y_RC, logits_RVp, Grad(head), Ref{}});
    }
    emit_.Launch(KernelId::kMatmulBackwardData, dims, Lies(head),
                 {logits_RVp, Param(head), Rows(dy_MC, begin, rows)});
    if (own != kNoParam) {
      emit_.Launch(KernelId::kMatmulBackwardData, {rows, hidden, Out(own)},
                   static_cast<uint8_t>(Lies(own) | kAccumulate),
                   {own_Rn, Param(own), Rows(dy_MC, begin, rows)});
    }
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
  ZEROPLAN_CHECK(TokenRows(head) == kNoParam, "single rows of tokens are merged to generate");
  const int64_t padded_vocab = Out(head);
  const BufferId logits = AddActivation("logits", static_cast<uint64_t>(padded_vocab), Dtype::kF32);
  emit_.Launch(KernelId::kMatmulForward, {1, y_1C.cols, padded_vocab}, Lies(head),
               {All(y_1C), Param(head), Ref{}, Ref{}, All(logits)});
  emit_.CopyTo(All(logits), All(logits_host));
}

}  // namespace zeroplan
