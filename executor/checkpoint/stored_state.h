// The form in which shard files store states, each in the dtype in which its run keeps it:
//
//   fp32, bf16, fp16   one entry of that dtype
//   8 bits             the codes, U8, and in an entry of its own the scale of each 256 of them, F32
//
// States are read and written as fp32, without loss: 16 bits widen exactly, and decoding and
// encoding a group of codes gives the same codes (core/base/dynamic8.h).
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

// The number of kinds of a tensor's entries: its states, by StateKind, and the scales of its
// moments.
inline constexpr size_t kEntryKinds = kStateKinds.size() + kMomentKinds.size();
constexpr size_t EntryKind(StateKind state) { return static_cast<size_t>(state); }
constexpr bool IsScaleKind(size_t kind) { return kind >= kStateKinds.size(); }
// REQUIRES: a moment.
constexpr size_t ScaleKind(StateKind state) { return EntryKind(state) + kMomentKinds.size(); }
// "master", "adam_m", "adam_v", "adam_m_scale", "adam_v_scale".
std::string_view EntryKindName(size_t kind);
// "transformer.wte.weight|adam_m|4096": the tensor's elements from 4096 on. The entry is
// one-dimensional.
std::string ShardEntryName(std::string_view tensor, size_t kind, uint64_t begin);

// The dtype in which a state is stored: kF32, kBF16, kF16, kDynamic8 or kUnsignedDynamic8.
Dtype StoredDtype(const ParamLayout& layout, const ParamTensor& tensor, StateKind state);
// The dtype by which codes are decoded to fp32. REQUIRES: a moment.
constexpr Dtype CodesDtype(StateKind state) {
  return state == StateKind::kFirst ? Dtype::kDynamic8 : Dtype::kUnsignedDynamic8;
}
constexpr uint64_t ScaleCount(uint64_t elements) { return CeilDiv(elements, kDynamic8Group); }

// `values` begin at a group boundary; if the last group is incomplete, zeros fill it. REQUIRES:
// values.size() codes, and ScaleCount(values.size()) scales.
void EncodeDynamic8(Dtype dtype, std::span<const float> values, std::span<uint8_t> codes,
                    std::span<float> scales);
// The first code is element `begin` of the first scale's group.
void DecodeDynamic8(Dtype dtype, std::span<const uint8_t> codes, uint64_t begin,
                    std::span<const float> scales, std::span<float> out);

}  // namespace zeroplan
