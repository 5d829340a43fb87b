// Turns conversations into the text of a model's chat template, and marks the part that the model
// is to say.
//
// Templates are Jinja, as transformers renders them (apply_chat_template): any template runs that
// keeps to what text/jinja knows. The rest is an error, never another text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant"; what others there are, the template says
  std::string content;  // UTF-8
  // Other members of the message that are texts: template code may ask for them.
  std::vector<std::pair<std::string, std::string>> others;
};

// Texts that a template may ask for, by name: "bos_token", "eos_token", ... A name that is not
// there counts as undefined.
using SpecialTexts = std::vector<std::pair<std::string, std::string>>;

class ChatTemplate {
 public:
  // Reads the template of a model's folder: chat_template.jinja, else "chat_template" of
  // tokenizer_config.json (of several named ones "default"). nullopt: the folder has none. Throws
  // Error(kUsage) naming the file and what cannot be read or is not supported, with the way out.
  static std::optional<ChatTemplate> FromFolder(const std::filesystem::path& folder,
                                                const Tokenizer& tokenizer);
  // `source`: what errors call it.
  static ChatTemplate FromText(std::string_view text, const std::string& source,
                               const SpecialTexts& specials, const Tokenizer& tokenizer);

  struct Rendered {
    std::string text;
    // What the assistant says: contents of its messages, each with the token that ends its turn.
    // Rising, not overlapping. In a template with {% generation %} blocks, these.
    std::vector<TextSpan> generated;
  };
  // `generation_prompt`: with what makes the assistant's next turn begin (add_generation_prompt).
  // Nothing of messages before `first_counted` is in `generated`. The text of a date (strftime_now)
  // is date(). Thread-safe. Throws Error(kUsage) starting with `where` ("chats.jsonl:7") if the
  // template refuses the roles, or does with these messages what is not supported.
  Rendered Render(std::span<const ChatMessage> messages, bool generation_prompt,
                  std::string_view where, size_t first_counted = 0) const;

  // What ends the assistant's turns: the special tokens that stand behind its words, as text
  // ("<|im_end|>"), and the id of the last of them; nullopt if there is none.
  const std::optional<std::string>& end_of_turn() const;
  std::optional<int32_t> end_of_turn_id() const;
  // Whether it prints a date. That is "26 Jul 2024", so that data stay the same from day to day,
  // until SetDate: what transformers prints is the day it runs on.
  bool prints_date() const;
  void SetDate(int year, int month, int day);

  // Digest of everything that decides what it prints.
  Sha256Digest digest() const;
  // What errors call it.
  const std::string& source() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

}  // namespace zeroplan
