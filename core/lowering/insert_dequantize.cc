// Pass 7: matrices that are kept in NF4 (ParamRow::quantized). Products take them in the compute
// dtype, so each is made anew right before a product, in a buffer that lives as long as that. The
// buffer holds one matrix, and the gather of a unit at stage 3 moves four bits a weight.
#include <algorithm>

#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

void DequantizeSection(Program& p, Section section) {
  std::vector<Instruction> in = std::move(p.section(section));
  std::vector<Instruction> out;
  out.reserve(in.size() * 5 / 4);
  Emitter emit(p, out);
  const Dtype dtype = p.setup.precision.dtype;
  for (const Instruction& instruction : in) {
    if (const auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
      for (uint32_t a = 0; a < launch->arg_count; ++a) {
        const Ref kept = p.refs[launch->first_arg + a];
        if (kept.null() || p.buffers[kept.buffer].dtype != Dtype::kNf4) continue;
        // Only products take such a matrix, whose dims begin with M, K, N.
        const auto [M, K, N] = FirstDims<3>(launch->dims);
        const auto elements = static_cast<uint64_t>(K * N);
        const BufferId copy =
            AddBuffer(p, "dequantized", Role::kWorkspace, dtype, StoredBytes(dtype, elements));
        p.buffers[copy].layer = instruction.layer;
        emit.Tag(instruction.phase, instruction.layer, instruction.when);
        emit.Launch(KernelId::kConvert, {K * N}, kNoFlags, {kept, Whole(p, copy)});
        p.refs[launch->first_arg + a] = Whole(p, copy);
      }
    }
    out.push_back(instruction);
  }
  p.section(section) = std::move(out);
}

}  // namespace

Program InsertDequantize(Program p) {
  const std::vector<Unit>& units = p.layout.units;
  if (std::none_of(units.begin(), units.end(), [](const Unit& u) { return u.quantized; })) {
    return p;
  }
  for (const Section section : {Section::kMicroStep, Section::kEval}) DequantizeSection(p, section);
  return p;
}

}  // namespace zeroplan
