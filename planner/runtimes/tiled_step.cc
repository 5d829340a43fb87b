// TorchStep: an MLP by tiles of the tokens, as DeepSpeed 0.19.6's TiledMLP has it
// (runtime/sequence_parallel/ulysses_sp.py) around transformers' down(act(gate(x)) * up(x)).
// Forward keeps the MLP's input alone: tiles run one after the other, and then their outputs are
// put together. Backward each tile runs forward once more, and backward. The gradient of the input
// is one tensor, of which each tile fills its part; gradients of weights are added up, and those of
// the last tile go to DeepSpeed (ds_grad_is_ready).
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

int64_t TorchRun::MlpTile(int64_t hidden) const {
  if (!tiled_mlp) return tokens();
  const int64_t tiles = (local_seq() + hidden - 1) / hidden;
  return (tokens() + tiles - 1) / tiles;
}

Tensor TorchStep::TiledMlp(int layer, Saved* saved) {
  // Ranks agree on the number of tiles: an all-reduce of a number, which Python reads.
  timer_->Collective(TorchClock::kComputeStream, CollectiveOp::kAllReduce, sizeof(int64_t));
  timer_->HostWaits(TorchClock::kComputeStream);
  timer_->Host(timer_->constants().read_back);
  const int up = Module(layer, model_.up_module());
  const int64_t all = tokens_, tile = run_.MlpTile(hidden_);
  std::vector<Tensor> outputs;
  for (int64_t begin = 0; begin < all; begin += tile) {
    tokens_ = std::min(tile, all - begin);
    TorchSlots activation;
    activation['j'] = Linear(up, TorchOp::kUp, ffn_, saved);
    activation['i'] = Linear(up + 1, TorchOp::kGate, ffn_, saved);
    timer_->Forward(TorchOp::kActivation);
    Play(parts_.activation.forward, tokens_ * ffn_, &activation);
    const Tensor activated = std::move(activation['o']);
    activation.Reset();
    outputs.push_back(Linear(Module(layer, model_.down_module()), TorchOp::kDown, hidden_, saved));
  }
  tokens_ = all;
  timer_->Memory(4 * static_cast<double>(all * hidden_));
  return Rows(hidden_);
}

Tensor TorchStep::TiledMlpBackward(int layer) {
  const int up = Module(layer, model_.up_module()), down = Module(layer, model_.down_module());
  const int64_t all = tokens_, tile = run_.MlpTile(hidden_);
  Tensor d_input = Rows(hidden_);
  timer_->Memory(2 * static_cast<double>(all * hidden_));
  std::map<int, Tensor> sums;
  Tensor output;  // until the next tile's
  for (int64_t begin = 0; begin < all; begin += tile) {
    tokens_ = std::min(tile, all - begin);
    sums_ = &sums;
    last_tile_ = begin + tile >= all;
    Saved saved;
    TorchSlots& activation = saved.activation;
    activation['j'] = Linear(up, TorchOp::kUp, ffn_, &saved);
    activation['i'] = Linear(up + 1, TorchOp::kGate, ffn_, &saved);
    timer_->Forward(TorchOp::kActivation);
    Play(parts_.activation.forward, tokens_ * ffn_, &activation);
    output = Linear(down, TorchOp::kDown, hidden_, &saved);
    activation['g'] = LinearBackward(down, TorchOp::kDown, ffn_);
    activation['o'].Reset();
    timer_->Backward(TorchOp::kActivation);
    Play(parts_.activation.backward, tokens_ * ffn_, &activation);
    Tensor d_tile = LinearBackward(up + 1, TorchOp::kGate, hidden_);
    activation['d'].Reset();
    // Both are added in place, and then to the tile's part of d_input.
    const Tensor more = LinearBackward(up, TorchOp::kUp, hidden_);
    timer_->Memory(12 * static_cast<double>(tokens_ * hidden_), 2);
  }
  sums_ = nullptr;
  tokens_ = all;
  return d_input;
}

void TorchStep::AddToSums(int param, Tensor grad) {
  Tensor& sum = (*sums_)[param];
  if (sum) {
    timer_->Memory(6 * static_cast<double>(model_.params[static_cast<size_t>(param)].elements));
    grad.Reset();
  } else {
    sum = std::move(grad);
  }
  if (last_tile_) hooks_->Gradient(param, std::move(sum));
}

}  // namespace zeroplan
