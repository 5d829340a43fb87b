#include "executor/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "executor/checkpoint/safetensors_header.h"

namespace zeroplan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr uint64_t kLengthBytes = 8;
// The reference implementation's limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

float WidenBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float WidenF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal: exact
  return sign != 0 ? -magnitude : magnitude;
}

template <float (*kWiden)(uint16_t)>
void Widen(const std::byte* data, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
    out[i] = kWiden(bits);
  }
}

}  // namespace

std::string FormatShape(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string Printable(std::string_view text) {
  constexpr size_t kMaxCharacters = 120;
  std::string printable(text.substr(0, kMaxCharacters));
  for (char& c : printable) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > kMaxCharacters) printable += "...";
  return printable;
}

uint64_t HashBytes(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

SafetensorsFile SafetensorsFile::Open(const std::filesystem::path& path) {
  SafetensorsFile result;
  result.path_ = path;
  result.file_ = MappedFile::Open(path);
  const auto bytes = result.file_.bytes();
  if (bytes.size() < kLengthBytes) {
    ThrowUsage("{}: {} bytes are too few for a safetensors file", path.string(), bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    ThrowUsage("{}: a header of {} bytes is past the limit of {}; not a safetensors file?",
               path.string(), length, kMaxHeaderBytes);
  }
  if (length > bytes.size() - kLengthBytes) {
    ThrowUsage("{}: the header should have {} bytes, but the file ends after {}", path.string(),
               length, bytes.size() - kLengthBytes);
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') {
    ThrowUsage("{}: the header does not begin with '{{'; not a safetensors file?", path.string());
  }
  result.data_offset_ = kLengthBytes + length;
  result.header_hash_ = HashBytes(bytes.first(result.data_offset_));
  auto header = ParseSafetensorsHeader({text, length}, bytes.size() - result.data_offset_, path);
  result.entries_ = std::move(header.entries);
  result.metadata_ = std::move(header.metadata);
  result.by_name_.reserve(result.entries_.size());
  for (size_t i = 0; i < result.entries_.size(); ++i) {
    result.by_name_.emplace(result.entries_[i].name, i);
  }
  return result;
}

const SafetensorsEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> SafetensorsFile::Bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().subspan(data_offset_ + entry.begin, entry.end - entry.begin);
}

void SafetensorsFile::ReadFloats(const SafetensorsEntry& entry, uint64_t begin,
                                 std::span<float> out) const {
  ZEROPLAN_CHECK(begin <= entry.elements && out.size() <= entry.elements - begin,
                 "{} + {} of {} elements of {}", begin, out.size(), entry.elements, entry.name);
  if (out.empty()) return;
  const std::byte* data = Bytes(entry).data();
  if (entry.dtype == "F32") {
    std::memcpy(out.data(), data + begin * sizeof(float), out.size_bytes());
  } else if (entry.dtype == "BF16") {
    Widen<WidenBf16>(data + begin * sizeof(uint16_t), out);
  } else if (entry.dtype == "F16") {
    Widen<WidenF16>(data + begin * sizeof(uint16_t), out);
  } else {
    ThrowUsage("{}: tensor '{}' has dtype {}; F32, BF16 and F16 can be read", path_.string(),
               Printable(entry.name), entry.dtype);
  }
}

SafetensorsPlan PlanSafetensors(std::span<const SafetensorsPlan::Tensor> tensors,
                                std::map<std::string, std::string> metadata) {
  metadata["format"] = "pt";
  nlohmann::ordered_json json;
  json["__metadata__"] = metadata;
  SafetensorsPlan plan;
  uint64_t data_bytes = 0;
  for (const auto& tensor : tensors) {
    uint64_t elements = 1;
    for (const uint64_t extent : tensor.shape) {
      elements = CheckedMul(elements, extent, tensor.name);
    }
    const uint64_t end = CheckedAdd(
        data_bytes, CheckedMul(elements, sizeof(float), tensor.name), tensor.name);
    json[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {data_bytes, end}}};
    plan.offset.push_back(data_bytes);
    plan.elements.push_back(elements);
    data_bytes = end;
  }
  ZEROPLAN_CHECK(json.size() == tensors.size() + 1, "a tensor name is used twice");
  std::string text = json.dump();
  text.resize(AlignUp(text.size(), 8), ' ');
  const uint64_t length = text.size();
  plan.header.resize(kLengthBytes);
  std::memcpy(plan.header.data(), &length, kLengthBytes);
  plan.header += text;
  for (uint64_t& offset : plan.offset) offset += plan.header.size();
  plan.file_bytes = plan.header.size() + data_bytes;
  return plan;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, SafetensorsPlan plan,
                                     IoHook* hook)
    : plan_(std::move(plan)), file_(DurableFile::Create(path, hook)) {
  file_.Reserve(plan_.file_bytes);
  file_.WriteAt(0, std::as_bytes(std::span(plan_.header)));
}

void SafetensorsWriter::WriteAt(size_t tensor, uint64_t begin, std::span<const float> values) {
  const uint64_t elements = plan_.elements.at(tensor);
  ZEROPLAN_CHECK(begin <= elements && values.size() <= elements - begin, "{} + {} of {} elements",
                 begin, values.size(), elements);
  file_.WriteAt(plan_.offset[tensor] + begin * sizeof(float), std::as_bytes(values));
}

}  // namespace zeroplan
