#include "planner/runtimes/torch_sequence.h"

#include <algorithm>
#include <utility>

#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

TorchElements AttentionElements(const ModelSpec& spec, const TorchRun& run) {
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
    *grad = New(bytes / copies);
    timer_->Memory(static_cast<double>(bytes + bytes / copies));
  }
}

}  // namespace zeroplan
