// Pass 5: kernels that take each row of a layer by itself (products, norms, GELU, SwiGLU: all but
// attention and what turns heads by their positions) run by tiles of LowerOptions::tile_rows rows
// where they make tensors that only they use. These are then as long as a tile. So what a layer
// that is computed again holds for the while is no longer than a tile but for attention's tensors,
// and neither is what evaluation holds. What is kept between the passes is made and read in parts.
//
// Each tile is as many rows as products need to run at full speed. Gradients of weights are written
// by a layer's first tile and added to by the others, as the head's are by chunks of logits:
// rounded once a tile where they have 16 bits. So layers of which products are not computed again,
// where memory is not what is short, have no tiles in training.
#include <algorithm>
#include <vector>

#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

// Which kernels take rows by themselves, and how many elements of dims[0] a row has.
enum class RowDim : uint8_t { kNone, kRows, kElements };
RowDim RowDimOf(KernelId kernel) {
  switch (kernel) {
    case KernelId::kLayerNormForward:
    case KernelId::kLayerNormBackward:
    case KernelId::kRmsNormForward:
    case KernelId::kRmsNormBackward:
    case KernelId::kMatmulForward:
    case KernelId::kMatmulBackwardData:
    case KernelId::kMatmulBackwardWeight:
    case KernelId::kMatmulGeluForward:
    case KernelId::kMatmulGeluBackward:
    case KernelId::kSwiGluForward:
    case KernelId::kSwiGluBackward:
      return RowDim::kRows;
    case KernelId::kGeluForward:
    case KernelId::kGeluBackward:
      return RowDim::kElements;
    default:
      return RowDim::kNone;
  }
}

bool IsRowTensor(const Buffer& buffer) {
  return buffer.role == Role::kActivation || buffer.role == Role::kActivationGrad;
}

class Tiler {
 public:
  Tiler(Program& program, Section section, int64_t rows, int64_t tile)
      : p_(program),
        list_(program.section(section)),
        trains_(section == Section::kMicroStep),
        rows_(rows),
        tile_(tile) {}

  void Run() {
    std::vector<Range> ranges = FindRanges();
    if (ranges.empty()) return;
    std::vector<Instruction> in = std::move(list_), out;
    out.reserve(in.size() * 2);
    uint32_t next = 0;
    for (const Range& range : ranges) {
      out.insert(out.end(), in.begin() + next, in.begin() + range.first);
      for (int64_t row = 0; row < rows_; row += tile_) {
        for (uint32_t i = range.first; i <= range.last; ++i) {
          out.push_back(OfTile(in[i], row, std::min(tile_, rows_ - row)));
        }
      }
      next = range.last + 1;
    }
    out.insert(out.end(), in.begin() + next, in.end());
    for (const BufferId id : inner_) {
      Buffer& buffer = p_.buffers[id];
      buffer.bytes = buffer.bytes / URows() * static_cast<uint64_t>(tile_);
    }
    list_ = std::move(out);
  }

 private:
  struct Range {
    uint32_t first = UINT32_MAX, last = 0;  // instructions
    uint64_t bytes = 0;                     // of the tensors that it alone uses
  };

  uint64_t URows() const { return static_cast<uint64_t>(rows_); }

  bool MayTile(const Instruction& instruction) const {
    if (instruction.layer < 0 || instruction.layer >= p_.model.layers) return false;
    return !trains_ || p_.setup.recompute.KindOf(instruction.layer) >= RecomputeKind::kProducts;
  }

  // Whether every argument is a tensor of all rows, or has none.
  bool TakesRows(const Instruction& instruction) const {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr) return false;
    const RowDim dim = RowDimOf(launch->kernel);
    if (dim == RowDim::kNone || launch->dims[0] % rows_ != 0 ||
        (dim == RowDim::kRows && launch->dims[0] != rows_)) {
      return false;
    }
    const std::span<const Ref> args = p_.args(*launch);
    return std::all_of(args.begin(), args.end(), [&](const Ref& ref) {
      if (ref.null()) return true;
      const Buffer& buffer = p_.buffers[ref.buffer];
      if (buffer.role == Role::kScales) return false;  // of the whole tensor
      return !IsRowTensor(buffer) ||
             (ref.offset == 0 && ref.bytes == buffer.bytes && ref.bytes % URows() == 0);
    });
  }

  // From a tensor's first use to its last, if all of these and what lies between take rows, of one
  // layer in one phase; joined where they overlap.
  std::vector<Range> FindRanges() {
    std::vector<Range> uses(p_.buffers.size());
    std::vector<uint32_t> breaks(list_.size() + 1, 0);  // instructions that do not, before each
    for (uint32_t i = 0; i < list_.size(); ++i) {
      const bool other =
          i > 0 && (list_[i].layer != list_[i - 1].layer || list_[i].phase != list_[i - 1].phase);
      const bool takes = MayTile(list_[i]) && TakesRows(list_[i]);
      breaks[i + 1] = breaks[i] + (takes ? 0 : 1);
      if (other) borders_.push_back(i);
      ForEachTouched(p_, list_[i], [&](BufferId id) {
        uses[id].first = std::min(uses[id].first, i);
        uses[id].last = i;
      });
    }
    std::vector<Range> ranges;
    for (BufferId id = 0; id < uses.size(); ++id) {
      Range& use = uses[id];
      const Buffer& buffer = p_.buffers[id];
      if (use.first > use.last || !IsRowTensor(buffer) || buffer.persistent ||
          breaks[use.last + 1] != breaks[use.first] || Crosses(use)) {
        continue;
      }
      use.bytes = buffer.bytes;
      inner_.push_back(id);
      ranges.push_back(use);
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.first < b.first; });
    std::vector<Range> joined;
    for (const Range& range : ranges) {
      if (joined.empty() || range.first > joined.back().last) {
        joined.push_back(range);
      } else {
        joined.back().last = std::max(joined.back().last, range.last);
        joined.back().bytes += range.bytes;
      }
    }
    // Two tensors of the residual stream's width are what a tile's further launches are worth.
    const uint64_t worth =
        2 * URows() * static_cast<uint64_t>(p_.model.hidden) * DtypeBytes(p_.setup.precision.dtype);
    std::erase_if(joined, [&](const Range& range) { return range.bytes < worth; });
    std::erase_if(inner_, [&](BufferId id) {
      return std::none_of(joined.begin(), joined.end(), [&](const Range& range) {
        return range.first <= uses[id].first && uses[id].last <= range.last;
      });
    });
    return joined;
  }

  bool Crosses(const Range& range) const {
    const auto border = std::upper_bound(borders_.begin(), borders_.end(), range.first);
    return border != borders_.end() && *border <= range.last;
  }

  // The launch on rows [row, row + count).
  Instruction OfTile(const Instruction& whole, int64_t row, int64_t count) {
    Instruction instruction = whole;
    auto& launch = std::get<LaunchKernel>(instruction.op);
    const auto first = static_cast<uint32_t>(p_.refs.size());
    bool gradient = false;
    for (uint32_t a = 0; a < launch.arg_count; ++a) {
      Ref ref = p_.refs[launch.first_arg + a];
      if (!ref.null()) {
        const Buffer& buffer = p_.buffers[ref.buffer];
        gradient = gradient || buffer.role == Role::kGradFull;
        if (IsRowTensor(buffer)) {
          const uint64_t row_bytes = ref.bytes / URows();
          const bool inner = std::binary_search(inner_.begin(), inner_.end(), ref.buffer);
          ref.offset = inner ? 0 : static_cast<uint64_t>(row) * row_bytes;
          ref.bytes = static_cast<uint64_t>(count) * row_bytes;
        }
      }
      p_.refs.push_back(ref);
    }
    launch.first_arg = first;
    launch.dims[0] = launch.dims[0] / rows_ * count;
    if (gradient && row > 0) launch.flags |= kAccumulate;
    return instruction;
  }

  Program& p_;
  std::vector<Instruction>& list_;
  const bool trains_;
  const int64_t rows_, tile_;
  std::vector<uint32_t> borders_;  // where another layer or phase begins, rising
  std::vector<BufferId> inner_;    // tensors that a range alone uses, rising
};

}  // namespace

Program TileRows(Program p, const LowerOptions& options, Extent) {
  const int64_t rows = p.setup.batch.micro_batch * p.setup.batch.local_seq();
  if (options.tile_rows <= 0 || rows <= options.tile_rows) return p;
  for (const Section section : {Section::kMicroStep, Section::kEval}) {
    Tiler(p, section, rows, options.tile_rows).Run();
  }
  return p;
}

}  // namespace zeroplan
