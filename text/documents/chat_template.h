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
#include "text/jinja/value.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"; what others there are, the template says
  // UTF-8; nullopt: the message has none, as one that only calls tools.
  std::optional<std::string> content;
  // Other members of the message: template code may ask for them ("tool_calls",
  // "reasoning_content").
  std::vector<std::pair<std::string, jinja::Value>> others = {};
  // Whether the message, if it is the assistant's, is to be learned.
  bool counts = true;
  // Where the content was given as a list of texts: these, for templates that take such lists; then
  // `content` is all of them.
  std::vector<std::string> parts = {};
};

// What a template is rendered for.
struct Conversation {
  std::vector<ChatMessage> messages;
  // Nothing of messages before this one counts: they are the prompt.
  size_t first_counted = 0;
  jinja::Value tools;      // a list of JSON schemas, or none
  jinja::Value documents;  // a list, or none
  // Variables of this conversation's own ("enable_thinking"): transformers' chat_template_kwargs.
  jinja::Dict variables;
};

// Texts that a template may ask for, by name: "bos_token", "eos_token", ... A name that is not
// there counts as undefined.
using SpecialTexts = std::vector<std::pair<std::string, std::string>>;

// The files of a model's folder that are templates, sorted: chat_template.jinja, and those in
// additional_chat_templates/.
std::vector<std::filesystem::path> TemplateFiles(const std::filesystem::path& folder);

class ChatTemplate {
 public:
  // Reads the templates of a model's folder: chat_template.jinja and additional_chat_templates/,
  // or, without these, "chat_template" of tokenizer_config.json. Of several named ones "default"
  // counts, and "tool_use" for conversations with tools, as in transformers. nullopt: the folder
  // has none. Throws Error(kUsage) naming the file and what cannot be read or is not supported,
  // with the way out; of the one for tools where a conversation needs it.
  static std::optional<ChatTemplate> FromFolder(const std::filesystem::path& folder,
                                                const Tokenizer& tokenizer);
  // `source`: what errors call it. `stop_tokens`: texts of those that end what the model says
  // besides those that the template prints.
  static ChatTemplate FromText(std::string_view text, const std::string& source,
                               const SpecialTexts& specials, const Tokenizer& tokenizer,
                               const std::vector<std::string>& stop_tokens = {});

  struct Rendered {
    std::string text;
    // What the assistant says: of each of its turns, what stands behind the generation prompt, up
    // to and with the special tokens that end the turn. Rising, not overlapping. In a template with
    // {% generation %} blocks, what these print.
    std::vector<TextSpan> generated;
    // Messages with words in their content of which nothing is printed.
    std::vector<size_t> unprinted;
  };
  // `generation_prompt`: with what makes the assistant's next turn begin (add_generation_prompt).
  // The text of a date (strftime_now) is date(). Thread-safe. Throws Error(kUsage) starting with
  // `where` ("chats.jsonl:7") if the template refuses the roles, or does with these messages what
  // is not supported.
  //
  // Where a turn begins is what the messages before it make with a generation prompt; for a
  // template that prints them otherwise there, what the prompt looks like for a short question.
  Rendered Render(const Conversation& conversation, bool generation_prompt,
                  std::string_view where) const;

  // Whether the code of the conversation's template has that name, of a variable or of a member of
  // a message. REQUIRES: Render takes the conversation.
  bool AsksFor(std::string_view name, const Conversation& conversation) const;
  // Whether it prints a call's arguments as they are where they are a text; most print all
  // arguments as JSON. Throws as Render where there is no template for it.
  bool PrintsArgumentsAsGiven(const Conversation& conversation, std::string_view where) const;

  // What ends the assistant's last turn, or, if nothing does, the turns before it: special tokens,
  // as text ("<|im_end|>"), and the id of the last of them; nullopt if there is none. By the
  // template for conversations without tools, if there is one.
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
  // The one for a conversation.
  const Parts& For(const Conversation& conversation, std::string_view where) const;

  std::shared_ptr<const Parts> parts_;
  // For conversations with tools, where there is one of their own: that, or what is wrong with it.
  std::shared_ptr<const Parts> tool_parts_;
  std::string tool_error_;
  bool only_tools_ = false;  // `parts_` is that for tools: there is no other
};

}  // namespace zeroplan
