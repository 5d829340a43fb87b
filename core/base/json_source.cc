#include "core/base/json_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_departures.h"
#include "core/base/limits.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

// What pipes held, by path: they can be read but once, and a command may ask again.
struct PipeTexts {
  std::mutex mutex;
  std::map<std::string, std::string> texts;  // under mutex
};
PipeTexts& Pipes() {
  static PipeTexts pipes;
  return pipes;
}

}  // namespace

const JsonNode* JsonNode::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string JsonNode::Dump() const {
  if (kind == Kind::kScalar) return scalar.Dump();
  std::string text;
  for (const JsonNode& element : elements) text += (text.empty() ? "" : ",") + element.Dump();
  if (is_array()) return "[" + text + "]";
  for (const JsonMember& member : members) {
    text += (text.empty() ? "" : ",") + JsonScalar(member.key).Dump() + ":" + member.value.Dump();
  }
  return "{" + text + "}";
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
  if (file == "-") return ReadTextFile("/dev/stdin");
  CheckFileName(file);
  const std::string name = file.string();
  const auto fail = [&](int error) {
    const std::string text =
        fmt::format("{}: cannot be read ({}); name a readable file", name, std::strerror(error));
    const bool ours = error == EMFILE || error == ENFILE || error == ENOMEM;
    throw Error(ours ? ExitCode::kRuntime : ExitCode::kUsage, text);
  };
  UniqueFd fd;
  const int unopened = WithIoRetries("open", file, [&] {
    fd = UniqueFd(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return fd ? 0 : errno;
  });
  if (unopened != 0) fail(unopened);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail(errno);
  if (S_ISDIR(info.st_mode)) ThrowUsage("{}: is a folder; name a file", name);
  const bool once = !S_ISREG(info.st_mode);
  PipeTexts& pipes = Pipes();
  if (once) {
    const std::lock_guard lock(pipes.mutex);
    if (const auto read = pipes.texts.find(name); read != pipes.texts.end()) return read->second;
    if (!name.starts_with("/dev/fd/") && !name.starts_with("/proc/self/fd/") &&
        name != "/dev/stdin") {
      ThrowUsage("{}: is a pipe or a device; name a regular file", name);
    }
    if (::fcntl(fd.get(), F_SETFL, 0) != 0) fail(errno);  // wait for who writes to it
  }
  std::string text;
  char chunk[1 << 16];
  for (;;) {
    ssize_t got = 0;
    const int error = WithIoRetries("read", file, [&] {
      got = ::read(fd.get(), chunk, sizeof chunk);
      return got < 0 ? errno : 0;
    });
    if (error == EINTR) continue;
    if (error != 0) fail(error);
    if (got == 0) break;
    text.append(chunk, static_cast<size_t>(got));
    if (text.size() > kMostConfigBytes) {
      ThrowUsage("{}: is larger than {} MiB; this is no config file", name, kMostConfigBytes >> 20);
    }
  }
  if (once) {
    const std::lock_guard lock(pipes.mutex);
    pipes.texts[name] = text;
  }
  return text;
}

std::string JsonScalar::Dump() const {
  const nlohmann::json json =
      std::visit([](const auto& value) { return nlohmann::json(value); }, value_);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<JsonScalar> ParseJsonScalar(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  switch (json.type()) {
    case nlohmann::json::value_t::null:
      return JsonScalar();
    case nlohmann::json::value_t::boolean:
      return JsonScalar(JsonScalar::Value(json.get<bool>()));
    case nlohmann::json::value_t::number_integer:
      return JsonScalar(JsonScalar::Value(json.get<int64_t>()));
    case nlohmann::json::value_t::number_unsigned:
      return JsonScalar(JsonScalar::Value(json.get<uint64_t>()));
    case nlohmann::json::value_t::number_float:
      return JsonScalar(JsonScalar::Value(json.get<double>()));
    case nlohmann::json::value_t::string:
      return JsonScalar(json.get<std::string>());
    default:
      return std::nullopt;
  }
}

namespace {

constexpr size_t kShown = 60;  // bytes of a key or value that a message quotes
constexpr const char* kPunctuation = ",:{}[]";

// Where each key of an object stands.
using KeyLines = std::unordered_map<std::string, int>;

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

bool IsDigits(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

// A number, true, false, null or a Python spelling of those; nullopt if it is anything else.
std::optional<JsonScalar> BareLiteral(std::string_view text) {
  if (text == "True") return JsonScalar(true);
  if (text == "False") return JsonScalar(false);
  if (text == "None") return JsonScalar();
  if (text.empty() || std::strchr("-0123456789tfn", text.front()) == nullptr) return std::nullopt;
  // Most literals of large files, without the library.
  if (text.size() < 19 && text.front() != '0' && IsDigits(text)) {
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return JsonScalar(JsonScalar::Value(value));
  }
  return ParseJsonScalar(text);
}

// `text` as a JSON string literal, so that the library checks its UTF-8.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);  // byte order mark
  }

  // Of the document that was parsed.
  JsonDepartures Departures() const {
    return {hjson_style_ ? "" : departures_.broken, departures_.hjson};
  }

  JsonNode ParseDocument() {
    SkipSpace();
    if (AtEnd()) Fail("the file is empty; a JSON object {{...}} belongs there");
    if (Peek() != '{' && Peek() != '[' && AtMember()) return ParseBareObject();
    JsonNode root = ParseValue(0);
    SkipSpace();
    if (!AtEnd()) Fail("unexpected {} after the end of the JSON value; remove it", Here());
    return root;
  }

 private:
  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    ThrowUsage("{}:{}:{}: {}", source_, line_, Column(),
               fmt::format(format, std::forward<Args>(args)...));
  }
  size_t Column() const { return at_ - line_start_ + 1; }
  // What is Hjson here and not JSON.
  void Depart(std::string_view what) {
    if (departures_.hjson.empty()) {
      departures_.hjson = fmt::format("{}:{}:{}: {}", source_, line_, Column(), what);
    }
  }

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  std::string Here() const {
    return AtEnd() ? "the end of the file"
                   : fmt::format("'{}'", PrintableText(text_.substr(at_, 1), 1));
  }

  void Advance() {
    if (text_[at_] == '\n') {
      ++line_;
      line_start_ = at_ + 1;
    }
    ++at_;
  }

  // Skips blanks and comments.
  void SkipSpace() {
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '#' || (c == '/' && (Peek(1) == '/' || Peek(1) == '*'))) Depart("a comment");
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

  // Whether a key and a colon come next: a document whose outer braces were left out.
  bool AtMember() const {
    size_t i = at_;
    const char quote = text_[i];
    if (quote == '"' || quote == '\'') {
      for (++i; i < text_.size() && text_[i] != quote && text_[i] != '\n'; ++i) {
        if (text_[i] == '\\') ++i;
      }
      ++i;
    } else {
      i = text_.find_first_of(" \t\r\n,:{}[]", i);
      if (i == at_) return false;
    }
    if (i >= text_.size()) return false;
    i = text_.find_first_not_of(" \t\r\n", i);
    return i != std::string_view::npos && text_[i] == ':';
  }

  JsonNode ParseValue(int depth) {
    if (depth > kMostJsonDepth) {
      Fail("values are nested more than {} deep; flatten them", kMostJsonDepth);
    }
    if (++values_ > kMostJsonValues) {
      Fail("more than {} values in one file; leave some out", kMostJsonValues);
    }
    switch (Peek()) {
      case '{':
        return ParseObject(depth);
      case '[':
        return ParseArray(depth);
      case '"':
      case '\'': {
        JsonNode node;
        node.line = line_;
        if (Peek() == '\'') Depart("a string in single quotes");
        node.scalar = JsonScalar(text_.substr(at_).starts_with("'''") ? ParseLongString()
                                                                      : ParseQuotedString());
        return node;
      }
      default:
        return ParseBareScalar();
    }
  }

  JsonNode ParseBareObject() {
    Depart("an object without braces");
    hjson_style_ = true;
    JsonNode node;
    node.kind = JsonNode::Kind::kObject;
    node.line = line_;
    KeyLines lines;
    for (; !AtEnd(); SkipSpace()) {
      if (Peek() == '}') Fail("unexpected '}}': no brace is open here; remove it");
      ParseMember(0, '\0', &node, &lines);
    }
    return node;
  }

  JsonNode ParseObject(int depth) {
    JsonNode node;
    node.kind = JsonNode::Kind::kObject;
    node.line = line_;
    KeyLines lines;
    Advance();
    for (SkipSpace(); Peek() != '}'; SkipSpace()) {
      if (AtEnd()) FailOpen("object", node.line, '}');
      ParseMember(depth, '}', &node, &lines);
    }
    Advance();
    return node;
  }

  // One `key: value` and what separates it from the next. `lines`: where each key so far stands.
  void ParseMember(int depth, char close, JsonNode* node, KeyLines* lines) {
    const int key_line = line_;
    std::string key = ParseKey();
    const auto [first, is_new] = lines->emplace(key, key_line);
    if (!is_new) {
      ThrowUsage("{}:{}: {}: the key is given twice, here and on line {}; keep one of them",
                 source_, line_, PrintableText(key, kShown), first->second);
    }
    SkipSpace();
    if (Peek() != ':')
      Fail("{}: expected ':' after the key, found {}", PrintableText(key, kShown), Here());
    Advance();
    SkipSpace();
    JsonNode value = ParseValue(depth + 1);
    value.line = key_line;
    SkipSeparator(close, key);
    node->members.push_back({std::move(key), std::move(value)});
  }

  std::string ParseKey() {
    if (Peek() == '\'') Depart("a key in single quotes");
    if (Peek() == '"' || Peek() == '\'') return ParseQuotedString();
    Depart("a key without quotes");
    hjson_style_ = true;
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:{}[]", at_), text_.size());
    if (end == at_) Fail("expected a key or }}, found {}", Here());
    const std::string_view key = text_.substr(at_, end - at_);
    at_ = end;
    return Decode(Quoted(key), key);
  }

  JsonNode ParseArray(int depth) {
    JsonNode node;
    node.kind = JsonNode::Kind::kArray;
    node.line = line_;
    Advance();
    for (SkipSpace(); Peek() != ']'; SkipSpace()) {
      if (AtEnd()) FailOpen("list", node.line, ']');
      node.elements.push_back(ParseValue(depth + 1));
      SkipSeparator(']', "list");
    }
    Advance();
    return node;
  }

  [[noreturn]] void FailOpen(const char* what, int line, char close) const {
    std::string hint;
    if (bare_line_ > 0) {
      hint = fmt::format(
          " (on line {} the value without quotes runs to the end of its line: {}; put quotes "
          "around it, or a comma after what comes first)",
          bare_line_, PrintableText(bare_text_, kShown));
    }
    Fail("the {} that starts on line {} is not closed; add a {}{}", what, line, close, hint);
  }

  // A comma, or a new line in its place, or the closing bracket (left where it is).
  void SkipSeparator(char close, std::string_view after) {
    const int line_before = line_;
    const std::string here = fmt::format("{}:{}:{}: ", source_, line_, Column());
    SkipSpace();
    if (Peek() == ',') {
      Advance();
      const size_t next = text_.find_first_not_of(" \t\r\n", at_);
      if (next != std::string_view::npos && close != '\0' && text_[next] == close) {
        Depart(fmt::format("a comma before '{}'", close));
      }
    } else if (!AtEnd() && Peek() != close && line_ != line_before) {
      const std::string text =
          fmt::format("{}a comma is missing after {}{}", here, PrintableText(after, kShown),
                      after == "list" ? "'s element" : "'s value");
      if (departures_.broken.empty()) departures_.broken = text;
      if (departures_.hjson.empty()) departures_.hjson = text;
    } else if (!AtEnd() && (Peek() != close || close == '\0') && line_ == line_before) {
      Fail("{}: expected ','{} after the value, found {}", PrintableText(after, kShown),
           close == '\0' ? "" : fmt::format(" or '{}'", close), Here());
    }
  }

  // The string of a JSON literal. The library decodes escapes and checks UTF-8.
  std::string Decode(const std::string& literal, std::string_view written) const {
    const std::optional<JsonScalar> value = ParseJsonScalar(literal);
    if (!value || !value->is_string()) {
      Fail("{} is not a valid JSON string; check its escapes and that it is UTF-8",
           PrintableText(written, kShown));
    }
    return value->text();
  }

  // REQUIRES: at a quote, double or single.
  std::string ParseQuotedString() {
    const char quote = Peek();
    const size_t start = at_++;
    // Most strings need no decoding.
    size_t plain = at_;
    while (plain < text_.size() && text_[plain] != quote && text_[plain] != '\\' &&
           static_cast<unsigned char>(text_[plain]) >= 0x20) {
      ++plain;
    }
    const std::string_view inside = text_.substr(at_, plain - at_);
    if (plain < text_.size() && text_[plain] == quote && IsValidUtf8(inside)) {
      at_ = plain + 1;
      return std::string(inside);
    }
    std::string literal = "\"";
    while (!AtEnd() && Peek() != quote) {
      const char c = Peek();
      if (c == '\n') Fail("a string is not closed before the end of the line; add a {}", quote);
      if (c == '\\' && at_ + 1 < text_.size()) {
        if (Peek(1) == '\n')
          Fail("a string is not closed before the end of the line; add a {}", quote);
        if (Peek(1) != '\'') literal += c;
        literal += Peek(1);
        at_ += 2;
        continue;
      }
      if (c == '"') literal += '\\';  // within single quotes
      literal += c;
      ++at_;
    }
    if (AtEnd()) Fail("a string is not closed; add a {}", quote);
    ++at_;
    return Decode(literal + '"', text_.substr(start, at_ - start));
  }

  // REQUIRES: at '''. As Hjson has it: no escapes, blanks up to the column of the quotes are taken
  // off each line, and so are the line break after the opening and before the closing quotes.
  std::string ParseLongString() {
    const size_t column = at_ - line_start_;
    const size_t start = at_ + 3;
    const size_t end = text_.find("'''", start);
    if (end == std::string_view::npos) Fail("a string is not closed; add '''");
    std::string_view rest = text_.substr(start, end - start);
    std::string out;
    for (bool first = true;; first = false) {
      const size_t stop = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, stop);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!first) {
        const size_t blanks = std::min(line.find_first_not_of(" \t"), line.size());
        line.remove_prefix(std::min(blanks, column));
      }
      const bool drop = first && Trim(line).empty();
      if (!drop) out += line;
      if (stop == rest.size()) break;
      if (!drop) out += '\n';
      rest.remove_prefix(stop + 1);
    }
    if (out.ends_with('\n')) out.pop_back();
    out = Decode(Quoted(out), out);
    while (at_ < end + 3) Advance();
    return out;
  }

  // A literal, or a string without quotes to the end of the line. What follows a comma, a closing
  // bracket or a comment sign cannot make a literal of what did not look like one up to there.
  JsonNode ParseBareScalar() {
    if (AtEnd() || Peek() == '\0' || std::strchr(kPunctuation, Peek()) != nullptr) {
      Fail("expected a value, found {}", Here());
    }
    JsonNode node;
    node.line = line_;
    size_t stop = at_;
    for (; stop < text_.size() && std::strchr("\n,]}#", text_[stop]) == nullptr; ++stop) {
      if (text_[stop] == '/' && stop + 1 < text_.size() &&
          (text_[stop + 1] == '/' || text_[stop + 1] == '*')) {
        break;
      }
    }
    const std::string_view word = Trim(text_.substr(at_, stop - at_));
    if (auto literal = BareLiteral(word)) {
      if (word == "True" || word == "False" || word == "None") Depart("a word of Python's");
      node.scalar = *std::move(literal);
      at_ += static_cast<size_t>(word.data() + word.size() - (text_.data() + at_));
      return node;
    }
    Depart("a string without quotes");
    const size_t line_end = std::min(text_.find('\n', stop), text_.size());
    const std::string_view text = Trim(text_.substr(at_, line_end - at_));
    node.scalar = JsonScalar(Decode(Quoted(text), text));
    if (stop < line_end && bare_line_ == 0) {
      bare_line_ = line_;
      bare_text_ = text;
    }
    at_ = line_end;
    return node;
  }

  std::string_view text_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  size_t line_start_ = 0;
  size_t values_ = 0;
  // The first string without quotes that swallowed a comma, a bracket or a comment; 0: none.
  int bare_line_ = 0;
  std::string_view bare_text_;
  JsonDepartures departures_;
  bool hjson_style_ = false;  // keys without quotes or no outer braces: nobody took it for JSON
};

}  // namespace

JsonNode ParseJsonText(std::string_view text, std::string_view source) {
  return Parser(text, source).ParseDocument();
}

JsonDepartures FindJsonDepartures(std::string_view text, std::string_view source) {
  Parser parser(text, source);
  parser.ParseDocument();
  return parser.Departures();
}

}  // namespace zeroplan
