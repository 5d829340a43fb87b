#include "core/base/json_source.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr int kMaxDepth = 64;
constexpr uintmax_t kMaxFileBytes = 16u << 20;

// Printable and short, whatever the input is.
std::string Printable(std::string_view text, size_t limit) {
  std::string out;
  for (char c : text.substr(0, limit)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return text.size() > limit ? out + "..." : out;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);  // byte order mark
  }

  JsonNode ParseDocument() {
    SkipSpace();
    if (AtEnd())
      Fail("the file is empty; write one JSON object, such as {{\"train_batch_size\": 8}}");
    JsonNode root = ParseValue(0);
    SkipSpace();
    if (!AtEnd()) Fail("unexpected {} after the end of the JSON value; remove it", Here());
    return root;
  }

 private:
  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    ThrowUsage("{}:{}: {}", source_, line_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  std::string Here() const {
    return AtEnd() ? "the end of the file"
                   : fmt::format("'{}'", Printable(text_.substr(at_, 1), 1));
  }

  void Advance() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }

  // Skips blanks and comments.
  void SkipSpace() {
    while (!AtEnd()) {
      const char c = Peek();
      if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        Advance();
      } else if (c == '#' || (c == '/' && Peek(1) == '/')) {
        while (!AtEnd() && Peek() != '\n') Advance();
      } else if (c == '/' && Peek(1) == '*') {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) Fail("the comment is not closed; end it with */");
        while (at_ < end + 2) Advance();
      } else {
        return;
      }
    }
  }

  JsonNode ParseValue(int depth) {
    if (depth > kMaxDepth) Fail("values are nested more than {} deep; flatten them", kMaxDepth);
    switch (Peek()) {
      case '{':
        return ParseObject(depth);
      case '[':
        return ParseArray(depth);
      case '"': {
        JsonNode node;
        node.line = line_;
        node.scalar = ParseString();
        return node;
      }
      default:
        return ParseBareScalar();
    }
  }

  JsonNode ParseObject(int depth) {
    JsonNode node;
    node.kind = JsonNode::Kind::kObject;
    node.line = line_;
    std::set<std::string, std::less<>> seen;
    Advance();
    for (SkipSpace(); Peek() != '}'; SkipSpace()) {
      if (AtEnd()) Fail("the object that starts on line {} is not closed; add a }}", node.line);
      if (Peek() != '"') Fail("expected a key in double quotes or }}, found {}", Here());
      const int key_line = line_;
      std::string key = ParseString();
      if (!seen.insert(key).second) {
        Fail("{}: the key is given twice; keep one of them", Printable(key, 60));
      }
      SkipSpace();
      if (Peek() != ':')
        Fail("{}: expected ':' after the key, found {}", Printable(key, 60), Here());
      Advance();
      SkipSpace();
      JsonNode value = ParseValue(depth + 1);
      value.line = key_line;
      SkipSeparator('}', key);
      node.members.push_back({std::move(key), std::move(value)});
    }
    Advance();
    return node;
  }

  JsonNode ParseArray(int depth) {
    JsonNode node;
    node.kind = JsonNode::Kind::kArray;
    node.line = line_;
    Advance();
    for (SkipSpace(); Peek() != ']'; SkipSpace()) {
      if (AtEnd()) Fail("the list that starts on line {} is not closed; add a ]", node.line);
      node.elements.push_back(ParseValue(depth + 1));
      SkipSeparator(']', "list");
    }
    Advance();
    return node;
  }

  // A comma, or a new line in its place, or the closing bracket (left where it is).
  void SkipSeparator(char close, std::string_view after) {
    const int line_before = line_;
    SkipSpace();
    if (Peek() == ',') {
      Advance();
    } else if (!AtEnd() && Peek() != close && line_ == line_before) {
      Fail("{}: expected ',' or '{}' after the value, found {}", Printable(after, 60), close,
           Here());
    }
  }

  // REQUIRES: at a double quote.
  std::string ParseString() {
    const size_t start = at_;
    ++at_;
    while (!AtEnd() && Peek() != '"') {
      if (Peek() == '\n') Fail("a string is not closed before the end of the line; add a \"");
      at_ += Peek() == '\\' && at_ + 1 < text_.size() ? 2 : 1;
    }
    if (AtEnd()) Fail("a string is not closed; add a \"");
    ++at_;
    const std::string_view literal = text_.substr(start, at_ - start);
    // The library decodes escapes and checks UTF-8.
    const nlohmann::json value = nlohmann::json::parse(literal, nullptr, false);
    if (!value.is_string()) {
      Fail("{} is not a valid JSON string; check its escapes and that it is UTF-8",
           Printable(literal, 60));
    }
    return value.get<std::string>();
  }

  // A number, true, false or null.
  JsonNode ParseBareScalar() {
    const size_t start = at_;
    while (!AtEnd() && std::strchr(" \t\r\n,:{}[]\"#/", Peek()) == nullptr) ++at_;
    const std::string_view literal = text_.substr(start, at_ - start);
    if (literal.empty()) Fail("expected a value, found {}", Here());
    JsonNode node;
    node.line = line_;
    node.scalar = nlohmann::json::parse(literal, nullptr, false);
    if (node.scalar.is_discarded()) {
      Fail(
          "{} is not a JSON value; use a number within range, true, false, null or a string in "
          "double quotes",
          Printable(literal, 60));
    }
    return node;
  }

  std::string_view text_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

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
  return Printable(scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 60);
}

JsonNode ParseJsonText(std::string_view text, std::string_view source) {
  return Parser(text, source).ParseDocument();
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
