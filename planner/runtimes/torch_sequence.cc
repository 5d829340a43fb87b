#include "planner/runtimes/torch_sequence.h"

#include <algorithm>
#include <utility>

#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

namespace {

constexpr int kRingStream = 4;

}  // namespace

TorchElements AttentionElements(const ModelSpec& spec, const TorchRun& run) {
  if (run.ring) {
    const int64_t q_columns = spec.heads * spec.HeadSize();
    return ElementsOf(run.micro_batch, run.local_seq(), spec.heads, q_columns,
                      spec.KvHeads() * spec.HeadSize(), run.tokens() * q_columns);
  }
  const int64_t heads = spec.heads / run.sequence_ranks;
  const int64_t kv_heads = std::max<int64_t>(1, spec.KvHeads() / run.sequence_ranks);
  const int64_t q_columns = heads * spec.HeadSize();
  return ElementsOf(run.micro_batch, run.seq_len, heads, q_columns, kv_heads * spec.HeadSize(),
                    run.micro_batch * run.seq_len * q_columns);
}

HeadExchange::HeadExchange(const ModelSpec& spec, const TorchRun& run, TorchMemory* memory,
                           TorchTimer* timer)
    : elements_(AttentionElements(spec, run)),
      head_size_(spec.HeadSize()),
      micro_batch_(run.micro_batch),
      copies_(std::max<int64_t>(1, run.sequence_ranks / spec.KvHeads())),
      memory_(memory),
      timer_(timer) {}

void HeadExchange::Moves(int64_t bytes, int copies) {
  timer_->Memory(2 * copies * static_cast<double>(bytes), copies);
}

Tensor HeadExchange::Received(int64_t bytes) {
  Tensor received = New(bytes);
  timer_->AllToAll(TorchClock::kComputeStream, static_cast<double>(bytes), RankGroups::kSequence);
  return received;
}

// _DimZeroAllToAll makes an output as its input lies, and another that is contiguous.
Tensor HeadExchange::ReceivedGradient(int64_t bytes, bool laid_out) {
  if (laid_out) return Received(bytes);
  Moves(bytes, 2);
  Tensor as_input = New(bytes), received = New(bytes);
  as_input.Reset();
  const Tensor sent = New(bytes);
  timer_->AllToAll(TorchClock::kComputeStream, static_cast<double>(bytes), RankGroups::kSequence);
  return received;
}

bool HeadExchange::OneHead(int64_t elements) const {
  return micro_batch_ == 1 && elements == elements_.t * head_size_;
}

// _combine_local_sequences: queries, then keys, then values are laid out by receiving rank and
// received by token; then all are laid out by head.
void HeadExchange::Forward(TorchSlots* attention, std::vector<Tensor>* held) {
  // Positions of all tokens: one part a rank, and joined.
  const int64_t positions = static_cast<int64_t>(sizeof(int64_t)) * elements_.t;
  timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllGather,
                     static_cast<double>(positions), 1, RankGroups::kSequence);
  held->push_back(New(2 * positions));
  std::vector<Tensor> by_token;
  for (const char slot : {'i', 'j', 'l'}) {
    const int64_t bytes = 2 * (slot == 'i' ? elements_.q : elements_.k);
    const bool repeats = slot != 'i' && copies_ > 1;
    Tensor repeated = New(repeats ? bytes : 0);
    const Tensor sent = New(bytes);
    Moves(bytes, repeats ? 2 : 1);
    repeated.Reset();
    by_token.push_back(Received(bytes));
    held->push_back(std::move((*attention)[slot]));
  }
  size_t next = 0;
  for (const char slot : {'i', 'j', 'l'}) {
    const int64_t elements = slot == 'i' ? elements_.q : elements_.k;
    Tensor& received = by_token[next++];
    if (OneHead(elements)) {
      (*attention)[slot] = std::move(received);
      continue;
    }
    Moves(2 * elements);
    (*attention)[slot] = New(2 * elements);
    received.Reset();
  }
}

// _partition_global_sequence: received by head, laid out by token. Of several sequences it is laid
// out before, too.
Tensor HeadExchange::ForwardContext() {
  const int64_t bytes = 2 * elements_.q;
  const Tensor sent = New(micro_batch_ > 1 ? bytes : 0);
  if (sent) Moves(bytes);
  const Tensor received = Received(bytes);
  Moves(bytes);
  return New(bytes);
}

Tensor HeadExchange::BackwardContext(Tensor grad) {
  Tensor received = ReceivedGradient(2 * elements_.q, /*laid_out=*/false);
  grad.Reset();
  return received;
}

// The last that were made come first.
void HeadExchange::Backward(Tensor* d_q, Tensor* d_k, Tensor* d_v) {
  for (Tensor* grad : {d_v, d_k, d_q}) {
    const int64_t elements = grad == d_q ? elements_.q : elements_.k, bytes = 2 * elements;
    Tensor received = ReceivedGradient(bytes, OneHead(elements));
    grad->Reset();
    // By token again; what was repeated is added up.
    const int64_t copies = grad == d_q ? 1 : copies_;
    const int64_t kept = bytes / copies;
    *grad = New(kept);
    timer_->Memory(static_cast<double>(bytes + kept));
  }
}

RingAttention::RingAttention(const ModelSpec& spec, const TorchRun& run, TorchMemory* memory,
                             TorchTimer* timer)
    : elements_(AttentionElements(spec, run)),
      ranks_(run.sequence_ranks),
      q_(2 * elements_.q),
      k_(2 * elements_.k),
      sums_(4 * elements_.n),
      memory_(memory),
      timer_(timer) {}

void RingAttention::Moves(int64_t bytes, int launches) {
  timer_->Memory(static_cast<double>(bytes), launches);
}

// _AllGatherRotater: keys and values of all ranks, beside the block of the rank's own.
Tensor RingAttention::Gathered() {
  const int64_t all = 2 * k_ * ranks_;
  timer_->StreamWaits(kRingStream, TorchClock::kComputeStream);
  timer_->Collective(kRingStream, CollectiveOp::kAllGather, static_cast<double>(all), 1,
                     RankGroups::kSequence);
  return New(all);
}

// _AllToAllRotater: a permutation sends all of it to the next rank.
Tensor RingAttention::PassedOn(int64_t bytes) {
  timer_->StreamWaits(kRingStream, TorchClock::kComputeStream);
  timer_->AllToAll(kRingStream, static_cast<double>(bytes) * ranks_ / (ranks_ - 1),
                   RankGroups::kSequence);
  return New(bytes);
}

// _templated_ring_attention, _SDPAMerger
void RingAttention::Forward(TorchSlots* attention) {
  Tensor keys = New(k_), values = New(k_);  // contiguous
  Moves(4 * k_, 2);
  Tensor joined = New(2 * k_);
  Moves(4 * k_);
  const Tensor gathered = Gathered();
  const TorchClock::Event gathering = timer_->Record(kRingStream);
  joined.Reset();
  timer_->Forward(TorchOp::kAttention);
  Tensor out = New(q_), sums = New(sums_);
  Tensor merged = New(2 * q_), merged_sums;
  Moves(3 * q_);
  timer_->StreamWaits(TorchClock::kComputeStream, gathering);
  for (int i = 1; i < ranks_; ++i) {
    if (i + 1 < ranks_) {
      joined = New(2 * k_);  // which nothing wants
      Moves(4 * k_);
      joined.Reset();
    }
    keys.Reset();
    values.Reset();
    timer_->Forward(TorchOp::kAttention);
    Tensor block = New(q_), block_sums = New(sums_);
    out = std::move(block);
    if (!merged_sums) merged_sums = std::move(sums);
    sums = std::move(block_sums);
    // out - sigmoid(sums of the block - sums) * (out - the block's), and the sums.
    const Tensor wide = New(2 * q_);
    Tensor difference = New(sums_), share = New(sums_);
    difference.Reset();
    Tensor apart = New(2 * q_), part = New(2 * q_);
    share.Reset();
    apart.Reset();
    Tensor sum = New(2 * q_);
    part.Reset();
    Moves(3 * q_ + 3 * 6 * q_, 4);
    {
      Tensor less = New(sums_), log = New(sums_), negative = New(sums_);
      negative.Reset();
      less.Reset();
      Tensor next = New(sums_);
      log.Reset();
      merged_sums = std::move(next);
    }
    Moves(12 * sums_, 5);
    merged = std::move(sum);
  }
  (*attention)['o'] = New(q_);
  Moves(3 * q_);
  (*attention)['b'] = std::move(merged_sums);
}

// _templated_ring_attention_backward
void RingAttention::Backward(TorchSlots* attention) {
  Tensor d_queries = New(2 * q_), d_keys = New(2 * k_), d_values = New(2 * k_);
  Moves(2 * q_ + 4 * k_, 3);
  Tensor keys = New(k_), values = New(k_);
  Moves(4 * k_, 2);
  Tensor joined = New(2 * k_);
  Moves(4 * k_);
  const Tensor gathered = Gathered();
  const TorchClock::Event gathering = timer_->Record(kRingStream);
  Tensor d_q, d_k, d_v, sent, received;
  for (int i = 0; i < ranks_; ++i) {
    if (i == 1) timer_->StreamWaits(TorchClock::kComputeStream, gathering);
    if (i > 0 && i + 1 < ranks_) {
      Tensor next = New(2 * k_);
      joined = std::move(next);
      Moves(4 * k_);
    }
    if (i > 0) {
      keys.Reset();
      values.Reset();
    }
    // The kernel, with its sum of dQ in fp32 and where heads of keys are shared dK and dV of every
    // query head. Of blocks of others it has half the keys.
    timer_->Backward(TorchOp::kAttention);
    const int64_t k = i == 0 ? k_ : k_ / 2, shared = 2 * elements_.u / (i == 0 ? 1 : 2);
    {
      Tensor block_k = New(k), block_v = New(k), block_q = New(q_);
      const Tensor sum = New(2 * q_), scaled = New(sums_);
      const Tensor of_heads_k = New(shared), of_heads_v = New(shared);
      d_q = std::move(block_q);
      d_k = std::move(block_k);
      d_v = std::move(block_v);
    }
    Tensor parts_k, parts_v;
    if (i > 0) {
      // What came from the rank before, and the block's half.
      timer_->StreamWaits(TorchClock::kComputeStream, kRingStream);
      sent.Reset();
      d_keys.Reset();
      d_values.Reset();
    }
    parts_k = New(2 * k_);
    parts_v = New(2 * k_);
    Moves(10 * k_, 4);
    Tensor next = New(4 * k_);
    Moves(8 * k_);
    if (i == 0) {
      parts_v.Reset();
      parts_k.Reset();
    }
    sent = std::move(next);
    Tensor passed = PassedOn(4 * k_);
    received = std::move(passed);
    if (i > 0) {
      d_keys = std::move(parts_k);
      d_values = std::move(parts_v);
    }
    Moves(5 * q_);  // dQ is added up
  }
  (*attention)['d'] = New(q_);
  Moves(3 * q_);
  d_queries.Reset();
  timer_->StreamWaits(TorchClock::kComputeStream, kRingStream);
  (*attention)['D'] = New(2 * k_);
  Moves(6 * k_);
  for (const char slot : {'g', 'i', 'j', 'l', 'o', 'b'}) (*attention)[slot].Reset();
}

}  // namespace zeroplan
