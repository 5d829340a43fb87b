// The "decoder" of a tokenizer.json: converts tokens back to text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json_source.h"
#include "text/tokenizer/json_part.h"
#include "text/tokenizer/pattern.h"

namespace zeroplan {

// The "post_processor" of a tokenizer.json: the special tokens around a text.

struct PostProcessor {
  // `node`: the value of "post_processor", nullptr or null for none. Throws Error(kUsage) naming
  // file and key, also for a template with anything but one text with tokens around it.
  static PostProcessor Read(const JsonNode* node, const std::string& file);

  std::vector<int32_t> before, behind;

 private:
  void Add(JsonPart part);
  void AddTemplate(JsonPart* part);
};

class Decoder {
 public:
  Decoder() = default;  // tokens with blanks between them
  // `node`: the value of "decoder", nullptr or null for none. Throws Error(kUsage) naming file and
  // key.
  static Decoder Read(const JsonNode* node, const std::string& file);

  // Well-formed UTF-8, with U+FFFD for invalid bytes. Throws as Normalizer::Apply.
  std::string Decode(std::vector<std::string> tokens) const;

  // Whether `token` is a byte that makes a character only together with the bytes around it.
  bool IsBytePart(const std::string& token) const;
  // Whether it only joins bytes (unicode.h).
  bool joins_bytes() const;

  // Whether the text of some tokens is sure to be a prefix of the text of more tokens, except for
  // runs of byte parts at its end.
  bool is_settled_by_next() const;

  // The bytes of a token under ByteLevel.
  static std::string BytesOf(const std::string& token);

 private:
  struct ByteLevel {};
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string content;  // one character
    size_t start = 0;
    size_t stop = 0;
  };
  struct Metaspace {
    std::string replacement;
    bool prepends = false;
  };
  using Step = std::variant<ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace>;

  void Add(JsonPart part);
  // `bytes`: the size of the original tokens.
  void Run(const Step& step, uint64_t bytes, std::vector<std::string>* tokens) const;

  std::string where_;
  std::vector<Step> steps_;
  bool is_set_ = false;
};

}  // namespace zeroplan
