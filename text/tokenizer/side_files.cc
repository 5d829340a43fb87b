#include "text/tokenizer/side_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "text/files/mapped_file.h"
#include "text/tokenizer/tokenizer_class.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "tokenizer_config.json";

// Names of special tokens that every tokenizer of transformers has, in its order.
constexpr std::array<std::string_view, 7> kNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

std::string WithoutFast(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  return std::string(name);
}

bool IsTrue(const JsonNode* node) {
  return node != nullptr && node->kind == JsonNode::Kind::kScalar && node->scalar == true;
}

// A JSON file of the folder; an empty object if there is none.
struct SideFile {
  SideFile(const fs::path& folder, const char* file) : path((folder / file).string()) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    there = true;
    document = ParseJsonText(ReadTextFile(path), path);
    if (!document.is_object()) ThrowUsage("{}: must be a JSON object; get the file again", path);
  }
  SideFile(const SideFile&) = delete;
  SideFile& operator=(const SideFile&) = delete;

  std::string Where(const JsonNode& node, std::string_view key) const {
    return fmt::format("{}:{}: {}", path, node.line, key);
  }
  std::string Text(std::string_view key) const {
    const JsonNode* node = document.Find(key);
    return node != nullptr && node->is_string() ? node->scalar.text() : "";
  }

  std::string path;
  bool there = false;
  JsonNode document{.kind = JsonNode::Kind::kObject};
};

// Finds the class as AutoTokenizer does. `text`: of the tokenizer.json. "": takes the file as it
// is.
std::string ClassOf(const SideFile& config, const SideFile& model, std::string_view text) {
  const std::string own = config.Text("tokenizer_class");
  const std::string type = model.Text("model_type");
  const std::string declared = WithoutFast(own.empty() ? model.Text("tokenizer_class") : own);
  const std::string registered = TokenizerClassOfType(type);
  const JsonNode* code = config.document.Find("auto_map");
  const bool has_code =
      code != nullptr && (code->is_array() || code->Find("AutoTokenizer") != nullptr);
  if (has_code) {
    LogWarning(
        "{}: auto_map names code of the folder's own for its tokenizer, which is not run: ids are "
        "those of tokenizer.json, as in transformers without trust_remote_code",
        config.path);
  }
  std::string found = declared.empty() ? registered : declared;
  if (!has_code && !declared.empty()) {
    const bool wrong = HasWrongTokenizerClass(type);
    const bool is_bytes = declared == "LlamaTokenizer" && !wrong &&
                          text.find("\"ByteLevel\"") != std::string_view::npos;
    if (is_bytes) {
      found = kTokenizersBackend;
    } else if (!registered.empty() && registered != declared) {
      found = registered == kTokenizersBackend ? kTokenizersBackend : wrong ? registered : declared;
    }
  }
  if (IsOtherTokenizerClass(found)) {
    const bool by_name = !declared.empty() && found == declared;
    ThrowUsage(
        "{}: tokenizer_class: {}, {}, is not supported: it makes other ids of tokenizer.json than "
        "that file says; set tokenizer_class to PreTrainedTokenizerFast in {}, which takes the "
        "file as it is, in transformers, too",
        by_name && own.empty() ? model.path : config.path, found,
        by_name ? "which the folder names" : fmt::format("that of model_type {}", type),
        kConfigName);
  }
  return FindTokenizerClass(found) != nullptr ? found : "";
}

// A token as one of the files says it: by its text alone, or with flags.
std::optional<GivenToken> TokenIn(const SideFile& file, const JsonNode& node,
                                  const std::string& key) {
  if (node.is_null()) return std::nullopt;
  GivenToken given{{}, file.Where(node, key), std::nullopt};
  if (node.is_string() && !node.scalar.text().empty()) {
    given.token.content = node.scalar.text();
    given.token.special = true;
    return given;
  }
  if (!node.is_object()) {
    ThrowUsage("{}: {} is no token; use its text", given.where, node.Quote());
  }
  given.token = ReadAddedToken(node, key, file.path, /*special=*/false);
  // Those of special_tokens_map.json are special, whatever they say.
  if (!file.path.ends_with(kConfigName)) given.token.special = true;
  if (node.Find("normalized") == nullptr) given.token.normalized = !given.token.special;
  return given;
}

bool IsStandard(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Tokens by name, in the order in which they came. nullopt: a file says null.
class Named {
 public:
  void Set(const std::string& name, std::optional<GivenToken> token) {
    const auto [at, is_new] = index_.emplace(name, all_.size());
    if (is_new) {
      all_.emplace_back(name, std::move(token));
    } else {
      all_[at->second].second = std::move(token);
    }
  }
  bool Has(std::string_view name) const { return index_.contains(std::string(name)); }
  const GivenToken* Find(std::string_view name) const {
    const auto at = index_.find(std::string(name));
    return at == index_.end() || !all_[at->second].second ? nullptr : &*all_[at->second].second;
  }
  const std::vector<std::pair<std::string, std::optional<GivenToken>>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::optional<GivenToken>>> all_;
  std::unordered_map<std::string, size_t> index_;
};

// All that the files say of tokens.
struct Sides {
  // Those with ids: "added_tokens_decoder", or, without, added_tokens.json.
  std::map<int64_t, GivenToken> numbered;
  bool says_decoder = false;
  // The standard names and those given with flags; names of the model's own given as texts.
  Named named, own;
  std::vector<GivenToken> extra;
  bool has_extra = false;
};

void ReadList(const SideFile& file, const JsonNode& node, const std::string& key, Sides* sides) {
  if (!node.is_array()) {
    ThrowUsage("{}: {} is no list of tokens; use one, or remove the key", file.Where(node, key),
               node.Quote());
  }
  for (size_t i = 0; i < node.elements.size(); ++i) {
    if (auto token = TokenIn(file, node.elements[i], fmt::format("{}[{}]", key, i))) {
      sides->extra.push_back(*std::move(token));
    }
  }
}

// "extra_special_tokens" is a list, or an object whose keys are names. "additional_special_tokens"
// is what a list of it was called before: it counts where there is no other.
void ReadExtra(const SideFile& file, Sides* sides) {
  const JsonNode* extra = file.document.Find("extra_special_tokens");
  const bool is_object = extra != nullptr && extra->is_object();
  if (is_object) {
    for (const auto& [name, value] : extra->members) {
      sides->own.Set(name, TokenIn(file, value, "extra_special_tokens." + name));
    }
  } else if (extra != nullptr && !extra->is_null()) {
    ReadList(file, *extra, "extra_special_tokens", sides);
  }
  const bool has_list = extra != nullptr && !is_object;
  const bool is_empty = !has_list || extra->is_null() || extra->elements.empty();
  const JsonNode* additional = file.document.Find("additional_special_tokens");
  if (additional != nullptr && !additional->is_null() && is_empty && !sides->has_extra) {
    ReadList(file, *additional, "additional_special_tokens", sides);
  }
  sides->has_extra = sides->has_extra || has_list || additional != nullptr;
}

void ReadNamed(const SideFile& file, bool is_map, Sides* sides) {
  for (const auto& [key, value] : file.document.members) {
    if (IsStandard(key)) {
      sides->named.Set(key, TokenIn(file, value, key));
      continue;
    }
    // Others that end so may be switches ("add_bos_token").
    if (!key.ends_with("_token")) continue;
    const bool has_flags =
        value.is_object() && (is_map || value.Find("__type") != nullptr) && value.Find("content");
    const bool is_text = value.is_string() && !value.scalar.text().empty();
    if (!is_text && !has_flags) continue;
    (is_text && !is_map ? sides->own : sides->named).Set(key, TokenIn(file, value, key));
  }
}

Sides ReadSides(const fs::path& folder, const SideFile& config) {
  Sides sides;
  ReadNamed(config, /*is_map=*/false, &sides);
  ReadExtra(config, &sides);
  if (const JsonNode* decoder = config.document.Find("added_tokens_decoder")) {
    sides.says_decoder = true;
    if (!decoder->is_object()) {
      ThrowUsage("{}: must be an object with a token for each id; get the file again",
                 config.Where(*decoder, "added_tokens_decoder"));
    }
    for (const auto& [key, value] : decoder->members) {
      const std::string path = "added_tokens_decoder." + key;
      const std::optional<JsonScalar> id = ParseJsonScalar(key);
      if (!id || !id->is_number() || id->number() < 0 || id->number() > 2147483646 ||
          !value.is_object()) {
        ThrowUsage("{}: must be an id with its token; get the file again",
                   config.Where(value, path));
      }
      GivenToken token = *TokenIn(config, value, path);
      token.id = static_cast<int64_t>(id->number());
      sides.numbered.insert_or_assign(*token.id, std::move(token));
    }
    return sides;
  }
  const SideFile map(folder, "special_tokens_map.json");
  ReadNamed(map, /*is_map=*/true, &sides);
  ReadExtra(map, &sides);
  std::unordered_set<std::string> special;
  for (const std::string_view name : kNames) {
    if (const GivenToken* token = sides.named.Find(name)) special.insert(token->token.content);
  }
  for (const GivenToken& token : sides.extra) special.insert(token.token.content);
  const SideFile added(folder, "added_tokens.json");
  for (const auto& [content, value] : added.document.members) {
    const std::optional<double> id = ScalarNumber(value);
    const std::string where = added.Where(value, content);
    if (!id || *id < 0 || *id > 2147483646 ||
        *id != static_cast<double>(static_cast<int64_t>(*id)) || content.empty()) {
      ThrowUsage("{}: {} is no id; use a token's number", where, value.Quote());
    }
    GivenToken token{{}, where, static_cast<int64_t>(*id)};
    token.token.content = content;
    token.token.special = special.contains(content);
    token.token.normalized = !token.token.special;
    sides.numbered.insert_or_assign(*token.id, std::move(token));
  }
  return sides;
}

// The standard names in their order, then the others as they were given.
std::vector<std::pair<std::string, GivenToken>> InOrder(const Sides& sides) {
  std::vector<std::pair<std::string, GivenToken>> ordered;
  for (const std::string_view name : kNames) {
    if (const GivenToken* token = sides.named.Find(name)) ordered.emplace_back(name, *token);
  }
  for (const auto& [name, token] : sides.named.all()) {
    const GivenToken* own = sides.own.Find(name);
    if (IsStandard(name)) continue;
    if (own != nullptr || token) ordered.emplace_back(name, own != nullptr ? *own : *token);
  }
  for (const auto& [name, token] : sides.own.all()) {
    if (token && !sides.named.Has(name)) ordered.emplace_back(name, *token);
  }
  return ordered;
}

// Names that the class has where the files do not say them.
void AddDefaults(const TokenizerClass& own, const std::string& path, Sides* sides) {
  for (const auto& [name, content] : own.names) {
    if (sides->named.Has(name)) continue;
    GivenToken token{{}, fmt::format("{}: {} of {}", path, name, own.name), std::nullopt};
    token.token.content = content;
    token.token.special = true;
    sides->named.Set(std::string(name), std::move(token));
  }
}

void Set(JsonNode* object, std::string_view key, JsonNode value) {
  for (JsonMember& member : object->members) {
    if (member.key != key) continue;
    value.line = member.value.line;
    member.value = std::move(value);
    return;
  }
  object->members.push_back({std::string(key), std::move(value)});
}

void ReplaceAll(std::string* text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text->find(what, at)) != std::string::npos; at += with.size()) {
    text->replace(at, what.size(), with);
  }
}

// Makes of the document what the class does.
void Rebuild(const TokenizerClass& own, const SideFile& config, const Sides& sides,
             const std::string& source, JsonNode* document) {
  const JsonNode* space = config.document.Find("add_prefix_space");
  const bool is_given = space != nullptr && !space->is_null();
  const bool is_llama = own.name == "LlamaTokenizer";
  const bool prefixed = is_given ? IsTrue(space) : is_llama;
  const GivenToken* unk = sides.named.Find("unk_token");
  const auto part = [&](std::string_view text) {
    std::string filled(text);
    ReplaceAll(&filled, "$SPACE", prefixed ? "true" : "false");
    ReplaceAll(&filled, "$SCHEME",
               !prefixed                                ? "never"
               : IsTrue(config.document.Find("legacy")) ? "always"
                                                        : "first");
    ReplaceAll(&filled, "$UNK", unk == nullptr ? "null" : JsonScalar(unk->token.content).Dump());
    ReplaceAll(&filled, "$STRIP",
               prefixed ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "");
    return filled == "null" ? JsonNode() : ParseJsonText(filled, source);
  };
  Set(document, "normalizer", part(own.normalizer));
  Set(document, "pre_tokenizer", part(own.pre_tokenizer));
  Set(document, "decoder", part(own.decoder));
  if (!own.keeps_post_processor) Set(document, "post_processor", JsonNode());
  for (JsonMember& member : document->members) {
    if (member.key == "added_tokens") member.value.elements.clear();
    if (member.key != "model" || !member.value.is_object()) continue;
    for (JsonMember& option : part(own.model).members) {
      Set(&member.value, option.key, std::move(option.value));
    }
  }
}

bool IsSame(const AddedToken& a, const AddedToken& b) {
  return a.content == b.content && a.special == b.special && a.single_word == b.single_word &&
         a.lstrip == b.lstrip && a.rstrip == b.rstrip && a.normalized == b.normalized;
}

// The parts of the folder that transformers alone takes.
void RefuseUnknown(const SideFile& config) {
  if (const JsonNode* fix = config.document.Find("fix_mistral_regex"); IsTrue(fix)) {
    ThrowUsage(
        "{}: true is not supported: it puts another pattern in the place of tokenizer.json's; "
        "save the tokenizer with transformers' save_pretrained, which writes that pattern down, "
        "and remove the key",
        config.Where(*fix, "fix_mistral_regex"));
  }
  const JsonNode* versions = config.document.Find("fast_tokenizer_files");
  if (versions == nullptr) return;
  for (const JsonNode& one : versions->elements) {
    if (one.is_string() && one.scalar.text() != "tokenizer.json") {
      ThrowUsage(
          "{}: {} is not supported: transformers takes the file of its own version, here "
          "tokenizer.json is read; keep one of them under that name, and remove the key",
          config.Where(*versions, "fast_tokenizer_files"), one.Quote());
    }
  }
}

}  // namespace

NamedTokens NamedTokensOf(const fs::path& folder) {
  const SideFile config(folder, kConfigName);
  Sides sides = ReadSides(folder, config);
  const fs::path file = folder / "tokenizer.json";
  if (std::error_code ignored; fs::exists(file, ignored)) {
    const SideFile model(folder, "config.json");
    const MappedFile bytes = MappedFile::Open(file);
    const std::string_view text(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.size());
    if (const TokenizerClass* own = FindTokenizerClass(ClassOf(config, model, text))) {
      AddDefaults(*own, config.path, &sides);
    }
  }
  NamedTokens named;
  for (auto& [name, token] : InOrder(sides)) named.emplace_back(name, token.token.content);
  return named;
}

const std::string* FindNamed(const NamedTokens& named, std::string_view name) {
  for (const auto& [known, text] : named) {
    if (known == name) return &text;
  }
  return nullptr;
}

SideTokens ApplySideFiles(const fs::path& folder, std::string_view text, const std::string& source,
                          JsonNode* document) {
  const SideFile config(folder, kConfigName);
  const SideFile model(folder, "config.json");
  RefuseUnknown(config);
  Sides sides = ReadSides(folder, config);
  const TokenizerClass* own = FindTokenizerClass(ClassOf(config, model, text));

  std::unordered_map<std::string, AddedToken> in_file;
  const JsonNode* added = document->Find("added_tokens");
  for (size_t i = 0; added != nullptr && i < added->elements.size(); ++i) {
    const JsonNode& node = added->elements[i];
    const std::string path = fmt::format("added_tokens[{}]", i);
    AddedToken token = ReadAddedToken(node, path, source, /*special=*/false);
    const JsonNode* id = node.Find("id");
    if (!sides.says_decoder && id != nullptr && ScalarNumber(*id)) {
      const auto number = static_cast<int64_t>(*ScalarNumber(*id));
      sides.numbered.insert_or_assign(
          number, GivenToken{token, fmt::format("{}:{}: {}", source, node.line, path), number});
    }
    in_file.insert_or_assign(token.content, std::move(token));
  }
  // A name takes the flags of the numbered token. (Those that the class alone gives do not.)
  for (const std::string_view name : kNames) {
    const GivenToken* found = sides.named.Find(name);
    if (found == nullptr) continue;
    GivenToken token = *found;
    for (const auto& [id, numbered] : sides.numbered) {
      if (numbered.token.content == token.token.content) token.token = numbered.token;
    }
    sides.named.Set(std::string(name), std::move(token));
  }
  if (own != nullptr) {
    AddDefaults(*own, config.path, &sides);
    Rebuild(*own, config, sides, source, document);
    in_file.clear();
  }

  SideTokens result;
  result.split_special = IsTrue(config.document.Find("split_special_tokens"));
  std::vector<GivenToken> tokens;
  std::unordered_set<std::string> known, names;
  for (const auto& [content, token] : in_file) known.insert(content);
  for (const auto& [id, given] : sides.numbered) {
    const auto same = in_file.find(given.token.content);
    if (same != in_file.end() && IsSame(same->second, given.token)) continue;
    tokens.push_back(given);
    known.insert(given.token.content);
  }
  const auto named = InOrder(sides);
  for (const auto& [name, given] : named) {
    names.insert(given.token.content);
    if (!known.contains(given.token.content)) tokens.push_back(given);
  }
  for (const GivenToken& given : sides.extra) {
    if (!known.contains(given.token.content)) tokens.push_back(given);
  }
  for (GivenToken& given : tokens) {
    if (names.contains(given.token.content)) given.token.special = true;
  }
  if (!tokens.empty()) result.lists.push_back(std::move(tokens));
  if (own != nullptr && own->name == "Qwen2Tokenizer") {
    std::vector<GivenToken> again;
    const auto add = [&](const GivenToken& given) {
      GivenToken plain{{}, given.where, std::nullopt};
      plain.token.content = given.token.content;
      plain.token.special = true;
      again.push_back(std::move(plain));
    };
    for (const auto& [name, given] : named) add(given);
    for (const GivenToken& given : sides.extra) add(given);
    result.lists.push_back(std::move(again));
  }
  return result;
}

}  // namespace zeroplan
