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

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kBackend = "TokenizersBackend";  // takes tokenizer.json as it is

// Names of special tokens that every tokenizer of transformers has, in its order.
constexpr std::array<std::string_view, 7> kNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// Which class transformers 5.24 (models/auto/tokenization_auto.py) has for a type of model where
// the folder names none, or one that is known to be wrong. Types of models that make no text, and
// those whose class reads no BPE, are left out.
struct TypesOfClass {
  const char* name;
  std::string_view types;  // between blanks
};
constexpr TypesOfClass kTypes[] = {
    {"GPT2Tokenizer",
     " blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip "
     "instructblipvideo jais2 opt phi starcoder2 "},
    {"Qwen2Tokenizer",
     " audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl "
     "lighton_ocr moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl "
     "qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl "
     "qwen3_vl_moe vibevoice "},
    {"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    {"GemmaTokenizer",
     " diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma "
     "shieldgemma2 t5gemma zaya "},
    {"LlamaTokenizer", " idefics idefics2 "},
    {"CodeLlamaTokenizer", " code_llama "},
    {"CohereTokenizer", " aya_vision cohere cohere2 "},
    {"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "},
    {"RobertaTokenizer",
     " bart bridgetower clap data2vec-text florence2 ibert led lilt longformer mega mra mvp "
     "roberta roberta-prelayernorm "},
    {kBackend,
     " EvollaModel aria arctic beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr "
     "ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe "
     "glm_image glmasr got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe "
     "granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 "
     "internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash "
     "minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 "
     "mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2 "
     "nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid omniasr opencua openvla "
     "paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts smolvlm "
     "stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl "},
};
// Types of which the folder's own class is known to be wrong, besides those of kBackend, which that
// makes no difference for.
constexpr std::string_view kWrongClass =
    " hyperclovax_vision_v2 qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp ";
// Classes of transformers that make something of their own of a BPE tokenizer.json, or read other
// files, which is not done here. A class that transformers does not have takes the file as it is.
constexpr std::string_view kOtherClasses =
    " BartTokenizer BartphoTokenizer BertweetTokenizer BioGptTokenizer BlenderbotSmallTokenizer "
    "BlenderbotTokenizer ByT5Tokenizer CLIPTokenizer CTRLTokenizer CodeLlamaTokenizer "
    "CohereTokenizer CpmAntTokenizer CpmTokenizer DebertaTokenizer EsmcTokenizer FSMTTokenizer "
    "FlaubertTokenizer GPTNeoXJapaneseTokenizer GPTSw3Tokenizer HerbertTokenizer LEDTokenizer "
    "LayoutLMv3Tokenizer LukeTokenizer M2M100Tokenizer MarianTokenizer MarkupLMTokenizer "
    "MvpTokenizer NllbTokenizer NougatTokenizer OpenAIGPTTokenizer PLBartTokenizer "
    "PhobertTokenizer ProphetNetTokenizer Qwen3_5Tokenizer ReformerTokenizer RobertaTokenizer "
    "SeamlessM4TTokenizer Siglip2Tokenizer Tipsv2Tokenizer WhisperTokenizer XLMTokenizer ";

// A class that makes its own of a tokenizer.json: names that a file need not give, and its parts.
// In these $SPACE stands for add_prefix_space, $SCHEME for prepend_scheme, $UNK for unk_token, and
// $STRIP for the decoder of a prefix space. "": as in the file.
struct TokenizerClass {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> names;
  std::string_view model, normalizer, pre_tokenizer, decoder;
  bool keeps_post_processor = true;
};

constexpr std::string_view kPlainModel =
    R"({"unk_token": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false})";
constexpr std::string_view kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
constexpr std::string_view kByteLevelPre =
    R"({"type": "ByteLevel", "add_prefix_space": $SPACE, "trim_offsets": true, "use_regex": true})";
constexpr std::string_view kNfc = R"({"type": "NFC"})";

const std::vector<TokenizerClass>& Classes() {
  static const std::vector<TokenizerClass> classes = {
      {"GPT2Tokenizer",
       {{"unk_token", "<|endoftext|>"},
        {"bos_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"}},
       kPlainModel,
       "null",
       kByteLevelPre,
       kByteLevel},
      {"GPTNeoXTokenizer",
       {{"unk_token", "<|endoftext|>"},
        {"bos_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"},
        {"pad_token", "<|padding|>"}},
       kPlainModel,
       kNfc,
       kByteLevelPre,
       kByteLevel,
       false},
      {"Qwen2Tokenizer",
       {{"unk_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"},
        {"pad_token", "<|endoftext|>"}},
       kPlainModel,
       kNfc,
       R"#({"type": "Sequence", "pretokenizers": [
         {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
          "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
         {"type": "ByteLevel", "add_prefix_space": $SPACE, "trim_offsets": true,
          "use_regex": false}]})#",
       kByteLevel},
      {"LlamaTokenizer",
       {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}},
       R"({"unk_token": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false})",
       "null",
       R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "$SCHEME", "split": false})",
       R"({"type": "Sequence", "decoders": [
         {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
         {"type": "ByteFallback"}, {"type": "Fuse"}$STRIP]})"},
      {"GemmaTokenizer",
       {{"unk_token", "<unk>"},
        {"bos_token", "<bos>"},
        {"eos_token", "<eos>"},
        {"pad_token", "<pad>"},
        {"mask_token", "<mask>"}},
       R"({"unk_token": $UNK, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false})",
       R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})",
       R"({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
           "invert": false})",
       R"({"type": "Sequence", "decoders": [
         {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
         {"type": "ByteFallback"}, {"type": "Fuse"}]})"},
  };
  return classes;
}

bool Among(std::string_view word, std::string_view words) {
  return !word.empty() && words.find(fmt::format(" {} ", word)) != std::string_view::npos;
}

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

std::string ClassOfType(std::string_view type) {
  for (const TypesOfClass& known : kTypes) {
    if (Among(type, known.types)) return known.name;
  }
  return "";
}

// Finds the class as AutoTokenizer does. `text`: of the tokenizer.json. "": takes the file as it
// is.
std::string ClassOf(const SideFile& config, const SideFile& model, std::string_view text) {
  const std::string own = config.Text("tokenizer_class");
  const std::string type = model.Text("model_type");
  const std::string declared = WithoutFast(own.empty() ? model.Text("tokenizer_class") : own);
  const std::string registered = ClassOfType(type);
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
    const bool wrong = Among(type, kWrongClass);
    const bool is_bytes = declared == "LlamaTokenizer" && !wrong &&
                          text.find("\"ByteLevel\"") != std::string_view::npos;
    if (is_bytes) {
      found = kBackend;
    } else if (!registered.empty() && registered != declared) {
      found = registered == kBackend ? kBackend : wrong ? registered : declared;
    }
  }
  if (Among(found, kOtherClasses)) {
    const bool by_name = !declared.empty() && found == declared;
    ThrowUsage(
        "{}: tokenizer_class: {}, {}, is not supported: it makes other ids of tokenizer.json than "
        "that file says; set tokenizer_class to PreTrainedTokenizerFast in {}, which takes the "
        "file as it is, in transformers, too",
        by_name && own.empty() ? model.path : config.path, found,
        by_name ? "which the folder names" : fmt::format("that of model_type {}", type),
        kConfigName);
  }
  const auto& classes = Classes();
  const bool known = std::any_of(classes.begin(), classes.end(),
                                 [&](const TokenizerClass& one) { return one.name == found; });
  return known ? found : "";
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

const TokenizerClass* FindClass(std::string_view name) {
  for (const TokenizerClass& one : Classes()) {
    if (one.name == name) return &one;
  }
  return nullptr;
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

// What transformers takes from the folder, and nobody else knows of.
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
    if (const TokenizerClass* own = FindClass(ClassOf(config, model, text))) {
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
  const TokenizerClass* own = FindClass(ClassOf(config, model, text));

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
