// What shard files store of states, each in the dtype that its run keeps it in:
//
//   fp32, bf16, fp16   one entry of that dtype
//   8 bits             the codes, U8, and in an entry of its own the scale of each 256 of them, F32
//
// Nothing is lost on the way through fp32, in which states come and go: 16 bits widen exactly, and
// groups of codes that are read and made anew are the same (core/base/dynamic8.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/dynamic8.h"
#include "core/base/units.h"
#include "core/program/layout.h"
#include "core/program/program.h"

namespace zeroplan {

// A tensor's entries are of these kinds: its states, by StateKind, and the scales of its moments.
inline constexpr size_t kEntryKinds = kStateKinds.size() + kMomentKinds.size();
constexpr size_t EntryKind(StateKind state) { return static_cast<size_t>(state); }
constexpr bool IsScaleKind(size_t kind) { return kind >= kStateKinds.size(); }
// REQUIRES: a moment.
constexpr size_t ScaleKind(StateKind state) { return EntryKind(state) + kMomentKinds.size(); }
// "master", "adam_m", "adam_v", "adam_m_scale", "adam_v_scale".
std::string_view EntryKindName(size_t kind);
// "transformer.wte.weight|adam_m|4096": of the tensor's elements from 4096 on. One-dimensional.
std::string ShardEntryName(std::string_view tensor, size_t kind, uint64_t begin);

// What is stored of a state: kF32, kBF16, kF16, kDynamic8 or kUnsignedDynamic8.
Dtype StoredDtype(const ParamLayout& layout, const ParamTensor& tensor, StateKind state);
// What an entry of codes becomes fp32 by. REQUIRES: a moment.
constexpr Dtype CodesDtype(StateKind state) {
  return state == StateKind::kFirst ? Dtype::kDynamic8 : Dtype::kUnsignedDynamic8;
}
constexpr uint64_t ScaleCount(uint64_t elements) { return CeilDiv(elements, kDynamic8Group); }

// `values` begin with a group; the last one may be cut short, by zeros. REQUIRES: as many codes,
// and ScaleCount(values.size()) scales.
void EncodeDynamic8(Dtype dtype, std::span<const float> values, std::span<uint8_t> codes,
                    std::span<float> scales);
// The first code is element `begin` of the first scale's group.
void DecodeDynamic8(Dtype dtype, std::span<const uint8_t> codes, uint64_t begin,
                    std::span<const float> scales, std::span<float> out);

}  // namespace zeroplan
