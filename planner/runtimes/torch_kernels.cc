#include "planner/runtimes/torch_kernels.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/runtimes/planned_parts.h"
#include "planner/runtimes/torch_sequence.h"

namespace zeroplan {
namespace {

double Value(const std::optional<Figure>& figure, double otherwise) {
  return figure ? figure->value : otherwise;
}

// Kernels take what the profile's rows say, which were measured at the power limit: constants were
// fitted to such. With gpu.power's equation, which zeroplan's own steps follow, published runs on
// H100s take 9.4 % longer than predicted in the median, and 2.7 % so.
GpuProfile AtTheLimit(GpuProfile gpu) {
  gpu.power.reset();
  return gpu;
}

}  // namespace

TorchMachine::TorchMachine(const HardwareProfile& profile, const ClusterShape& cluster)
    : shape(cluster),
      gemm(AtTheLimit(profile.gpu)),
      attention(AtTheLimit(profile.gpu), gemm),
      memory(profile.gpu),
      collectives(profile, cluster),
      transfers(profile, cluster.ranks_per_node()),
      storage(profile, cluster.ranks_per_node()),
      compute_beside_collective(Value(profile.node.overlapped_compute, 1)),
      collective_beside_compute(Value(profile.node.overlapped_collective, 0.66)),
      h200(IsH200(profile)),
      arithmetic_bytes(profile.gpu.hbm_bandwidth.value / 4.8e12 * 132 * 1980e6 /
                       (profile.gpu.sm_count.value * profile.gpu.max_sm_clock.value)) {
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
      tokens_(run.tokens()),
      products_(machine.h200 && TorchParts(model, run).style.transformers
                    ? constants.transformers_products
                    : 1),
      heads_(model.spec.heads),
      q_columns_(model.spec.heads * model.spec.HeadSize()),
      kv_columns_(model.spec.KvHeads() * model.spec.HeadSize()),
      frozen_(model.has_adapters()) {
  AddLayer(model);
  AddEnds(model);
  AddAdapters(model);
}

TorchWork TorchKernels::Memory(double bytes, int launches, bool compiled) const {
  const double share = compiled ? constants_.compiled_memory : constants_.eager_memory;
  if (launches == 0) return {};
  const double seconds = launches * machine_.memory.Seconds(bytes / launches / share);
  return {seconds, launches};
}

void TorchKernels::AddMemory(TorchOp op, double forward_bytes, int forward_launches,
                             double backward_bytes, int backward_launches, bool compiled) {
  forward_[static_cast<size_t>(op)] += Memory(forward_bytes, forward_launches, compiled);
  backward_[static_cast<size_t>(op)] += Memory(backward_bytes, backward_launches, compiled);
}

TorchWork TorchKernels::Product(GemmKind kind, int64_t rows, int64_t k, int64_t n, int times,
                                bool float8) const {
  const Dtype dtype = float8 ? Dtype::kE4M3 : dtype_;
  // What 16-bit products of transformers' models are faster by was not measured of 8 bits.
  double seconds = machine_.gemm.Seconds(kind, dtype, rows, k, n) / (float8 ? 1 : products_);
  if (n % 8 != 0) seconds /= constants_.unaligned_products;
  return {seconds * times, times};
}

void TorchKernels::AddProduct(TorchOp op, int64_t k, int64_t n, bool bias, int chunks) {
  const bool float8 = op != TorchOp::kHead && run_.TakesFloat8(k, n);
  // The profile's rows are of many tokens: a chunk of few is as fast as these, or as what it moves.
  const auto product = [&](GemmKind kind) {
    TorchWork work = Product(kind, tokens_, k, n, /*times=*/1, float8);
    if (chunks == 1) return work;
    const int64_t rows = tokens_ / chunks;
    const double bytes = 2 * static_cast<double>(rows * k + k * n + rows * n);
    const double least = chunks * machine_.memory.Seconds(bytes);
    return TorchWork{std::max(work.seconds, least), chunks};
  };
  forward_[static_cast<size_t>(op)] += product(GemmKind::kForward);
  if (float8) AddFloat8(op, k, n);
  TorchWork& back = backward_[static_cast<size_t>(op)];
  back += product(GemmKind::kData);
  if (frozen_) return;
  back += product(GemmKind::kWeight);
  if (bias) back += Memory(2 * static_cast<double>(tokens_ * n), 1, run_.compiled);
}

void TorchKernels::AddPart(TorchOp op, const CodePart& part, int64_t e, bool compiled) {
  const TorchElements elements =
      ElementsOf(run_.micro_batch, run_.local_seq(), heads_, q_columns_, kv_columns_, e);
  AddMemory(op, MovedBytes(part.forward_moves, elements), part.forward_launches,
            MovedBytes(part.backward_moves, elements), part.backward_launches, compiled);
}

void TorchKernels::AddLayer(const TorchModel& model) {
  const ModelSpec& spec = model.spec;
  const TorchParts parts(model, run_);
  const int64_t hidden = spec.hidden, ffn = spec.ffn;
  const auto tokens = static_cast<double>(tokens_);
  const double rows = tokens * static_cast<double>(hidden);  // elements of the residual stream
  const double qkv = tokens * static_cast<double>(q_columns_ + 2 * kv_columns_);
  const double qk = tokens * static_cast<double>(q_columns_ + kv_columns_);
  const double stream = parts.layer.stream_bytes;
  const bool compiled = run_.compiled, fused = run_.fused() && parts.style.fuses;
  const bool bias = model.code.all_biased;

  if (fused) {
    // The addition before a norm and its gradient's after it are of the norm's kernels.
    AddMemory(TorchOp::kNorm1, (2 + stream) * rows, 1, (6 + 3 * stream) * rows, 2, true);
    AddMemory(TorchOp::kNorm2, (4 + 2 * stream) * rows, 1, (6 + 3 * stream) * rows, 2, true);
    AddMemory(TorchOp::kAdd2, (2 + 2 * stream) * rows, 1, 0, 0, true);
  } else {
    for (const TorchOp op : {TorchOp::kNorm1, TorchOp::kNorm2}) {
      AddPart(op, parts.norm, tokens_ * hidden, compiled);
    }
    for (const TorchOp op : {TorchOp::kAdd1, TorchOp::kAdd2}) {
      AddPart(op, parts.layer.add, tokens_ * hidden, compiled);
      AddMemory(op, 0, 0, 3 * stream * rows, 1, compiled);  // the gradients of both ways
    }
  }
  // The gradients of an input that several products have; and where they cast it, what that takes
  // forward and backward.
  const double input = parts.norm_bytes;
  const double cast = input > 2 ? (2 + input) * rows : 0;
  const auto add_casts = [&](TorchOp op) {
    AddMemory(op, cast, cast > 0, cast, cast > 0, compiled);
  };
  const auto add_more = [&](TorchOp op) { AddMemory(op, 0, 0, 3 * input * rows, 1, compiled); };
  if (model.code.one_qkv) {
    AddProduct(TorchOp::kQkv, hidden, q_columns_ + 2 * kv_columns_, bias);
    if (model.code.planned != nullptr) {
      AddPart(TorchOp::kRotary, PlannedPartsOf(run_.fp32_params).rotary,
              tokens_ * (q_columns_ + 2 * kv_columns_), compiled);
    } else if (fused) {
      AddMemory(TorchOp::kAttention, 0, 0, 4 * qkv, 1, true);
    } else {
      AddPart(TorchOp::kAttention, parts.layer.split, tokens_ * q_columns_, compiled);
    }
  } else {
    AddProduct(TorchOp::kQkv, hidden, q_columns_, bias);
    AddProduct(TorchOp::kKey, hidden, kv_columns_, bias);
    if (fused) {
      AddMemory(TorchOp::kRotary, 4 * qk, 2, 4 * qk, 2, true);
    } else {
      AddPart(TorchOp::kRotary, parts.layer.rotary, tokens_ * q_columns_, compiled);
    }
    if (spec.qk_norm) {
      AddPart(TorchOp::kRotary, parts.layer.head_norm, tokens_ * q_columns_, compiled);
      AddPart(TorchOp::kRotary, parts.layer.head_norm, tokens_ * kv_columns_, compiled);
    }
    add_casts(TorchOp::kKey);
    add_more(TorchOp::kKey);
  }
  add_casts(TorchOp::kQkv);
  if (model.code.planned != nullptr) return AddPlannedLayer(model, parts);
  AddProduct(TorchOp::kOutProj, q_columns_, hidden, bias);
  // Of one tile, where MLPs run by these.
  const int64_t all = std::exchange(tokens_, run_.MlpTile(hidden));
  AddPart(TorchOp::kActivation, parts.activation, tokens_ * ffn, compiled);
  if (model.code.gated) AddProduct(TorchOp::kGate, hidden, ffn, bias);
  AddProduct(TorchOp::kUp, hidden, ffn, bias);
  AddProduct(TorchOp::kDown, ffn, hidden, bias);
  tokens_ = all;
  if (model.code.gated) {
    add_casts(TorchOp::kGate);
    if (!run_.tiled_mlp) add_more(TorchOp::kGate);
  }
  add_casts(TorchOp::kUp);
  if (parts.activation_bytes > 2) {
    const double wide = 6 * tokens * static_cast<double>(ffn);
    AddMemory(TorchOp::kDown, wide, 1, wide, 1, compiled);
  }
  AddAttention(model, parts);
}

void TorchKernels::AddAttention(const TorchModel& model, const TorchParts& parts) {
  const int64_t head = model.spec.HeadSize();
  const TorchElements elements = AttentionElements(model.spec, run_);
  const int64_t heads = elements.q / elements.t / head, kv_heads = elements.k / elements.t / head;
  const AttentionShape shape{run_.micro_batch, run_.seq_len, heads, head,
                             kv_heads == heads ? 0 : kv_heads};
  // Of a ring a block of each rank, of the same work, with the rate of whole sequences.
  const double blocks =
      run_.ring ? static_cast<double>(run_.sequence_ranks * run_.sequence_ranks) : 1;
  TorchWork& forward = forward_[static_cast<size_t>(TorchOp::kAttention)];
  TorchWork& backward = backward_[static_cast<size_t>(TorchOp::kAttention)];
  if (parts.kernels == TorchAttentionKernels::kEager) {
    // Whole products of queries with keys, and of scores with values; backward two of each.
    AddPart(TorchOp::kAttention, parts.attention, tokens_ * q_columns_, run_.compiled);
    // Each moves the scores, at the rate of copies, unless its FLOPs take longer.
    const int64_t rows = shape.batch * shape.heads * shape.seq;
    const double bytes = 2 * static_cast<double>(rows * (2 * head + shape.seq));
    const double flops = 2 * static_cast<double>(rows * shape.seq * head) / blocks;
    const double square = machine_.gemm.Seconds(GemmKind::kForward, dtype_, 4096, 4096, 4096);
    const double seconds = std::max(flops * square / products_ / (2 * std::pow(4096.0, 3)),
                                    machine_.memory.Seconds(bytes / constants_.compiled_memory));
    const TorchWork product{seconds, 0};
    for (int i = 0; i < 2; ++i) forward += product;
    for (int i = 0; i < 4; ++i) backward += product;
    return;
  }
  const TorchFused fused = parts.kernels == TorchAttentionKernels::kMemoryEfficient
                               ? TorchFused::kMemoryEfficient
                           : run_.attention == TorchAttention::kTriton ? TorchFused::kTriton
                                                                       : TorchFused::kNewest;
  // What the code does beside the kernels of attention.
  AddMemory(TorchOp::kAttention, MovedBytes(parts.attention.forward_moves, elements),
            parts.attention.forward_launches - 1,
            MovedBytes(parts.attention.backward_moves, elements),
            parts.attention.backward_launches - 3, run_.compiled);
  const auto seconds = [&](bool is_backward) {
    return machine_.attention.TorchSeconds(fused, shape, is_backward) / constants_.attention /
           products_ / blocks;
  };
  forward += {seconds(false), 1};
  backward += {seconds(true), 3};
}

void TorchKernels::AddEnds(const TorchModel& model) {
  const ModelSpec& spec = model.spec;
  const TorchParts parts(model, run_);
  const auto tokens = static_cast<double>(tokens_);
  const double rows = tokens * static_cast<double>(spec.hidden);
  const double table = static_cast<double>(spec.padded_vocab * spec.hidden);
  const bool positions = model.code.learned_positions;
  const double stream = parts.style.stream_bytes;
  // Backward: a table of zeros, tokens sorted, their gradients added up; a tied table's two
  // gradients are added.
  const double gradients =
      frozen_ ? 0 : 2 * table + 2 * stream * rows + (spec.tied_head ? 6 * table : 0);
  AddMemory(TorchOp::kEmbedding, (positions ? 5 : 2) * stream * rows, positions ? 4 : 1, gradients,
            frozen_ ? 0 : 8, false);
  const CodePart& norm = model.code.mean_norms ? parts.style.layer_norm : parts.style.rms_norm;
  AddPart(TorchOp::kFinalNorm, norm, tokens_ * spec.hidden, false);
  const int64_t logits = tokens_ * spec.padded_vocab;
  const int64_t chunk = LossChunkTokens(parts.chunks, tokens_, spec.hidden, spec.padded_vocab);
  const auto chunks = static_cast<int>((tokens_ + chunk - 1) / chunk);
  AddProduct(TorchOp::kHead, spec.hidden, spec.padded_vocab, /*bias=*/false, chunks);
  // Each chunk but one adds to the gradient of the head, within its product or after it.
  const double sums = frozen_ ? 0 : 2 * stream * table * (chunks - 1);
  if (parts.chunks != LossChunks::kByHidden) {
    AddMemory(TorchOp::kHead, 0, 0, 1.5 * sums, chunks - 1, false);
    AddPart(TorchOp::kLoss, parts.loss, logits, run_.compiled_loss);
    return;
  }
  // The loss reads logits twice and writes their gradient, of which both products of backward are
  // made in the forward pass; backward multiplies these with the gradient of the loss.
  TorchWork& forward = forward_[static_cast<size_t>(TorchOp::kHead)];
  TorchWork& backward = backward_[static_cast<size_t>(TorchOp::kHead)];
  forward += std::exchange(backward, {});
  AddMemory(TorchOp::kLoss, 6 * static_cast<double>(logits), chunks, 0, 0, false);
  AddMemory(TorchOp::kHead, sums, chunks - 1, 0, 0, true);
  if (parts.style.chunks_cast_head) {
    AddMemory(TorchOp::kHead, 6 * table * chunks, chunks, 0, 0, false);
  }
  AddMemory(TorchOp::kLoss, 0, 0, frozen_ ? 0 : 2 * stream * table, frozen_ ? 0 : 1, false);
  AddPart(TorchOp::kLoss, parts.loss, tokens_ * spec.hidden, false);
}

}  // namespace zeroplan
