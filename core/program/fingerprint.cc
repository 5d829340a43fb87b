#include "core/program/fingerprint.h"

#include <fmt/format.h>

#include <bit>
#include <string_view>
#include <type_traits>

#include "core/model/model_fields.h"

namespace zeroplan {
namespace {

// FNV-1a over words in place of bytes, with a rotation: a multiplication alone never carries a high
// bit of the input down to the low ones. Constants: FNV's 64-bit offset and prime (Fowler, Noll and
// Vo; draft-eastlake-fnv), and splitmix64's finaliser (Steele, Lea and Flood 2014, figure 16).
class Hasher {
 public:
  template <typename... T>
  void Add(const T&... values) {
    (Mix(Word(values)), ...);
  }
  void AddText(std::string_view text) {
    Add(text.size());
    for (const char c : text) Mix(static_cast<unsigned char>(c));
  }
  uint64_t Finish() const {
    uint64_t h = hash_;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    return h ^ (h >> 31);
  }

 private:
  template <typename T>
  static uint64_t Word(const T& value) {
    if constexpr (std::is_same_v<T, double>) {
      return std::bit_cast<uint64_t>(value);
    } else if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<uint32_t>(value);
    } else {
      static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
      return static_cast<uint64_t>(value);
    }
  }
  void Mix(uint64_t word) {
    hash_ = std::rotl((hash_ ^ word) * 0x100000001b3u, 29) + 0x9e3779b97f4a7c15u;
  }

  uint64_t hash_ = 0xcbf29ce484222325u;
};

void AddRef(Hasher& hash, const Ref& ref) {
  hash.Add(ref.buffer, ref.offset, ref.bytes, ref.shard_stride);
  if (ref.replica_stride != 0) hash.Add(ref.replica_stride);
}

// Neither the name nor the family and its rotary scaling, which are in everything below.
void AddModel(Hasher& hash, const ModelSpec& model) {
  ForEachWrittenField(model, [&]<typename T>(const ModelField&, const T& value) {
    if constexpr (std::is_arithmetic_v<T>) hash.Add(value);
  });
}

void AddLayout(Hasher& hash, const ParamLayout& layout) {
  hash.Add(layout.shards, layout.units.size());
  if (layout.slices > 1) hash.Add(layout.slices);
  for (const Unit& unit : layout.units) {
    hash.Add(unit.layer, unit.persistent, unit.elements, unit.shard_elements, unit.padded_elements,
             unit.slots.size());
    if (!unit.trainable) hash.Add(unit.trainable);
    for (const TensorSlot& slot : unit.slots) hash.Add(slot.tensor, slot.offset, slot.elements);
  }
}

// A role's number. Plan files keep fingerprints, which were made with numbers 4 to 6, 8 to 10 and
// 11 to 13 for the optimizer states on the device, in host memory and in the swap file.
uint64_t RoleNumber(const Buffer& b) {
  constexpr uint64_t kFirstAt[] = {4, 8, 11};
  constexpr uint64_t kGradHost = 7, kStateSlot = 14;
  if (b.role == Role::kOptimizerState) {
    return kFirstAt[static_cast<size_t>(HomeOf(b.space))] + static_cast<uint64_t>(b.state);
  }
  const auto role = static_cast<uint64_t>(b.role);
  if (b.role < Role::kOptimizerState) return role;
  if (b.role == Role::kGradHost) return kGradHost;
  return kStateSlot + role - static_cast<uint64_t>(Role::kStateSlot);
}

void AddBuffer(Hasher& hash, const Buffer& b) {
  hash.AddText(b.label);
  hash.Add(b.bytes, b.offset, b.layer, b.unit, b.space, b.memory_class, RoleNumber(b), b.dtype,
           b.persistent);
}

void AddInstruction(Hasher& hash, const Instruction& instruction) {
  hash.Add(instruction.op.index(), instruction.stream, instruction.when, instruction.phase,
           instruction.layer);
  std::visit(Overload{
                 [&](const LaunchKernel& k) {
                   hash.Add(k.kernel, k.flags, k.arg_count, k.first_arg);
                   for (const int64_t dim : k.dims) hash.Add(dim);
                   for (const float scalar : k.scalars) hash.Add(scalar);
                 },
                 [&](const Collective& c) {
                   hash.Add(c.kind, c.dtype, c.first_segment, c.segment_count, c.scalar);
                   if (c.axis != RankAxis::kAll) hash.Add(c.axis);
                 },
                 [&](const Copy& c) {
                   AddRef(hash, c.src);
                   AddRef(hash, c.dst);
                 },
                 [&](const FileIo& f) {
                   hash.Add(f.write, f.target, f.unit, f.state, f.begin, f.count);
                   AddRef(hash, f.host);
                   AddRef(hash, f.file);
                 },
                 [&](const Alloc& a) { hash.Add(a.buffer); },
                 [&](const Free& f) { hash.Add(f.buffer); },
                 [&](const RecordEvent& r) { hash.Add(r.event); },
                 [&](const WaitEvent& w) { hash.Add(w.event); },
             },
             instruction.op);
}

}  // namespace

uint64_t Fingerprint(const Program& p) {
  Hasher hash;
  AddModel(hash, p.model);
  const BatchSpec& batch = p.setup.batch;
  hash.Add(batch.micro_batch, batch.grad_accum, batch.world_size, batch.seq_len,
           p.setup.precision.dtype, p.backend);
  AddLayout(hash, p.layout);
  hash.Add(p.buffers.size());
  for (const Buffer& buffer : p.buffers) AddBuffer(hash, buffer);
  hash.Add(p.refs.size());
  for (const Ref& ref : p.refs) AddRef(hash, ref);
  hash.Add(p.segments.size());
  for (const Segment& segment : p.segments) {
    AddRef(hash, segment.src);
    AddRef(hash, segment.dst);
    hash.Add(segment.unit, segment.begin, segment.end);
  }
  for (const std::vector<Instruction>& section : p.sections) {
    hash.Add(section.size());
    for (const Instruction& instruction : section) AddInstruction(hash, instruction);
  }
  for (const uint64_t bytes : p.arena_bytes) hash.Add(bytes);
  for (const uint64_t bytes : p.persistent_bytes) hash.Add(bytes);
  hash.Add(p.event_count, p.state_buffer, p.state_host_buffer, p.tokens_buffer,
           p.tokens_host_buffer, p.logits_host_buffer, p.matmul_workspace);
  if (p.document_borders) hash.Add(p.document_borders);
  if (p.own_documents) hash.Add(p.own_documents);
  if (batch.sequence_ranks > 1) hash.Add(batch.sequence_ranks);
  return hash.Finish();
}

std::string FormatFingerprint(uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

}  // namespace zeroplan
