#include "core/families/weight_headers.h"

#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr double kMostElements = 1e15;
constexpr const char* kWhole = "the file is cut off or damaged; get it anew";

// Bytes of an element of a parameter; 0: quantized values are packed in it, or it is unknown.
int ElementBytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  return dtype == "F32" ? 4 : dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

std::string HeaderText(const fs::path& file, uint64_t* file_bytes) {
  CheckFileName(file);
  std::error_code error;
  *file_bytes = fs::file_size(file, error);
  std::ifstream in(file, std::ios::binary);
  std::array<unsigned char, 8> size_bytes{};
  if (error || !in.read(reinterpret_cast<char*>(size_bytes.data()), size_bytes.size())) {
    ThrowUsage("{}: is too short for a header of safetensors; {}", file.string(), kWhole);
  }
  uint64_t size = 0;
  for (size_t i = size_bytes.size(); i-- > 0;) size = size << 8 | size_bytes[i];
  if (size > kMostHeaderBytes || size > *file_bytes - size_bytes.size()) {
    ThrowUsage("{}: its header is said to have {} bytes, the file has {}; {}", file.string(), size,
               *file_bytes, kWhole);
  }
  std::string header(size, '\0');
  if (!in.read(header.data(), static_cast<std::streamsize>(size))) {
    ThrowUsage("{}: cannot be read", file.string());
  }
  return header;
}

NamedShape ShapeOf(const fs::path& file, const std::string& name, const JsonNode& tensor) {
  const std::string where = fmt::format("{}: {}", file.string(), PrintableText(name, 120));
  const JsonNode *dtype = tensor.Find("dtype"), *shape = tensor.Find("shape"),
                 *offsets = tensor.Find("data_offsets");
  if (dtype == nullptr || !dtype->is_string() || shape == nullptr || !shape->is_array() ||
      offsets == nullptr || !offsets->is_array() || offsets->elements.size() != 2) {
    ThrowUsage("{}: has no dtype, shape and data_offsets; {}", where, kWhole);
  }
  NamedShape out{name, {}, file.string()};
  double elements = 1;
  for (const JsonNode& side : shape->elements) {
    const bool number = side.kind == JsonNode::Kind::kScalar && side.scalar.is_number();
    const double value = number ? side.scalar.number() : 0;
    elements *= value;
    if (value < 1 || elements > kMostElements || value != static_cast<double>(int64_t(value))) {
      ThrowUsage("{}: shape: {} is not allowed; {}", where, shape->Quote(), kWhole);
    }
    out.shape.push_back(static_cast<int64_t>(value));
  }
  const int bytes = ElementBytes(dtype->scalar.text());
  if (bytes == 0) {
    ThrowUsage(
        "{}: dtype: {} is of quantized weights, whose shapes are not the model's; use the model "
        "that they were made of",
        where, PrintableText(dtype->scalar.text(), 20));
  }
  const auto offset = [&](size_t i) {
    const JsonNode& node = offsets->elements[i];
    return node.kind == JsonNode::Kind::kScalar && node.scalar.is_number() ? node.scalar.number()
                                                                           : -1;
  };
  if (offset(0) < 0 || offset(1) - offset(0) != elements * bytes) {
    ThrowUsage("{}: data_offsets: {} are not the {} bytes of its shape; {}", where,
               offsets->Quote(), elements * bytes, kWhole);
  }
  return out;
}

}  // namespace

std::vector<NamedShape> ReadWeightHeader(const fs::path& file,
                                         std::map<std::string, std::string>* metadata) {
  std::vector<NamedShape> tensors;
  uint64_t file_bytes = 0;
  const std::string header = HeaderText(file, &file_bytes);
  const JsonNode root = ParseJsonText(header, file.string());
  if (!root.is_object()) ThrowUsage("{}: its header is no JSON object; {}", file.string(), kWhole);
  double bytes = 8 + static_cast<double>(header.size());
  for (const auto& [name, tensor] : root.members) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : tensor.members) {
        if (metadata != nullptr && value.is_string()) metadata->emplace(key, value.scalar.text());
      }
      continue;
    }
    NamedShape shape = ShapeOf(file, name, tensor);
    // Positions and the like are no parameters.
    if (tensor.Find("dtype")->scalar != "I64") tensors.push_back(std::move(shape));
    const std::vector<JsonNode>& offsets = tensor.Find("data_offsets")->elements;
    bytes += offsets[1].scalar.number() - offsets[0].scalar.number();
  }
  if (bytes > static_cast<double>(file_bytes)) {
    ThrowUsage("{}: has {} bytes, its tensors and header {:.0f}; {}", file.string(), file_bytes,
               bytes, kWhole);
  }
  return tensors;
}

int64_t NamedShape::elements() const {
  int64_t product = 1;
  for (const int64_t side : shape) product *= side;
  return product;
}

std::optional<std::vector<NamedShape>> ReadWeightHeaders(const fs::path& folder) {
  std::error_code ignored;
  std::set<std::string> files;
  const fs::path index_file = folder / "model.safetensors.index.json";
  std::map<std::string, std::string> file_of;
  if (fs::exists(folder / "model.safetensors", ignored)) {
    files.insert("model.safetensors");
  } else if (fs::exists(index_file, ignored)) {
    const JsonNode index = ParseJsonText(ReadTextFile(index_file), index_file.string());
    const JsonNode* map = index.Find("weight_map");
    if (map == nullptr || !map->is_object()) {
      ThrowUsage("{}: weight_map: is missing; {}", index_file.string(), kWhole);
    }
    for (const auto& [tensor, file] : map->members) {
      const std::string name = file.is_string() ? file.scalar.text() : "";
      if (name.empty() || name.find('/') != std::string::npos || name.starts_with("..")) {
        ThrowUsage("{}: weight_map: {}: {} is not allowed; use the name of a file beside it",
                   index_file.string(), PrintableText(tensor, 120), file.Quote());
      }
      files.insert(name);
      file_of[tensor] = name;
    }
  }
  if (files.empty()) return std::nullopt;
  for (const std::string& file : files) {
    if (!fs::exists(folder / file, ignored)) return std::nullopt;
  }
  std::vector<NamedShape> tensors;
  for (const std::string& file : files) {
    std::vector<NamedShape> of_file = ReadWeightHeader(folder / file);
    tensors.insert(tensors.end(), std::make_move_iterator(of_file.begin()),
                   std::make_move_iterator(of_file.end()));
  }
  std::set<std::string> names;
  for (const NamedShape& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      ThrowUsage("{}: {}: is in another file of the model, too; keep one of them", tensor.file,
                 PrintableText(tensor.name, 120));
    }
  }
  for (const auto& [tensor, file] : file_of) {
    if (names.contains(tensor)) continue;
    ThrowUsage("{}: weight_map: {}: is not in {}; get both files anew", index_file.string(),
               PrintableText(tensor, 120), file);
  }
  return tensors;
}

}  // namespace zeroplan
