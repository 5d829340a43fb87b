#include "planner/runtimes/torch_optimizer.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr uint64_t kStateBlock = 256;
// Tensors of one launch where lists are updated.
constexpr int kTensorsOfLaunch = 30;

// bitsandbytes 0.50.2: kOptimizer32bit2State moves 2.0 TB/s of an H200, kOptimizerStatic8bit2-
// StateBlockwise takes 28.2 ps an element whatever the dtype; update_step and the synchronisation
// behind it, and prefetching two states.
constexpr double kBnbSlower = 1.39, kBnbEightBit = 79.5, kBnbPython = 20e-6, kBnbPrefetch = 37e-6;

constexpr uint64_t kBnbLeastPaged = 100'000;

constexpr OptimizerRow kBnb8bit = {.optimizer = TorchOptimizer::kAdamW8bit,
                                   .text = "bitsandbytes' 8-bit AdamW",
                                   .states = StatesKept::kEightBit,
                                   .least_eight_bit = 4096,
                                   .wide_embeddings = true,
                                   .shared_tables = 2048,
                                   .params = 2,
                                   .grads = 1,
                                   .own = 4,
                                   .kernels = 1,
                                   .slower = kBnbSlower,
                                   .eight_bit_bytes = kBnbEightBit,
                                   .eight_bit_bytes_16 = kBnbEightBit,
                                   .python = kBnbPython,
                                   .dtensors = false};
constexpr OptimizerRow kBnbPaged8bit = [] {
  OptimizerRow row = kBnb8bit;
  row.optimizer = TorchOptimizer::kPagedAdamW8bit;
  row.text = "bitsandbytes' paged 8-bit AdamW";
  row.least_paged = kBnbLeastPaged;
  row.python += kBnbPrefetch;
  return row;
}();

// PyTorch 2.11 (torch/optim/adam.py), bitsandbytes 0.50 (optim/optimizer.py), torchao 0.18
// (optim/adam.py), transformers 5 (optimization.py). Dtypes and shapes of states are those of tiny
// models that each updated on the CPU; kernels and what they move are counted from the code.
constexpr OptimizerRow kOptimizerRows[] = {
    {.optimizer = TorchOptimizer::kAdamWFused,
     .text = "torch.optim.AdamW(fused=True)",
     .states = StatesKept::kLikeParams,
     .params = 2,
     .grads = 1,
     .own = 4,
     .kernels = 1,
     .lists = true},
    // lerp, mul, addcmul, sqrt, div, add, addcdiv.
    {.optimizer = TorchOptimizer::kAdamW,
     .text = "torch.optim.AdamW (foreach)",
     .states = StatesKept::kLikeParams,
     .params = 2,
     .grads = 2,
     .own = 14,
     .kernels = 7,
     .lists = true,
     .copies_state = true,
     .slower = 0.85},
    kBnb8bit,
    {.optimizer = TorchOptimizer::kPagedAdamW,
     .text = "bitsandbytes' paged AdamW",
     .states = StatesKept::kFp32,
     .least_paged = kBnbLeastPaged,
     .params = 2,
     .grads = 1,
     .own = 4,
     .kernels = 1,
     .slower = kBnbSlower,
     .python = kBnbPython + kBnbPrefetch,
     .dtensors = false},
    kBnbPaged8bit,
    // Each tensor's update is a graph of torch.compile.
    {.optimizer = TorchOptimizer::kAdamWTorchao8bit,
     .text = "torchao's AdamW8bit",
     .states = StatesKept::kEightBit,
     .least_eight_bit = 4096,
     .whole_blocks = true,
     .small_like_params = true,
     .tables = 1024,
     .params = 2,
     .grads = 1,
     .own = 4,
     .kernels = 3,
     .wide_copies = true,
     .eight_bit_bytes = 170,
     .eight_bit_bytes_16 = 68,
     .python = 200e-6},
    // Without a first moment, as Trainer makes it. Of a matrix: the norm of the parameter; the
    // gradient squared, and eps added; two means; the product of their roots, times the gradient;
    // its norm; divided, scaled, negated and added.
    {.optimizer = TorchOptimizer::kAdafactor,
     .text = "transformers' Adafactor",
     .states = StatesKept::kRowsAndColumns,
     .params = 3,
     .grads = 2,
     .wide = 16,
     .casts = 18,
     .kernels = 19,  // 24, that take as long to launch as so many of a model's
     .slower = 0.82,
     .dtensors = false},
};

bool IsEightBit(const OptimizerRow& row, const UpdatedTensor& tensor) {
  return row.states == StatesKept::kEightBit && tensor.elements >= row.least_eight_bit &&
         !(row.wide_embeddings && tensor.embedding) &&
         !(row.whole_blocks && tensor.elements % kStateBlock != 0);
}

// Of a state's element, where each has its own.
uint64_t StateElementBytes(const OptimizerRow& row, Dtype params) {
  const bool like_params = row.states == StatesKept::kLikeParams || row.small_like_params;
  return like_params ? DtypeBytes(params) : 4;
}

uint64_t Scales(uint64_t elements) { return 4 * ((elements + kStateBlock - 1) / kStateBlock); }

// The tensors that a tensor's states are, by bytes; of the first two, whether they are in managed
// memory.
struct StateTensors {
  std::vector<uint64_t> bytes;
  bool managed = false;
};

StateTensors StateTensorsOf(const OptimizerRow& row, const UpdatedTensor& tensor, Dtype params) {
  const uint64_t elements = tensor.elements;
  StateTensors states;
  states.managed = row.least_paged > 0 && elements >= row.least_paged;
  if (row.states == StatesKept::kRowsAndColumns) {
    if (tensor.rows == 0) {
      states.bytes = {4 * elements};
    } else {
      states.bytes = {4 * tensor.rows, 4 * (elements / tensor.rows)};
    }
    states.bytes.push_back(4);  // RMS
  } else if (IsEightBit(row, tensor)) {
    states.bytes = {elements, elements, Scales(elements), Scales(elements)};
    if (row.tables > 0) states.bytes.insert(states.bytes.end(), 2, row.tables);
  } else {
    const uint64_t bytes = StateElementBytes(row, params) * elements;
    states.bytes = {bytes, bytes};
  }
  return states;
}

}  // namespace

const OptimizerRow& RowOf(TorchOptimizer optimizer) {
  const auto* found =
      std::find_if(std::begin(kOptimizerRows), std::end(kOptimizerRows),
                   [optimizer](const OptimizerRow& row) { return row.optimizer == optimizer; });
  ZEROPLAN_CHECK(found != std::end(kOptimizerRows), "an optimizer has no row");
  return *found;
}

std::vector<UpdatedTensor> UpdatedTensorsOf(const TorchModel& model) {
  std::vector<UpdatedTensor> tensors;
  for (const TorchParam& param : model.trained()) {
    tensors.push_back({param.elements, param.vector ? 0 : param.elements / param.columns, false});
  }
  for (int module = 0; module < model.first_layer_module; ++module) {
    for (const int param : model.modules[static_cast<size_t>(module)].params) {
      if (model.trains(param)) tensors[static_cast<size_t>(param)].embedding = true;
    }
  }
  return tensors;
}

StatesBytes StatesBytesOf(const OptimizerRow& row, const UpdatedTensor& tensor, Dtype params) {
  const StateTensors states = StateTensorsOf(row, tensor, params);
  StatesBytes bytes;
  for (size_t i = 0; i < states.bytes.size(); ++i) {
    (states.managed && i < 2 ? bytes.managed : bytes.allocated) += states.bytes[i];
  }
  return bytes;
}

double TorchStates::UpdateBytes(const UpdatedTensor& tensor) const {
  const auto elements = static_cast<double>(tensor.elements);
  const bool casts = row_.casts > 0 && param_bytes_ < 4;
  const double width = casts ? 4 : static_cast<double>(param_bytes_);
  double state = row_.states == StatesKept::kRowsAndColumns
                     ? 0
                     : static_cast<double>(StateElementBytes(row_, params_));
  if (IsEightBit(row_, tensor)) state = 1 + 4.0 / static_cast<double>(kStateBlock);
  return elements * ((row_.params + row_.grads) * width + row_.own * state + 4 * row_.wide +
                     (casts ? row_.casts : 0));
}

void TorchStates::MakeStates(size_t tensor, int stream) {
  if (made_[tensor]) return;
  made_[tensor] = true;
  if (row_.shared_tables > 0 && !tables_) {
    tables_ = memory_->New(TorchClass::kOptimizer, row_.shared_tables, stream);
  }
  const StateTensors states = StateTensorsOf(row_, tensors_[tensor], params_);
  for (size_t i = 0; i < states.bytes.size(); ++i) {
    if (states.managed && i < 2) {
      memory_->AddManaged(states.bytes[i]);
    } else {
      states_[tensor].push_back(memory_->New(TorchClass::kOptimizer, states.bytes[i], stream));
    }
  }
}

double TorchStates::UpdateBytes() const {
  double bytes = 0;
  for (const UpdatedTensor& tensor : tensors_) bytes += UpdateBytes(tensor);
  return bytes;
}

double TorchStates::TimedBytes(const UpdatedTensor& tensor) const {
  const double element = param_bytes_ < 4 ? row_.eight_bit_bytes_16 : row_.eight_bit_bytes;
  if (IsEightBit(row_, tensor) && element > 0) {
    // Arithmetic holds them back, not memory.
    return std::max(element * timer_->arithmetic_bytes() * static_cast<double>(tensor.elements),
                    UpdateBytes(tensor));
  }
  return row_.slower * UpdateBytes(tensor);
}

void TorchStates::TimeOne(const UpdatedTensor& tensor, int stream) {
  timer_->Memory(TimedBytes(tensor), row_.kernels, stream);
  if (row_.python == 0) return;
  timer_->HostWaits(stream);
  timer_->Host(row_.python);
}

void TorchStates::PlayTemporaries(const UpdatedTensor& tensor, int stream) {
  const uint64_t bytes = 4 * tensor.elements;
  const auto wide = [&](uint64_t size) {
    return memory_->New(TorchClass::kOptimizer, size, stream);
  };
  if (row_.copies_state) {
    const Tensor copy = wide(StateElementBytes(row_, params_) * tensor.elements);
  }
  if (row_.wide_copies && IsEightBit(row_, tensor)) {
    const Tensor momentum = wide(bytes), variance = wide(bytes);
    const Tensor scale = wide(Scales(tensor.elements)), other = wide(Scales(tensor.elements));
  }
  if (row_.states != StatesKept::kRowsAndColumns) return;
  // Adafactor's names hold on to their tensors until the next parameter's are there.
  Tensor grad, param;
  if (param_bytes_ < 4) {
    grad = wide(bytes);
    param = wide(bytes);
  }
  Tensor update;
  {
    const Tensor square = wide(bytes);
    update = wide(bytes);
  }
  last_update_ = std::move(update);
  if (tensor.rows > 0) last_update_ = wide(bytes);
  const Tensor negated = wide(bytes);
}

void TorchStates::Update(size_t tensor, int stream) {
  UpdateOne(tensor, stream);
  last_update_.Reset();
}

void TorchStates::UpdateOne(size_t tensor, int stream) {
  const UpdatedTensor& one = tensors_[tensor];
  MakeStates(tensor, stream);
  TimeOne(one, stream);
  PlayTemporaries(one, stream);
}

void TorchStates::Step(int stream) {
  if (!row_.lists) {
    for (size_t i = 0; i < tensors_.size(); ++i) UpdateOne(i, stream);
    last_update_.Reset();
    return;
  }
  double bytes = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    MakeStates(i, stream);
    bytes += TimedBytes(tensors_[i]);
  }
  const int launches = 1 + static_cast<int>(tensors_.size()) / kTensorsOfLaunch;
  timer_->Memory(bytes, row_.kernels * launches, stream);
  if (!row_.copies_state) return;
  std::vector<Tensor> copies;
  for (const UpdatedTensor& tensor : tensors_) {
    copies.push_back(memory_->New(TorchClass::kOptimizer,
                                  StateElementBytes(row_, params_) * tensor.elements, stream));
  }
}

}  // namespace zeroplan
