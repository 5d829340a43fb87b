// Pass 2: products of eight bits (Fp8Config). The matrix products of the layers' linears take
// copies of eight bits, which are made right before the first product that reads them:
//
// - of an activation at its forward product, transposed too for the gradient of the weight. The
//   transposed copy is what is kept for the backward pass;
// - of a gradient at the first of the two backward products;
// - of a weight in front of each product with it, as that wants it. It lives as long as the
// product.
//
// With one scale a tensor, its largest magnitude is taken along by the kernel that makes the tensor
// (KernelRow::magnitude) or else found by one of its own; that of a weight in a step's first
// micro-step. All lie in slots, those of weights persist.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/fp8.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

// One product y = a*w of a linear, or a gradient of it, as the first pass has emitted it.
struct LinearLaunch {
  int64_t M, K, N;
  bool transposed;  // the weight lies as [N,K]
};

// A copy and its scale.
struct Copy {
  Ref values, scale;
};

// Slots in a buffer that grows.
class Slots {
 public:
  explicit Slots(BufferId buffer) : buffer_(buffer) {}

  uint64_t Add(uint64_t count = 1) {
    count_ += count;
    return (count_ - count) * kFp8SlotBytes;
  }
  Ref Amax(uint64_t slot) const { return {buffer_, slot + kFp8AmaxAt, 4, 0}; }
  Ref Scale(uint64_t slot) const { return {buffer_, slot + kFp8ScaleAt, 4, 0}; }
  uint64_t bytes() const { return count_ * kFp8SlotBytes; }
  BufferId buffer() const { return buffer_; }

 private:
  BufferId buffer_;
  uint64_t count_ = 0;
};

BufferId AddScales(Program& p, const char* label, bool persistent) {
  const BufferId id = AddBuffer(p, label, Role::kScales, Dtype::kF32, 0);
  p.buffers[id].persistent = persistent;
  return id;
}

// Of one section. `weights`: by unit, the first slot of its tensors, of all sections.
class Quantizer8 {
 public:
  using WeightSlots = std::map<int, uint64_t>;

  Quantizer8(Program& p, Section section, Slots& weight_slots, WeightSlots& weights)
      : p_(p),
        config_(p.setup.precision.fp8),
        trains_(section == Section::kMicroStep),
        in_(std::move(p.section(section))),
        out_(p.section(section)),
        emit_(p, out_),
        slots_(config_.recipe == Fp8Recipe::kTensor ? AddScales(p, "fp8_scales", false)
                                                    : kNoBuffer),
        weight_slots_(weight_slots),
        weights_(weights) {}

  void Run() {
    out_.clear();
    out_.reserve(in_.size() * 7 / 4);
    NoteUses();
    for (size_t i = 0; i < in_.size(); ++i) {
      at_ = i;
      const std::optional<LinearLaunch> linear = Linear(in_[i]);
      if (!linear) {
        Push(in_[i]);
        continue;
      }
      const LaunchKernel launch = std::get<LaunchKernel>(in_[i].op);
      emit_.Tag(in_[i].phase, in_[i].layer, in_[i].when);
      switch (launch.kernel) {
        case KernelId::kMatmulForward:
          Forward(*linear, launch);
          break;
        case KernelId::kMatmulBackwardData:
          BackwardData(*linear, launch);
          break;
        default:
          BackwardWeight(*linear, launch);
          break;
      }
      NoteWrites(in_[i], kNoMaker);
    }
    FillSlots();
  }

 private:
  static constexpr size_t kNoMaker = ~size_t{0};

  // How a product reads a value: as it lies, or transposed.
  struct Use {
    size_t at;
    bool transposed;
  };
  struct Value8 {
    std::optional<Copy> plain, transposed;
  };

  Ref Arg(const LaunchKernel& launch, size_t index) const {
    return index < launch.arg_count ? p_.refs[launch.first_arg + index] : Ref{};
  }
  Ref All(BufferId id) const { return Whole(p_, id); }

  // A product of a layer whose weight and sides may be of eight bits.
  std::optional<LinearLaunch> Linear(const Instruction& instruction) const {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || instruction.layer < 0 || instruction.layer >= p_.model.layers)
      return {};
    size_t weight = 1;
    switch (launch->kernel) {
      case KernelId::kMatmulForward:
      case KernelId::kMatmulBackwardData:
        break;
      case KernelId::kMatmulBackwardWeight:
        weight = 2;
        break;
      default:
        return {};
    }
    const auto [M, K, N] = FirstDims<3>(launch->dims);
    if (!IsFp8Product(config_, M, K, N)) return {};
    const Dtype of_weight = p_.buffers[Arg(*launch, weight).buffer].dtype;
    if (DtypeElements(of_weight) > 1) return {};  // NF4
    return LinearLaunch{M, K, N, (launch->flags & kTransposed) != 0};
  }

  void NoteUses() {
    uses_.resize(p_.buffers.size());
    for (size_t i = 0; i < in_.size(); ++i) {
      if (!Linear(in_[i])) continue;
      const auto& launch = std::get<LaunchKernel>(in_[i].op);
      const bool weight = launch.kernel == KernelId::kMatmulBackwardWeight;
      uses_[Arg(launch, 0).buffer].push_back({i, weight});
      if (weight) uses_[Arg(launch, 1).buffer].push_back({i, true});
    }
    writes_.resize(p_.buffers.size());
    for (size_t i = 0; i < in_.size(); ++i) {
      ForEachAccess(p_, in_[i], [&](const Ref& ref, ArgMode mode) {
        if (Writes(mode) && !uses_[ref.buffer].empty()) writes_[ref.buffer].push_back(i);
      });
    }
    made_.resize(p_.buffers.size());
    values_.resize(p_.buffers.size());
  }

  // Whether a product reads what the buffer holds now, transposed or as it lies.
  bool ReadLater(BufferId buffer, bool transposed) const {
    size_t end = in_.size();
    for (const size_t write : writes_[buffer]) {
      if (write >= at_) {
        end = write;
        break;
      }
    }
    for (const Use& use : uses_[buffer]) {
      if (use.at >= at_ && use.at <= end && use.transposed == transposed) return true;
    }
    return false;
  }

  void Push(const Instruction& instruction) {
    out_.push_back(instruction);
    NoteWrites(instruction, out_.size() - 1);
  }

  // What is overwritten has no copies any more.
  void NoteWrites(const Instruction& instruction, size_t maker) {
    ForEachAccess(p_, instruction, [&](const Ref& ref, ArgMode mode) {
      if (!Writes(mode) || ref.buffer >= made_.size()) return;
      made_[ref.buffer] = maker;
      values_[ref.buffer] = {};
    });
  }

  // Has the kernel that made `value` take its largest magnitude along; false: it cannot.
  bool TakeAlong(BufferId value, const Ref& amax) {
    const size_t maker = made_[value];
    if (maker == kNoMaker) return false;
    auto* launch = std::get_if<LaunchKernel>(&out_[maker].op);
    if (launch == nullptr) return false;
    const Magnitude& magnitude = KernelInfo(launch->kernel).magnitude;
    if (magnitude.of < 0 || out_[maker].when != kEvery) return false;
    const size_t of = static_cast<uint8_t>(magnitude.of),
                 at = static_cast<uint8_t>(magnitude.argument);
    const Ref made = Arg(*launch, of);
    if (made.buffer != value || made.bytes != p_.buffers[value].bytes) return false;
    if (launch->arg_count > at) return false;  // another has it already
    std::vector<Ref> args(at + 1);
    for (size_t i = 0; i < launch->arg_count; ++i) args[i] = Arg(*launch, i);
    args[at] = amax;
    launch->first_arg = static_cast<uint32_t>(p_.refs.size());
    launch->arg_count = static_cast<uint16_t>(args.size());
    p_.refs.insert(p_.refs.end(), args.begin(), args.end());
    return true;
  }

  Ref AddCopy(const char* label, Role role, Dtype dtype, uint64_t elements) {
    const BufferId id = AddBuffer(p_, label, role, dtype, StoredBytes(dtype, elements));
    p_.buffers[id].layer = in_[at_].layer;
    p_.buffers[id].memory_class = MemoryClass::kActivations;
    return All(id);
  }

  // Scales of blocks, for a copy with `rows` rows of `cols`.
  Ref AddBlockScales(Role role, int64_t block_rows, int64_t rows, int64_t cols) {
    const int64_t down = block_rows == 1 ? rows : rows / block_rows;
    const int64_t across = block_rows == 1 ? cols / kFp8Block : Fp8BlockScalesRow(cols);
    return AddCopy("block_scales", role, Dtype::kF32, static_cast<uint64_t>(down * across));
  }

  // The copies of `value`, [M,K], that products will read: made here if they are not there yet.
  Value8& Quantized(BufferId value, int64_t M, int64_t K) {
    if (values_[value].plain || values_[value].transposed) return values_[value];
    const bool gradient =
        p_.buffers[value].role != Role::kActivation || in_[at_].phase == Phase::kBackward;
    const Role role = gradient ? Role::kActivationGrad : Role::kActivation;
    const Dtype dtype = gradient ? config_.gradients : Dtype::kE4M3;
    const auto elements = static_cast<uint64_t>(M * K);
    Value8 copies;
    if (ReadLater(value, true)) {
      copies.transposed = {AddCopy(gradient ? "dyt_fp8" : "xt_fp8", role, dtype, elements), {}};
    }
    if (ReadLater(value, false)) {
      copies.plain = {AddCopy(gradient ? "dy_fp8" : "x_fp8", role, dtype, elements), {}};
    }
    Ref amax;
    if (config_.recipe == Fp8Recipe::kTensor) {
      const uint64_t slot = slots_.Add();
      amax = slots_.Amax(slot);
      if (!TakeAlong(value, amax)) {
        emit_.Launch(KernelId::kLargestMagnitude, {M * K}, kNoFlags, {All(value), amax});
      }
      if (copies.plain) copies.plain->scale = slots_.Scale(slot);
      if (copies.transposed) copies.transposed->scale = slots_.Scale(slot);
    } else {
      if (copies.plain) copies.plain->scale = AddBlockScales(role, 1, M, K);
      if (copies.transposed) copies.transposed->scale = AddBlockScales(role, 1, K, M);
    }
    LaunchQuantize(All(value), amax, copies, {M, K, BlockRows(false)});
    return values_[value] = copies;
  }

  int64_t BlockRows(bool weight) const {
    if (config_.recipe == Fp8Recipe::kTensor) return 0;
    return weight ? kFp8Block : 1;
  }

  void LaunchQuantize(const Ref& x, const Ref& amax, const Value8& copies, const KernelDims& dims) {
    const Copy plain = copies.plain.value_or(Copy{}),
               transposed = copies.transposed.value_or(Copy{});
    const bool one_scale = dims[2] == 0 && copies.transposed.has_value();
    emit_.Launch(KernelId::kQuantize, dims, kNoFlags,
                 {x, amax, transposed.values, transposed.scale, plain.values,
                  one_scale ? Ref{} : plain.scale});
  }

  uint64_t WeightSlot(const Ref& weight) {
    const Buffer& buffer = p_.buffers[weight.buffer];
    const std::vector<TensorSlot>& tensors =
        p_.layout.units[static_cast<size_t>(buffer.unit)].slots;
    const auto [first, fresh] = weights_.try_emplace(buffer.unit, 0);
    if (fresh) first->second = weight_slots_.Add(tensors.size());
    const uint64_t offset = weight.offset / DtypeBytes(buffer.dtype);
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const TensorSlot& t) { return t.offset == offset; });
    ZEROPLAN_CHECK(tensor != tensors.end(), "no tensor at {}", FormatRef(p_, weight));
    return first->second + static_cast<uint64_t>(tensor - tensors.begin()) * kFp8SlotBytes;
  }

  // The weight as [N,K] or, with `back`, as [K,N].
  Copy Weight(const Ref& weight, const LinearLaunch& linear, bool back) {
    const int64_t rows = linear.transposed ? linear.N : linear.K;
    const int64_t cols = linear.transposed ? linear.K : linear.N;
    Value8 copies;
    // Not a workspace: a segment that is computed again has its own.
    Copy copy{AddCopy("w_fp8", back ? Role::kActivationGrad : Role::kActivation, Dtype::kE4M3,
                      static_cast<uint64_t>(rows * cols)),
              {}};
    const bool plain = linear.transposed != back;
    Ref amax;
    if (config_.recipe == Fp8Recipe::kTensor) {
      const uint64_t slot = WeightSlot(weight);
      amax = weight_slots_.Amax(slot);
      copy.scale = weight_slots_.Scale(slot);
      if (in_[at_].phase == Phase::kForward) {
        if (trains_) emit_.When(kWritesGrads);
        emit_.Launch(KernelId::kLargestMagnitude, {rows * cols}, kNoFlags, {weight, amax});
        emit_.When(in_[at_].when);
      }
    } else {
      copy.scale = AddBlockScales(p_.buffers[copy.values.buffer].role, kFp8Block,
                                  plain ? rows : cols, plain ? cols : rows);
    }
    (plain ? copies.plain : copies.transposed) = copy;
    LaunchQuantize(weight, amax, copies, {rows, cols, BlockRows(true)});
    return copy;
  }

  // y (+)= a*b^T.
  void Multiply(int64_t M, int64_t K, int64_t N, const Copy& a, const Copy& b, bool weight_b,
                const std::array<Ref, 3>& bias_residual_y, uint8_t flags) {
    const bool fast = config_.recipe == Fp8Recipe::kTensor &&
                      (config_.fast_gradients || in_[at_].phase == Phase::kForward);
    emit_.Launch(KernelId::kFp8Matmul,
                 {M, K, N, BlockRows(false), BlockRows(weight_b), fast ? 1 : 0},
                 static_cast<uint8_t>(flags & kAccumulate),
                 {a.values, a.scale, b.values, b.scale, bias_residual_y[0], bias_residual_y[1],
                  bias_residual_y[2]});
  }

  void Forward(const LinearLaunch& l, const LaunchKernel& launch) {
    const Copy x_MK = *Quantized(Arg(launch, 0).buffer, l.M, l.K).plain;
    const Copy w_NK = Weight(Arg(launch, 1), l, false);
    Multiply(l.M, l.K, l.N, x_MK, w_NK, true, {Arg(launch, 2), Arg(launch, 3), Arg(launch, 4)},
             kNoFlags);
  }

  void BackwardData(const LinearLaunch& l, const LaunchKernel& launch) {
    const Copy dy_MN = *Quantized(Arg(launch, 0).buffer, l.M, l.N).plain;
    const Copy w_KN = Weight(Arg(launch, 1), l, true);
    Multiply(l.M, l.N, l.K, dy_MN, w_KN, true, {Ref{}, Ref{}, Arg(launch, 2)}, launch.flags);
  }

  void BackwardWeight(const LinearLaunch& l, const LaunchKernel& launch) {
    const Copy x_KM = *Quantized(Arg(launch, 0).buffer, l.M, l.K).transposed;
    const Copy dy_NM = *Quantized(Arg(launch, 1).buffer, l.M, l.N).transposed;
    const std::array<Ref, 3> to = {Ref{}, Ref{}, Arg(launch, 2)};
    if (l.transposed) {
      Multiply(l.N, l.M, l.K, dy_NM, x_KM, false, to, launch.flags);
    } else {
      Multiply(l.K, l.M, l.N, x_KM, dy_NM, false, to, launch.flags);
    }
    if (const Ref db_N = Arg(launch, 3); !db_N.null()) {
      emit_.Launch(KernelId::kBiasBackward, {l.M, l.N},
                   static_cast<uint8_t>(launch.flags & kAccumulate), {Arg(launch, 1), db_N});
    }
  }

  // Zeros before all else.
  void FillSlots() {
    if (config_.recipe != Fp8Recipe::kTensor || slots_.bytes() == 0) return;
    p_.buffers[slots_.buffer()].bytes = slots_.bytes();
    p_.buffers[weight_slots_.buffer()].bytes = weight_slots_.bytes();
    std::vector<Instruction> fills;
    Emitter emit(p_, fills);
    emit.Tag(Phase::kForward, -2);
    for (const BufferId id : {slots_.buffer(), weight_slots_.buffer()}) {
      const bool weights = id == weight_slots_.buffer();
      emit.When(weights && trains_ ? kWritesGrads : kEvery);
      emit.Launch(KernelId::kFill, {static_cast<int64_t>(p_.buffers[id].bytes)}, kNoFlags,
                  {All(id)});
    }
    out_.insert(out_.begin(), fills.begin(), fills.end());
  }

  Program& p_;
  const Fp8Config config_;
  const bool trains_;
  const std::vector<Instruction> in_;
  std::vector<Instruction>& out_;
  Emitter emit_;
  Slots slots_;
  Slots& weight_slots_;
  WeightSlots& weights_;
  size_t at_ = 0;                            // the instruction of in_ at hand
  std::vector<std::vector<Use>> uses_;       // by buffer, in order
  std::vector<std::vector<size_t>> writes_;  // by buffer, of those with uses
  std::vector<size_t> made_;    // by buffer: the instruction of out_ that wrote it last
  std::vector<Value8> values_;  // by buffer
};

}  // namespace

Program InsertFp8(Program p) {
  const Fp8Config& fp8 = p.setup.precision.fp8;
  if (!fp8.enabled || p.section(Section::kMicroStep).empty()) return p;
  const bool scales = fp8.recipe == Fp8Recipe::kTensor;
  Slots weight_slots(scales ? AddScales(p, "fp8_weight_scales", true) : kNoBuffer);
  Quantizer8::WeightSlots weights;
  for (const Section section : {Section::kMicroStep, Section::kEval}) {
    if (!p.section(section).empty()) Quantizer8(p, section, weight_slots, weights).Run();
  }
  return p;
}

}  // namespace zeroplan
