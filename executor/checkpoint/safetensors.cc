#include "executor/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "executor/checkpoint/safetensors_header.h"
#include "executor/kernels/convert.h"

namespace zeroplan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

std::optional<Dtype> FloatDtype(std::string_view dtype) {
  if (dtype == "F32") return Dtype::kF32;
  if (dtype == "BF16") return Dtype::kBF16;
  if (dtype == "F16") return Dtype::kF16;
  return std::nullopt;
}

const char* SafetensorsDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "F32";
    case Dtype::kBF16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
    case Dtype::kF64:
    case Dtype::kI32:
    case Dtype::kU8:
      break;
  }
  ZEROPLAN_CHECK(false, "no tensors of {} are written", DtypeName(dtype));
}

// Ranges below this are read as they come: advice about few pages costs more than it saves.
constexpr uint64_t kAdviseBytes = uint64_t{1} << 20;
// Read from disk beyond what is asked for: what follows is most often what comes next.
constexpr uint64_t kAheadBytes = uint64_t{32} << 20;
// Values that are rounded at a time.
constexpr size_t kNarrowElements = size_t{1} << 16;

// What somebody has instead of a large file who did not fetch it.
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/";

}  // namespace

std::string FormatShape(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string Printable(std::string_view text) { return PrintableText(text, 120); }

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
  if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
          .starts_with(kLfsPointer)) {
    ThrowUsage("{}: is a Git LFS pointer, not the file itself; get it with 'git lfs pull'",
               path.string());
  }
  if (length > kMaxHeaderBytes) {
    ThrowUsage("{}: a header of {} bytes is past the limit of {}; not a safetensors file?",
               path.string(), length, kMaxHeaderBytes);
  }
  if (length > bytes.size() - kLengthBytes) {
    ThrowUsage("{}: the header should have {} bytes, but the file ends after {}; get it again",
               path.string(), length, bytes.size() - kLengthBytes);
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
  const auto dtype = FloatDtype(entry.dtype);
  if (!dtype) {
    ThrowUsage("{}: tensor '{}' has dtype {}; F32, BF16 and F16 can be read", path_.string(),
               Printable(entry.name), entry.dtype);
  }
  const uint64_t first = begin * DtypeBytes(*dtype), bytes = out.size() * DtypeBytes(*dtype);
  Prefetch(entry, first, bytes);
  Widen(*dtype, Bytes(entry).data() + first, static_cast<int64_t>(out.size()), out.data());
  DropResident(entry, first, bytes);
}

void SafetensorsFile::Prefetch(const SafetensorsEntry& entry, uint64_t begin,
                               uint64_t bytes) const {
  if (bytes < kAdviseBytes) return;
  file_.Prefetch(data_offset_ + entry.begin + begin, bytes + kAheadBytes);
}

void SafetensorsFile::DropResident(const SafetensorsEntry& entry, uint64_t begin,
                                   uint64_t bytes) const {
  if (bytes >= kAdviseBytes) file_.DropResident(data_offset_ + entry.begin + begin, bytes);
}

uint64_t SafetensorsPlan::Tensor::elements() const {
  uint64_t product = 1;
  for (const uint64_t extent : shape) product = CheckedMul(product, extent, name);
  return product;
}

SafetensorsPlan PlanSafetensors(std::span<const SafetensorsPlan::Tensor> tensors,
                                std::map<std::string, std::string> metadata) {
  metadata["format"] = "pt";
  nlohmann::ordered_json json;
  json["__metadata__"] = metadata;
  auto& members = json.get_ref<nlohmann::ordered_json::object_t&>();
  std::unordered_set<std::string_view> names;
  SafetensorsPlan plan;
  uint64_t data_bytes = 0;
  for (const auto& tensor : tensors) {
    const uint64_t elements = tensor.elements();
    const uint64_t end = CheckedAdd(
        data_bytes, CheckedMul(elements, DtypeBytes(tensor.dtype), tensor.name), tensor.name);
    ZEROPLAN_CHECK(names.insert(tensor.name).second, "a tensor name is used twice");
    // Behind the others, without a look through all of them.
    nlohmann::ordered_json entry = {{"dtype", SafetensorsDtype(tensor.dtype)},
                                    {"shape", tensor.shape},
                                    {"data_offsets", {data_bytes, end}}};
    members.push_back({tensor.name, std::move(entry)});
    plan.offset.push_back(data_bytes);
    plan.elements.push_back(elements);
    plan.dtype.push_back(tensor.dtype);
    data_bytes = end;
  }
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
  const Dtype dtype = plan_.dtype[tensor];
  const uint64_t at = plan_.offset[tensor] + begin * DtypeBytes(dtype);
  if (dtype == Dtype::kF32) {
    file_.WriteAt(at, std::as_bytes(values));
    return;
  }
  std::vector<std::byte> rounded(std::min(values.size(), kNarrowElements) * DtypeBytes(dtype));
  for (size_t done = 0; done < values.size(); done += kNarrowElements) {
    const auto part = values.subspan(done, std::min(kNarrowElements, values.size() - done));
    Narrow(dtype, part.data(), static_cast<int64_t>(part.size()), rounded.data());
    file_.WriteAt(at + done * DtypeBytes(dtype),
                  std::span(rounded).first(part.size() * DtypeBytes(dtype)));
  }
}

}  // namespace zeroplan
