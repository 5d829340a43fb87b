// Renders conversations with a model's chat template, and marks the text that the model should
// generate.
//
// Templates are Jinja, as in transformers (apply_chat_template): every template runs that only uses
// features of text/jinja. Other features are an error, never another text.
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
#include "text/jinja/value.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

struct ChatMessage {
  // "system", "user", "assistant"; the template determines whether there are others
  std::string role;
  // UTF-8; nullopt: the message has no content, as one that only calls tools.
  std::optional<std::string> content;
  // Other members of the message, which template code may read ("tool_calls", "reasoning_content").
  std::vector<std::pair<std::string, jinja::Value>> others = {};
  // Whether the message, if it is the assistant's, counts in the loss.
  bool counts = true;
  // The texts of a content that was given as a list, for templates that use such lists; then
  // `content` is their concatenation.
  std::vector<std::string> parts = {};
};

// The input of a template.
struct Conversation {
  std::vector<ChatMessage> messages;
  // Messages before this one are the prompt: nothing of them counts.
  size_t first_counted = 0;
  jinja::Value tools;      // a list of JSON schemas, or none
  jinja::Value documents;  // a list, or none
  // This conversation's own variables ("enable_thinking"): transformers' chat_template_kwargs.
  jinja::Dict variables;
};

// Texts that a template may read by name: "bos_token", "eos_token", ... Other names are undefined.
using SpecialTexts = std::vector<std::pair<std::string, std::string>>;

// The template files of a model's folder, sorted: chat_template.jinja, and those in
// additional_chat_templates/.
std::vector<std::filesystem::path> TemplateFiles(const std::filesystem::path& folder);

class ChatTemplate {
 public:
  // Reads the templates of a model's folder: chat_template.jinja and additional_chat_templates/,
  // or, without these files, "chat_template" of tokenizer_config.json. Among several named ones
  // uses "default", and "tool_use" for conversations with tools, as in transformers. nullopt: the
  // folder has none. Throws Error(kUsage) naming the file and the part that cannot be read or is
  // not supported, with advice; for the tools' template only when a conversation needs it.
  static std::optional<ChatTemplate> FromFolder(const std::filesystem::path& folder,
                                                const Tokenizer& tokenizer);
  // `source`: its name in errors. `stop_tokens`: texts of tokens that end the model's answer, in
  // addition to those that the template prints.
  static ChatTemplate FromText(std::string_view text, const std::string& source,
                               const SpecialTexts& specials, const Tokenizer& tokenizer,
                               const std::vector<std::string>& stop_tokens = {});

  struct Rendered {
    std::string text;
    // The assistant's text: in each of its turns the text behind the generation prompt, up to and
    // including the special tokens that end the turn. Rising, disjoint. In a template with {%
    // generation %} blocks, the output of the blocks.
    std::vector<TextSpan> generated;
    // Messages with words in their content of which nothing is printed.
    std::vector<size_t> unprinted;
  };
  // `generation_prompt`: appends the begin of the assistant's next turn (add_generation_prompt). A
  // date (strftime_now) prints as date(). Thread-safe. Throws Error(kUsage) starting with `where`
  // ("chats.jsonl:7") if the template refuses the roles, or uses an unsupported feature for these
  // messages.
  //
  // The begin of a turn is the output for the messages before it with a generation prompt; if the
  // template prints those messages otherwise there, the generation prompt of a short question.
  Rendered Render(const Conversation& conversation, bool generation_prompt,
                  std::string_view where) const;

  // Whether the code of the conversation's template contains that name, of a variable or of a
  // member of a message. REQUIRES: Render accepts the conversation.
  bool AsksFor(std::string_view name, const Conversation& conversation) const;
  // Whether it prints a call's arguments unchanged if they are a text; most templates print all
  // arguments as JSON. Throws as Render if there is no template for the conversation.
  bool PrintsArgumentsAsGiven(const Conversation& conversation, std::string_view where) const;

  // The special tokens that end the assistant's last turn, or, if there are none, the turns before
  // it, as text ("<|im_end|>"), and the id of the last of them; nullopt if there is none. From the
  // template for conversations without tools, if there is one.
  const std::optional<std::string>& end_of_turn() const;
  std::optional<int32_t> end_of_turn_id() const;
  // Whether it prints a date. Until SetDate the date is "26 Jul 2024", so that data stay the same
  // from day to day, while transformers prints the present day.
  bool prints_date() const;
  void SetDate(int year, int month, int day);

  // Digest of everything that determines its output.
  Sha256Digest digest() const;
  // Its name in errors.
  const std::string& source() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  // The template for a conversation.
  const Parts& For(const Conversation& conversation, std::string_view where) const;

  std::shared_ptr<const Parts> parts_;
  // The separate template for conversations with tools, if there is one, or the error in it.
  std::shared_ptr<const Parts> tool_parts_;
  std::string tool_error_;
  bool only_tools_ = false;  // `parts_` is the template for tools: there is no other
};

}  // namespace zeroplan
