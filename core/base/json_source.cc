#include "core/base/json_source.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr uintmax_t kMaxFileBytes = 16u << 20;

}  // namespace

std::string PrintableText(std::string_view text, size_t limit) {
  std::string out;
  for (char c : text.substr(0, limit)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return text.size() > limit ? out + "..." : out;
}

const JsonNode* JsonNode::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string JsonNode::Quote() const {
  switch (kind) {
    case Kind::kObject:
      return "{...}";
    case Kind::kArray:
      return "[...]";
    case Kind::kScalar:
      break;
  }
  return PrintableText(scalar.Dump(), 60);
}

std::string ReadTextFile(const std::filesystem::path& file) {
  std::error_code error;
  const std::string name = file.string();
  if (std::filesystem::is_directory(file, error)) {
    ThrowUsage("{}: is a folder; name a file", name);
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) ThrowUsage("{}: cannot be read ({}); name a readable file", name, std::strerror(errno));
  std::string text;
  char chunk[1 << 16];
  while (in.read(chunk, sizeof chunk), in.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(in.gcount()));
    if (text.size() > kMaxFileBytes) {
      ThrowUsage("{}: is larger than 16 MiB; this is no config file", name);
    }
  }
  if (in.bad()) ThrowUsage("{}: cannot be read ({})", name, std::strerror(errno));
  return text;
}

}  // namespace zeroplan
