// Sequences over ranks: heads for positions and back, by an all-to-all among the ranks that share
// sequences (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509).
#include "core/lowering/graph_builder.h"

namespace zeroplan {

KernelDims GraphBuilder::ExchangeDims(int64_t cols, int64_t output_cols) const {
  const ModelSpec& model = program_.model;
  const int64_t kv_heads = cols == output_cols ? 0 : model.KvHeads();
  return {batch_, seq_, model.heads, kv_heads, model.HeadSize(), whole_seq_ / seq_};
}

// Sequence by sequence, so that what comes from all ranks lies in the order of positions.
Value GraphBuilder::Exchange(const Value& parts, Label label) {
  const Value got = Activation(label, parts.rows, parts.cols);
  program_.buffers[got.buffer].role = program_.buffers[parts.buffer].role;
  std::vector<Segment> segments;
  const int64_t rows = parts.rows / batch_;
  for (int64_t b = 0; b < batch_; ++b) {
    segments.push_back({Rows(parts, b * rows, rows), Rows(got, b * rows, rows)});
  }
  emit_.Collect(CollectiveKind::kAllToAll, RankAxis::kSequence, dtype_, segments, Stream::kGather);
  return got;
}

Value GraphBuilder::ToHeads(const Value& x_MN, Label label, Role role) {
  if (seq_ == whole_seq_) return x_MN;
  const int64_t D = program_.model.HeadSize();
  const KernelDims dims = ExchangeDims(x_MN.cols, program_.model.heads * D);
  const int64_t cols = (heads_ + (dims[3] > 0 ? 2 * kv_heads_ : 0)) * D;
  const Value parts = Activation("exchange", batch_ * whole_seq_, cols);
  program_.buffers[parts.buffer].role = role;
  emit_.Launch(KernelId::kPackHeads, dims, kNoFlags, {All(x_MN), All(parts)});
  return Exchange(parts, label);
}

Value GraphBuilder::ToRows(const Value& x_MN, Label label, Role role) {
  if (seq_ == whole_seq_) return x_MN;
  const ModelSpec& model = program_.model;
  const Value parts = Exchange(x_MN, "exchange");
  const KernelDims dims = ExchangeDims(x_MN.cols, heads_ * model.HeadSize());
  const Value rows = Activation(label, batch_ * seq_, (dims[2] + 2 * dims[3]) * dims[4]);
  program_.buffers[rows.buffer].role = role;
  emit_.Launch(KernelId::kUnpackHeads, dims, kNoFlags, {All(parts), All(rows)});
  return rows;
}

}  // namespace zeroplan
