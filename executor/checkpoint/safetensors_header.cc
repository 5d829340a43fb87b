#include "executor/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
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
