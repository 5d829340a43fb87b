#include "executor/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/limits.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "executor/kernels/cpu_levels.h"

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
    case Dtype::kU8:
      return "U8";
    case Dtype::kF64:
    case Dtype::kI32:
    case Dtype::kNf4:
    case Dtype::kInt8Blocks:
    case Dtype::kInt4Blocks:
    case Dtype::kI16:
    case Dtype::kDynamic8:
    case Dtype::kUnsignedDynamic8:
    case Dtype::kE4M3:
    case Dtype::kE5M2:
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

void RoundAsParams(Dtype dtype, std::span<const float> values, std::byte* out) {
  const auto count = static_cast<int64_t>(values.size());
  if (dtype != Dtype::kBF16) return BestCpuKernels().narrow(dtype, values.data(), count, out);
  BestCpuKernels().narrow_half_away(values.data(), count, reinterpret_cast<uint16_t*>(out));
}

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
  if (length > kMostHeaderBytes) {
    ThrowUsage("{}: a header of {} bytes is past the limit of {}; not a safetensors file?",
               path.string(), length, kMostHeaderBytes);
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
  BestCpuKernels().widen(*dtype, Bytes(entry).data() + first, static_cast<int64_t>(out.size()),
                         out.data());
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
  const Dtype dtype = plan_.dtype.at(tensor);
  if (dtype == Dtype::kF32) return WriteStored(tensor, begin, std::as_bytes(values));
  std::vector<std::byte> rounded(std::min(values.size(), kNarrowElements) * DtypeBytes(dtype));
  for (size_t done = 0; done < values.size(); done += kNarrowElements) {
    const auto part = values.subspan(done, std::min(kNarrowElements, values.size() - done));
    RoundAsParams(dtype, part, rounded.data());
    WriteStored(tensor, begin + done, std::span(rounded).first(part.size() * DtypeBytes(dtype)));
  }
}

void SafetensorsWriter::WriteStored(size_t tensor, uint64_t begin,
                                    std::span<const std::byte> stored) {
  const uint64_t elements = plan_.elements.at(tensor), size = DtypeBytes(plan_.dtype[tensor]);
  ZEROPLAN_CHECK(begin <= elements && stored.size() / size <= elements - begin,
                 "{} + {} of {} elements", begin, stored.size() / size, elements);
  file_.WriteAt(plan_.offset[tensor] + begin * size, stored);
}

namespace {

using HeaderJson = nlohmann::json;

// An object of objects of arrays: anything deeper is refused while it is parsed, before it costs
// memory.
constexpr size_t kMaxDepth = 3;
constexpr std::string_view kMetadataKey = "__metadata__";

std::optional<uint64_t> DtypeSize(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, uint64_t>, 15> kSizes{{{"BOOL", 1},
                                                                                 {"U8", 1},
                                                                                 {"I8", 1},
                                                                                 {"F8_E5M2", 1},
                                                                                 {"F8_E4M3", 1},
                                                                                 {"I16", 2},
                                                                                 {"U16", 2},
                                                                                 {"F16", 2},
                                                                                 {"BF16", 2},
                                                                                 {"I32", 4},
                                                                                 {"U32", 4},
                                                                                 {"F32", 4},
                                                                                 {"I64", 8},
                                                                                 {"U64", 8},
                                                                                 {"F64", 8}}};
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return std::nullopt;
}

// Looks at the text before anything is made of it: the depth, and that no object gives a name
// twice, which would hide the first one. A pass of its own: the library's callback while it parses
// goes through all of an object's members at the end of each of them.
class StrictnessCheck : public nlohmann::json_sax<HeaderJson> {
 public:
  explicit StrictnessCheck(const std::filesystem::path& path) : path_(path) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    Open();
    // Not clear(), which goes through the buckets of the largest object so far.
    keys_[depth_ - 1] = {};
    return true;
  }
  bool key(string_t& name) override {
    if (!keys_[depth_ - 1].insert(name).second) {
      ThrowUsage("{}: the header gives '{}' twice", path_.string(), Printable(name));
    }
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const HeaderJson::exception& error) override {
    ThrowUsage("{}: the header is not valid JSON: {}", path_.string(), Printable(error.what()));
  }

 private:
  bool Open() {
    if (depth_ >= kMaxDepth) ThrowUsage("{}: header nested too deeply", path_.string());
    ++depth_;
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }

  const std::filesystem::path& path_;
  size_t depth_ = 0;
  std::array<std::unordered_set<std::string>, kMaxDepth> keys_;  // of the open objects, by depth
};

HeaderJson ParseStrictly(std::string_view text, const std::filesystem::path& path) {
  StrictnessCheck check(path);
  HeaderJson::sax_parse(text, &check);
  try {
    return HeaderJson::parse(text);
  } catch (const HeaderJson::exception& error) {  // numbers past a double
    ThrowUsage("{}: the header is not valid JSON: {}", path.string(), Printable(error.what()));
  }
}

class TensorParser {
 public:
  TensorParser(const std::filesystem::path& path, const std::string& name, uint64_t data_bytes)
      : path_(path), name_(name), data_bytes_(data_bytes) {}

  SafetensorsEntry Parse(const HeaderJson& json) const {
    if (!json.is_object()) Fail("is not described by an object");
    for (const auto& [key, value] : json.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        Fail(fmt::format("has the unknown key '{}'", Printable(key)));
      }
    }
    SafetensorsEntry entry;
    entry.name = name_;
    const HeaderJson& dtype = Get(json, "dtype");
    if (!dtype.is_string()) Fail("has a dtype that is not a string");
    entry.dtype = dtype.get<std::string>();
    const auto size = DtypeSize(entry.dtype);
    if (!size) Fail(fmt::format("has the unknown dtype '{}'", Printable(entry.dtype)));
    entry.shape = Numbers(json, "shape");
    const auto offsets = Numbers(json, "data_offsets");
    if (offsets.size() != 2) Fail("needs two data_offsets, begin and end");
    entry.begin = offsets[0];
    entry.end = offsets[1];

    entry.elements = 1;
    for (const uint64_t extent : entry.shape) entry.elements = Multiply(entry.elements, extent);
    const uint64_t bytes = Multiply(entry.elements, *size);
    if (entry.begin > entry.end || entry.end > data_bytes_) {
      Fail(fmt::format(
          "lies at [{}, {}) of {} bytes of data: outside the file; is it cut short? Get it again",
          entry.begin, entry.end, data_bytes_));
    }
    if (entry.end - entry.begin != bytes) {
      Fail(fmt::format("of shape {} and dtype {} takes {} bytes, its data_offsets give {}",
                       FormatShape(entry.shape), entry.dtype, bytes, entry.end - entry.begin));
    }
    return entry;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    ThrowUsage("{}: tensor '{}' {}", path_.string(), Printable(name_), what);
  }
  const HeaderJson& Get(const HeaderJson& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end()) Fail(fmt::format("has no {}", key));
    return *found;
  }
  std::vector<uint64_t> Numbers(const HeaderJson& json, const char* key) const {
    const HeaderJson& list = Get(json, key);
    if (!list.is_array()) Fail(fmt::format("has a {} that is not an array", key));
    std::vector<uint64_t> numbers;
    numbers.reserve(list.size());
    for (const HeaderJson& item : list) {
      if (!item.is_number_unsigned()) {
        Fail(fmt::format("has a {} entry that is not a non-negative integer", key));
      }
      numbers.push_back(item.get<uint64_t>());
    }
    return numbers;
  }
  uint64_t Multiply(uint64_t a, uint64_t b) const {
    if (b != 0 && a > std::numeric_limits<uint64_t>::max() / b) Fail("has a shape that overflows");
    return a * b;
  }

  const std::filesystem::path& path_;
  const std::string& name_;
  uint64_t data_bytes_;
};

std::map<std::string, std::string> ParseMetadata(const HeaderJson& json,
                                                 const std::filesystem::path& path) {
  if (!json.is_object()) ThrowUsage("{}: {} is not an object", path.string(), kMetadataKey);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      ThrowUsage("{}: {}, key '{}': not a string", path.string(), kMetadataKey, Printable(key));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

void CheckCover(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes,
                const std::filesystem::path& path) {
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      ThrowUsage("{}: tensor '{}' begins at byte {} of the data, {} {}", path.string(),
                 Printable(entry.name), entry.begin,
                 entry.begin < covered ? "overlapping one that ends at" : "leaving a gap from",
                 covered);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    ThrowUsage("{}: {} bytes behind the last tensor belong to none", path.string(),
               data_bytes - covered);
  }
}

}  // namespace

SafetensorsHeader ParseSafetensorsHeader(std::string_view text, uint64_t data_bytes,
                                         const std::filesystem::path& path) {
  const HeaderJson json = ParseStrictly(text, path);
  if (!json.is_object()) ThrowUsage("{}: the header is not a JSON object", path.string());
  SafetensorsHeader header;
  header.entries.reserve(json.size());
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      header.metadata = ParseMetadata(value, path);
    } else {
      header.entries.push_back(TensorParser(path, name, data_bytes).Parse(value));
    }
  }
  // By end too, so that empty tensors come before the one that begins where they lie.
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  CheckCover(header.entries, data_bytes, path);
  return header;
}

}  // namespace zeroplan
