// Chat templates of a model's folder: which files have them, and which is for tools.
#include <algorithm>
#include <map>
#include <system_error>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "text/documents/chat_template.h"
#include "text/tokenizer/side_files.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// The name of the template for conversations with tools.
constexpr const char* kToolUse = "tool_use";
constexpr const char* kTemplateFile = "chat_template.jinja";

struct NamedTemplate {
  std::string text, source;
};

// The folder's templates by name. Where there are files of them, what tokenizer_config.json says
// does not count.
std::map<std::string, NamedTemplate> TemplatesIn(const fs::path& folder) {
  std::map<std::string, NamedTemplate> found;
  const std::vector<fs::path> files = TemplateFiles(folder);
  for (const fs::path& file : files) {
    const std::string name = file.filename() == kTemplateFile ? "default" : file.stem().string();
    if (name == "default" || name == kToolUse) found[name] = {ReadTextFile(file), file.string()};
  }
  if (!files.empty() && found.empty()) {
    ThrowUsage("{}: there is neither a {} nor one for conversations with tools (tool_use.jinja)",
               files[0].string(), kTemplateFile);
  }
  const fs::path config = folder / "tokenizer_config.json";
  if (std::error_code ignored; !found.empty() || !fs::exists(config, ignored)) return found;
  const JsonNode document = ParseJsonText(ReadTextFile(config), config.string());
  JsonSection section(&document, "", config.string());
  const JsonNode* node = section.Raw("chat_template");
  if (node == nullptr || node->is_null()) return found;
  if (node->is_string()) found["default"] = {node->scalar.text(), config.string()};
  for (const JsonNode& named : node->elements) {
    const JsonNode* name = named.Find("name");
    const JsonNode* content = named.Find("template");
    if (name != nullptr && name->is_string() && content != nullptr && content->is_string()) {
      found[name->scalar.text()] = {content->scalar.text(), config.string()};
    }
  }
  if (!found.contains("default") && !found.contains(kToolUse)) {
    section.FailValue("chat_template", "a text, or a list with one named default");
  }
  return found;
}

}  // namespace

std::vector<fs::path> TemplateFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::exists(folder / kTemplateFile, error)) files.push_back(folder / kTemplateFile);
  for (auto entry = fs::directory_iterator(folder / "additional_chat_templates", error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".jinja") files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::optional<ChatTemplate> ChatTemplate::FromFolder(const fs::path& folder,
                                                     const Tokenizer& tokenizer) {
  const std::map<std::string, NamedTemplate> templates = TemplatesIn(folder);
  const auto plain = templates.find("default"), tools = templates.find(kToolUse);
  if (plain == templates.end() && tools == templates.end()) return std::nullopt;
  const SpecialTexts specials = NamedTokensOf(folder);
  std::vector<std::string> stop_tokens;
  for (const int32_t id : StopTokensOf(folder, tokenizer.vocab_size())) {
    if (const std::optional<std::string> stop = tokenizer.TokenText(id))
      stop_tokens.push_back(*stop);
  }
  const auto read = [&](const NamedTemplate& one) {
    return FromText(one.text, one.source, specials, tokenizer, stop_tokens);
  };
  if (plain == templates.end()) {
    ChatTemplate chat = read(tools->second);
    chat.only_tools_ = true;
    return chat;
  }
  ChatTemplate chat = read(plain->second);
  if (tools == templates.end()) return chat;
  try {
    chat.tool_parts_ = read(tools->second).parts_;
  } catch (const Error& error) {
    chat.tool_error_ = error.what();
  }
  return chat;
}

}  // namespace zeroplan
