#include "planner/runtimes/torch_kernels.h"

namespace zeroplan {
namespace {

double Value(const std::optional<Figure>& figure, double otherwise) {
  return figure ? figure->value : otherwise;
}

}  // namespace

TorchMachine::TorchMachine(const HardwareProfile& profile, const ClusterShape& cluster)
    : shape(cluster),
      power(profile.gpu),
      gemm(profile.gpu),
      attention(profile.gpu, gemm),
      memory(profile.gpu),
      collectives(profile, cluster),
      transfers(profile, cluster.ranks_per_node()),
      compute_beside_collective(Value(profile.node.overlapped_compute, 1)),
      collective_beside_compute(Value(profile.node.overlapped_collective, 0.66)) {
  const auto& node = profile.node;
  const double known = Value(node.adam_bandwidth, Value(node.triad_bandwidth, 0));
  host_bytes_per_second = known / cluster.ranks_per_node();
}

std::string TorchMachineLacks(const HardwareProfile& profile, const ClusterShape& cluster) {
  if (cluster.nodes() > 1 && !profile.network) return "network.bandwidth_per_node";
  return "";
}

TorchKernels::TorchKernels(const TorchModel& model, const TorchRun& run, Dtype dtype,
                           const TorchMachine& machine, const TimeConstants& constants)
    : run_(run),
      dtype_(dtype),
      machine_(machine),
      constants_(constants),
      tokens_(run.micro_batch * run.seq_len) {
  AddLayer(model);
  AddEnds(model);
}

TorchWork TorchKernels::Memory(double bytes, int launches, bool compiled) const {
  const double share = compiled ? constants_.compiled_memory : constants_.eager_memory;
  if (launches == 0) return {};
  const double seconds = launches * machine_.memory.Seconds(bytes / launches / share);
  return {machine_.power.Memory(seconds, bytes), launches};
}

void TorchKernels::AddMemory(TorchOp op, double forward_bytes, int forward_launches,
                             double backward_bytes, int backward_launches, bool compiled) {
  forward_[static_cast<size_t>(op)] += Memory(forward_bytes, forward_launches, compiled);
  backward_[static_cast<size_t>(op)] += Memory(backward_bytes, backward_launches, compiled);
}

void TorchKernels::AddProduct(TorchOp op, int64_t k, int64_t n, bool bias) {
  const auto product = [&](GemmKind kind) {
    const double m = static_cast<double>(tokens_), depth = static_cast<double>(k),
                 columns = static_cast<double>(n);
    const double flops = 2 * m * depth * columns;
    const double bytes = 2 * (m * depth + depth * columns + m * columns);
    const double seconds = machine_.gemm.Seconds(kind, dtype_, tokens_, k, n);
    return TorchWork{machine_.power.Product(seconds, flops, bytes), 1};
  };
  forward_[static_cast<size_t>(op)] += product(GemmKind::kForward);
  TorchWork& back = backward_[static_cast<size_t>(op)];
  back += product(GemmKind::kData);
  back += product(GemmKind::kWeight);
  if (bias) back += Memory(2 * static_cast<double>(tokens_ * n), 1, run_.compiled);
}

void TorchKernels::AddLayer(const TorchModel& model) {
  const ModelSpec& spec = model.spec;
  const int64_t hidden = spec.hidden, ffn = spec.ffn, head = spec.HeadSize();
  const int64_t q_columns = spec.heads * head, kv_columns = spec.KvHeads() * head;
  const auto tokens = static_cast<double>(tokens_);
  const double rows = tokens * static_cast<double>(hidden);  // elements of the residual stream
  const double wide = tokens * static_cast<double>(ffn);
  const double qkv = tokens * static_cast<double>(q_columns + 2 * kv_columns);
  const double qk = tokens * static_cast<double>(q_columns + kv_columns);
  // Within stage 3 every module is compiled by itself: nothing is fused across modules.
  const bool compiled = run_.compiled, fused = compiled && !run_.module_graphs;
  const bool bias = model.code.all_biased;

  // Norms: one kernel forward; backward one for the input, one for the weights, which read the
  // gradient and the input. Fused: the addition before the norm and its gradient's after it.
  AddMemory(TorchOp::kNorm1, 4 * rows, 1, fused ? 12 * rows : 10 * rows, 2, compiled);
  AddMemory(TorchOp::kNorm2, fused ? 8 * rows : 4 * rows, 1, fused ? 12 * rows : 10 * rows, 2,
            compiled);
  if (!fused) AddMemory(TorchOp::kAdd1, 6 * rows, 1, 6 * rows, 1, compiled);
  AddMemory(TorchOp::kAdd2, 6 * rows, 1, fused ? 0 : 6 * rows, fused ? 0 : 1, compiled);

  if (model.code.one_qkv) {
    AddProduct(TorchOp::kQkv, hidden, q_columns + 2 * kv_columns, bias);
    // Gradients of three views of one product are stacked, then laid as the product has them.
    AddMemory(TorchOp::kAttention, 0, 0, fused ? 4 * qkv : 8 * qkv, fused ? 1 : 2, compiled);
  } else {
    AddProduct(TorchOp::kQkv, hidden, q_columns, bias);
    AddProduct(TorchOp::kKey, hidden, kv_columns, bias);
    // rope: halves negated, joined, two products and a sum, for queries and keys; the gradients of
    // each again. Compiled: one kernel.
    AddMemory(TorchOp::kRotary, fused ? 4 * qk : 20 * qk, fused ? 2 : 10, fused ? 4 * qk : 28 * qk,
              fused ? 2 : 14, compiled);
    if (spec.qk_norm) AddMemory(TorchOp::kRotary, 4 * qk, 2, 10 * qk, 4, compiled);
    // The gradients of an input that several products have.
    AddMemory(TorchOp::kKey, 0, 0, 6 * rows, 1, compiled);
  }
  if (model.code.gated) {
    AddProduct(TorchOp::kGate, hidden, ffn, bias);
    // SiLU and a product; their gradients. Compiled, backward makes the product again.
    AddMemory(TorchOp::kActivation, fused ? 6 * wide : 10 * wide, fused ? 1 : 2,
              fused ? 12 * wide : 18 * wide, fused ? 1 : 3, compiled);
    AddMemory(TorchOp::kGate, 0, 0, 6 * rows, 1, compiled);
  } else {
    AddMemory(TorchOp::kActivation, 4 * wide, 1, 6 * wide, 1, compiled);
  }
  AddProduct(TorchOp::kOutProj, q_columns, hidden, bias);
  AddProduct(TorchOp::kUp, hidden, ffn, bias);
  AddProduct(TorchOp::kDown, ffn, hidden, bias);

  const AttentionShape shape{run_.micro_batch, run_.seq_len, spec.heads, head,
                             spec.KvHeads() == spec.heads ? 0 : spec.KvHeads()};
  const double flops = 2 * static_cast<double>(shape.batch * shape.heads) *
                       static_cast<double>(shape.seq) * static_cast<double>(shape.seq) *
                       static_cast<double>(head);
  const double forward = machine_.attention.ForwardSeconds(shape) / constants_.attention;
  const double backward = machine_.attention.BackwardSeconds(shape) / constants_.attention;
  forward_[static_cast<size_t>(TorchOp::kAttention)] +=
      {machine_.power.Attention(forward, flops, 2 * (qkv + rows)), 1};
  backward_[static_cast<size_t>(TorchOp::kAttention)] +=
      {machine_.power.Attention(backward, 2.5 * flops, 4 * (qkv + rows)), 3};
}

void TorchKernels::AddEnds(const TorchModel& model) {
  const ModelSpec& spec = model.spec;
  const auto tokens = static_cast<double>(tokens_);
  const double rows = tokens * static_cast<double>(spec.hidden);
  const double table = static_cast<double>(spec.padded_vocab * spec.hidden);
  const double logits = tokens * static_cast<double>(spec.padded_vocab);
  const bool positions = model.code.learned_positions;
  // Backward: a table of zeros, tokens sorted, their gradients added up; a tied table's two
  // gradients are added.
  AddMemory(TorchOp::kEmbedding, positions ? 10 * rows : 4 * rows, positions ? 4 : 1,
            2 * table + 4 * rows + (spec.tied_head ? 6 * table : 0), 8, false);
  AddMemory(TorchOp::kFinalNorm, 4 * rows, 1, 10 * rows, 2, false);
  AddProduct(TorchOp::kHead, spec.hidden, spec.padded_vocab, /*bias=*/false);
  if (run_.compiled_loss) {
    AddMemory(TorchOp::kLoss, 4 * logits, 2, 4 * logits, 1, true);
  } else {
    // Cast to fp32; log-softmax reads twice; backward: zeros, log-softmax, cast back.
    AddMemory(TorchOp::kLoss, 18 * logits, 3, 22 * logits, 4, false);
  }
}

}  // namespace zeroplan
