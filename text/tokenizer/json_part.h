// One part of a tokenizer.json ({"type": "Split", ...}) with checked access for its reader.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_section.h"
#include "text/tokenizer/pattern.h"

namespace zeroplan {

// A part whose keys must all be read: an unknown key is an error. All errors are Error(kUsage)
// "FILE:LINE: key: ...".
class JsonPart {
 public:
  // `path`: its place, such as "pre_tokenizer.pretokenizers[1]".
  JsonPart(const JsonNode& node, std::string path, const std::string& file);

  const std::string& type() const { return type_; }
  const std::string& source() const { return section_.source(); }

  bool Bool(std::string_view key, bool otherwise);
  bool RequiredBool(std::string_view key);
  int64_t RequiredInt(std::string_view key, int64_t max);
  // As written, "auto" included.
  std::string RequiredString(std::string_view key);
  std::string String(std::string_view key, std::string_view otherwise);
  // One character.
  char32_t RequiredCharacter(std::string_view key);
  // {"String": ...} or {"Regex": ...}.
  Pattern RequiredPattern(std::string_view key);
  SplitBehavior Behavior(std::string_view key, std::string_view otherwise);
  // The parts in a list.
  std::vector<JsonPart> RequiredParts(std::string_view key);
  const JsonNode* Raw(std::string_view key) { return section_.Raw(key); }
  std::string Where(std::string_view key) const { return section_.Where(key); }

  template <typename... Args>
  [[noreturn]] void Fail(std::string_view key, fmt::format_string<Args...> format,
                         Args&&... args) const {
    section_.Fail(key, format, std::forward<Args>(args)...);
  }
  // Throws because the type is not supported.
  [[noreturn]] void FailType(std::string_view known) const;
  // Throws if there are unread keys, or if `steps` of all parts so far are too many.
  void Done(size_t steps = 0) const;
  // Throws if a part, named by `where`, made more from a text of `bytes` than MostMadeOf.
  static void CheckMade(std::string_view where, uint64_t made, uint64_t bytes);

 private:
  const JsonNode* Required(std::string_view key);

  JsonSection section_;
  std::string type_;
};

}  // namespace zeroplan
