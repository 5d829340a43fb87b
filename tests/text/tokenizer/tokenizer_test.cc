// Tokenizers against what the PyPI package `tokenizers` makes of the same files and texts
// (tests/tokenizer_parity/make_fixtures.py), and what the package does not define.
#include "text/tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/base/json_source.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/tokenizer/side_files.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

const std::string kFolder = "tests/fixtures/tokenizers";

std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(SourcePath(kFolder))) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  return names;
}

Tokenizer Load(const std::string& name) {
  return Tokenizer::FromFile(SourcePath(kFolder + "/" + name + ".json"));
}

std::vector<int32_t> Ids(const JsonNode& node) {
  std::vector<int32_t> ids;
  for (const JsonNode& id : node.elements) {
    ids.push_back(static_cast<int32_t>(id.scalar.number()));
  }
  return ids;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  TextStream stream(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

TEST_CASE("tokenizer: ids and text are those of the package, for each structure") {
  const std::vector<std::string> names = Fixtures();
  REQUIRE(names.size() >= 17);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Tokenizer tokenizer = Load(name);
    const JsonNode expected =
        ParseJsonText(ReadTextFile(SourcePath(kFolder + "/" + name + ".expected")), name);
    const std::vector<JsonNode>& cases = expected.Find("cases")->elements;
    REQUIRE(cases.size() >= 25);
    for (const JsonNode& one : cases) {
      const std::string& text = one.Find("text")->scalar.text();
      CAPTURE(text);
      const std::vector<int32_t> ids = Ids(*one.Find("ids"));
      CHECK(tokenizer.Encode(text, true) == ids);
      CHECK(static_cast<double>(tokenizer.Encode(text, false).size()) ==
            one.Find("bare")->scalar.number());
      for (const bool skip : {true, false}) {
        const std::string& decoded = one.Find(skip ? "decoded" : "decoded_all")->scalar.text();
        CHECK(tokenizer.Decode(ids, skip) == decoded);
        CHECK(Streamed(tokenizer, ids, skip) == decoded);
      }
    }
  }
}

TEST_CASE("tokenizer: bytes that are no UTF-8 are read as Python replaces them") {
  const Tokenizer tokenizer = Load("gpt2");
  const auto same = [&](std::string_view bytes, std::string_view text) {
    CHECK(tokenizer.Encode(bytes, true) == tokenizer.Encode(text, true));
    CHECK(tokenizer.Decode(tokenizer.Encode(bytes, true), true) == text);
  };
  same("a\xff\x62", "a\xEF\xBF\xBD\x62");
  same("\xe4\xb8", "\xEF\xBF\xBD");                              // one start of a character
  same("\xe4\xb8 \xe4\xb8\xad", "\xEF\xBF\xBD \xe4\xb8\xad");    // ... and a whole one
  same("\xed\xa0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  same("\xc0\xaf", "\xEF\xBF\xBD\xEF\xBF\xBD");                  // an overlong slash
  same("\xf0\x9f\x98", "\xEF\xBF\xBD");
  same("\xf4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // past U+10FFFF
}

TEST_CASE("tokenizer: a stream returns whole characters only") {
  const Tokenizer tokenizer = Load("gpt2");
  const std::vector<int32_t> ids = tokenizer.Encode("\xF0\x9F\xA6\x84!", false);
  REQUIRE(ids.size() > 2);  // the unicorn is several tokens
  TextStream stream(tokenizer, true);
  std::vector<std::string> parts;
  for (const int32_t id : ids) parts.push_back(stream.Push(id));
  CHECK(parts.front().empty());
  CHECK(parts.back() == "!");
  CHECK(parts[ids.size() - 2] == "\xF0\x9F\xA6\x84");
  CHECK(stream.Finish().empty());
  stream.Push(ids[0]);
  CHECK(stream.Finish() == "\xEF\xBF\xBD");
}

TEST_CASE("tokenizer: vocabulary, names and special tokens") {
  const Tokenizer tokenizer = Load("qwen3");
  const std::optional<int32_t> end = tokenizer.TokenId("<|im_end|>");
  REQUIRE(end.has_value());
  CHECK(tokenizer.IsSpecial(*end));
  CHECK(tokenizer.TokenText(*end) == "<|im_end|>");
  CHECK_FALSE(tokenizer.IsSpecial(*tokenizer.TokenId("<think>")));
  CHECK(tokenizer.vocab_size() == *tokenizer.TokenId("</think>") + 1);
  CHECK_FALSE(tokenizer.TokenId("no such token").has_value());
  CHECK_FALSE(tokenizer.TokenText(tokenizer.vocab_size()).has_value());
  CHECK_FALSE(tokenizer.TokenText(-1).has_value());
  const std::vector<int32_t> unknown = {-1, tokenizer.vocab_size(), *tokenizer.TokenId("a")};
  CHECK(tokenizer.Decode(unknown, true) == "a");
}

TEST_CASE("tokenizer: threads give the ids of each text in order") {
  const Tokenizer tokenizer = Load("llama3");
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back("text " + std::to_string(i * i) + " of many");
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto all = tokenizer.EncodeMany(views, true, 4);
  REQUIRE(all.size() == texts.size());
  for (size_t i = 0; i < texts.size(); ++i) CHECK(all[i] == tokenizer.Encode(texts[i], true));
  CHECK(tokenizer.EncodeMany({}, true, 4).empty());
}

// What is quadratic in its size would take hours.
TEST_CASE("tokenizer: one word of a megabyte") {
  for (const char* name : {"gpt2", "llama3", "llama2", "mistral_v03"}) {
    CAPTURE(name);
    const Tokenizer tokenizer = Load(name);
    for (const char* unit : {"a", " ", "\xe4\xb8\xad", "the"}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      const std::vector<int32_t> ids = tokenizer.Encode(text, false);
      // Metaspace adds no blank where there is one, and its decoder takes one away.
      const bool loses_one = std::string_view(name) == "mistral_v03" && *unit == ' ';
      CHECK((tokenizer.Decode(ids, true) == text.substr(loses_one ? 1 : 0)));
    }
  }
}

// A small file, with `what` replaced by `with`.
std::string Edited(std::string_view what, std::string_view with) {
  std::string text = R"({
"version": "1.0", "truncation": null, "padding": null,
"added_tokens": [{"id": 4, "content": "<s>", "special": true}],
"normalizer": null,
"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
"post_processor": null, "decoder": {"type": "Fuse"},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3},
"merges": ["a b"]}
})";
  if (what.empty()) return text;
  const size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

TEST_CASE("tokenizer: what a file asks for and is not supported is refused by name") {
  REQUIRE(Tokenizer::FromText(Edited("", ""), "f").Encode("ab ba<s>", true) ==
          std::vector<int32_t>{2, 3, 1, 0, 4});
  struct Case {
    const char *what, *with, *named;
  };
  for (const Case& c : {
           Case{"\"type\": \"BPE\"", "\"type\": \"Unigram\"",
                "f:7: model.type: \"Unigram\" is not supported"},
           Case{"\"dropout\": null", "\"dropout\": 0.1", "model.dropout: 0.1"},
           Case{"\"dropout\": null", "\"end_of_word_suffix\": \"</w>\"",
                "model.end_of_word_suffix: \"</w>\""},
           Case{"\"dropout\": null", "\"continuing_subword_prefix\": \"##\"",
                "model.continuing_subword_prefix: \"##\""},
           Case{"\"dropout\": null", "\"sparkle\": 3", "model.sparkle: 3"},
           Case{"\"truncation\": null", "\"truncation\": {\"max_length\": 3}",
                "truncation: is not"},
           Case{"\"padding\": null", "\"padding\": {}", "padding: is not"},
           Case{"\"version\": \"1.0\"", "\"sparkle\": 1", "sparkle: 1"},
           Case{"\"normalizer\": null", "\"normalizer\": {\"type\": \"Precompiled\"}",
                "normalizer.type: Precompiled is not supported"},
           Case{"\"invert\": false", "\"invert\": false, \"sparkle\": 2",
                "pre_tokenizer.sparkle: 2"},
           Case{"\"invert\": false", "\"invert\": 3", "pre_tokenizer.invert: 3"},
           Case{"Isolated", "Sideways", "pre_tokenizer.behavior"},
           Case{"\\\\s+", "\\\\bx)",
                "pre_tokenizer.pattern: the regular expression \\bx) cannot be used"},
           Case{"\\\\s+", "(?s)a", "undefined group option"},
           Case{"\\\\s+", "(a", "end pattern with unmatched parenthesis"},
           Case{"\\\\s+", "\\\\p{Hobbit}", "invalid character property name {Hobbit}"},
           Case{"\"Split\"", "\"BertPreTokenizer\"", "pre_tokenizer.type: BertPreTokenizer"},
           Case{"\"type\": \"Fuse\"", "\"type\": \"WordPiece\"", "decoder.type: WordPiece"},
           Case{"\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
                "post_processor.type: BertProcessing"},
           Case{"\"id\": 4", "\"id\": 7", "added_tokens[0].id: 7"},
           Case{"\"special\": true", "\"sparkle\": true", "added_tokens[0].sparkle"},
           Case{"\"b\": 1", "\"b\": 0", "0 is the id of a too"},
           Case{"\"b\": 1", "\"b\": -1", "model.vocab: b: -1 is no id"},
           Case{"\"b\": 1", "\"b\": 99999999", "99999999 is no id"},
           Case{"\"b\": 1", "\"a\": 1", "the key is given twice"},
           Case{"\"a b\"", "\"a c\"", "model.merges[0]: the token c is not in model.vocab"},
           Case{"\"a b\"", "\"a  b\"", "model.merges[0]: \"a  b\" is not two tokens"},
           Case{"\"a b\"", "[\"a\"]", "model.merges[0]: [...] is no pair"},
       }) {
    CAPTURE(c.with);
    const std::string message =
        ErrorOf(ExitCode::kUsage, [&] { Tokenizer::FromText(Edited(c.what, c.with), "f"); });
    CHECK(Has(message, c.named));
    CHECK(Has(message, "f:"));
  }
  CHECK(Has(ErrorOf(ExitCode::kUsage, [] { Tokenizer::FromFile("/no/such/folder"); }),
            "/no/such/folder"));
}

TEST_CASE("tokenizer: what a file makes of a text is bounded") {
  // `steps` of them in a sequence.
  const auto many = [](const std::string& kind, const std::string& list, const std::string& step,
                       int steps) {
    std::string text = "\"" + kind + "\": {\"type\": \"Sequence\", \"" + list + "\": [" + step;
    for (int i = 1; i < steps; ++i) text += ", " + step;
    return text + "]}";
  };
  const auto edited = [](const std::string& what, const std::string& with) {
    return Tokenizer::FromText(Edited(what, with), "f");
  };
  const std::string twice = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  const std::string regex = R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": "aa"})";
  const std::string bytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  const std::string split = R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+"},)"
                            R"( "behavior": "Isolated", "invert": false})";
  const std::string text(10, 'a');
  for (const std::string& step : {twice, regex}) {
    // 10 bytes are 160 MiB.
    const Tokenizer tokenizer =
        edited("\"normalizer\": null", many("normalizer", "normalizers", step, 24));
    CHECK(ErrorOf(ExitCode::kUsage, [&] { tokenizer.Encode(text, false); }) ==
          "f: normalizer: makes more than 1049216 bytes of a text of 10; get the tokenizer again");
    const Tokenizer decoder =
        edited(R"("decoder": {"type": "Fuse"})", many("decoder", "decoders", step, 24));
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { decoder.Decode(std::vector<int32_t>{0, 0}, false); }),
              "f: decoder: makes more than 1048704 bytes of a text of 2"));
  }
  // What a step makes of one match counts while it is made.
  const Tokenizer long_content =
      edited("\"normalizer\": null",
             R"("normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ")" +
                 std::string(1 << 20, 'b') + "\"}");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { long_content.Encode(text, false); }), "makes more"));
  const Tokenizer spelt = edited(split, many("pre_tokenizer", "pretokenizers", bytes, 26));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { spelt.Encode("\x01 b", false); }),
            "f: pre_tokenizer: makes more than "));
  CHECK_NOTHROW(edited("\"normalizer\": null", many("normalizer", "normalizers", twice, 100)));
  CHECK(Has(ErrorOf(ExitCode::kUsage,
                    [&] {
                      edited("\"normalizer\": null", many("normalizer", "normalizers", twice, 101));
                    }),
            "Replace is one of more than 100 steps"));
  CHECK(Has(ErrorOf(ExitCode::kUsage,
                    [&] { edited(split, many("pre_tokenizer", "pretokenizers", bytes, 101)); }),
            "ByteLevel is one of more than 100 steps"));
  std::string single = R"("post_processor": {"type": "TemplateProcessing", "single": [)";
  for (int i = 0; i < 40; ++i) single += R"({"SpecialToken": {"id": "s", "type_id": 0}}, )";
  single += R"({"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"s": {"ids": [4)";
  for (int i = 0; i < 25; ++i) single += ", 4";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { edited("\"post_processor\": null", single + "]}}}"); }),
            "puts more than 1000 tokens before or behind a text"));
}

TEST_CASE("tokenizer: lower case is that of the package, also where utf8proc is older") {
  const std::string file =
      Edited("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}");
  std::string vocab =
      "\"\xEA\x9F\x8F\": 9, \"\xF0\x96\xBB\x93\": 8, \"i\": 7, \"\xCC\x87\": 6, \"a\": 0,";
  std::string text = file;
  text.replace(text.find("\"a\": 0,"), 7, vocab);
  text.replace(text.find("\"id\": 4"), 7, "\"id\": 10");
  text.replace(text.find("\"<s>\""), 5, "\"i\"");
  text.replace(text.find("\"id\": 10"), 8, "\"id\": 7");
  // U+A7CE and U+16EB8 are of Unicode 17; U+0130 becomes two characters.
  CHECK(Tokenizer::FromText(text, "f").Encode("A\xEA\x9F\x8E\xF0\x96\xBA\xB8\xC4\xB0", true) ==
        std::vector<int32_t>{0, 9, 8, 7, 6});
}

TEST_CASE("tokenizer: an unknown character without a token for it is an error that names both") {
  const Tokenizer tokenizer =
      Tokenizer::FromText(Edited("\"unk_token\": null", "\"unk_token\": \"<none>\""), "f");
  CHECK(tokenizer.Encode("ab", true) == std::vector<int32_t>{2});
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { tokenizer.Encode("abx", true); });
  CHECK(Has(message, "model.unk_token: <none> is not in the vocabulary"));
  CHECK(Has(message, "U+0078"));
}

TEST_CASE("tokenizer: the digest is of what decides ids, not of the layout") {
  const auto digest = [](std::string_view what, std::string_view with) {
    return Tokenizer::FromText(Edited(what, with), "f").digest();
  };
  const Sha256Digest own = digest("", "");
  CHECK(digest("\"a b\"", "[\"a\", \"b\"]") == own);
  CHECK(digest("\"version\": \"1.0\",", "\n\n") == own);
  CHECK(digest("\"decoder\": {\"type\": \"Fuse\"}", "\"decoder\": null") == own);
  CHECK(digest("\"behavior\": \"Isolated\", \"invert\": false",
               "\"invert\": false, \"behavior\": \"Isolated\"") == own);
  CHECK(digest("\"Isolated\"", "\"Removed\"") != own);
  CHECK(digest("\"a b\"", "") != own);
  CHECK(digest("\"b\": 1, \"ab\": 2", "\"b\": 2, \"ab\": 1") != own);
  CHECK(digest("\"special\": true", "\"special\": true, \"lstrip\": true") != own);
  CHECK(digest("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}") != own);
  CHECK(digest("\"unk_token\": null", "\"unk_token\": \"a\"") != own);
}

// A folder with a tokenizer of tests/fixtures/tokenizers and other files beside it.
class FolderBeside : public TokenizerFolder {
 public:
  explicit FolderBeside(const std::string& fixture) {
    fs::copy_file(TokenizerFixture(fixture), path("tokenizer.json"));
  }
  FolderBeside& With(const std::string& name, std::string_view text) {
    Write(name, text);
    return *this;
  }
  Tokenizer Load() const { return Tokenizer::FromFile(path("")); }
  std::vector<int32_t> Ids(std::string_view text) const { return Load().Encode(text, true); }
  std::string Refused() const {
    return ErrorOf(ExitCode::kUsage, [&] { Load(); });
  }
};
constexpr const char* kConfigFile = "tokenizer_config.json";
using IdList = std::vector<int32_t>;

// Ids are those of AutoTokenizer.from_pretrained (transformers 5.24.0) for the same folder;
// tests/tokenizer_parity/compare_side_files.py compares more of them.
TEST_CASE("tokenizer: files beside tokenizer.json add tokens and change their flags") {
  FolderBeside folder("smollm2");
  const Sha256Digest bare = folder.Load().digest();
  CHECK(folder.Ids("the <x>the") == IdList{83, 259, 220, 27, 87, 29, 83, 259});
  folder.With(kConfigFile, R"({"added_tokens_decoder":
      {"463": {"content": "<x>", "lstrip": true, "special": true}}})");
  CHECK(folder.Ids("the <x>the") == IdList{83, 259, 463, 83, 259});
  CHECK(folder.Load().vocab_size() == 464);
  CHECK(folder.Load().file_vocab_size() == 463);
  CHECK((folder.Load().digest() != bare));
  // Flags of a token that tokenizer.json has.
  folder.With(kConfigFile, R"({"added_tokens_decoder":
      {"461": {"content": "<|im_start|>", "rstrip": true, "special": true}}})");
  CHECK(folder.Ids("a<|im_start|>  a") == IdList{64, 461, 64});
  CHECK((folder.Load().digest() != bare));
  // A word of the vocabulary becomes a token of its own, wherever it stands.
  folder.With(kConfigFile, R"({"bos_token": "<bos>"})")
      .With("special_tokens_map.json", R"({"eos_token": {"content": "the", "rstrip": true}})");
  CHECK(folder.Ids("of the <bos>") == IdList{78, 69, 220, 464, 463});
  // Where the tokens have ids in the config, the map does not count.
  folder.With(kConfigFile, R"({"added_tokens_decoder": {}})");
  CHECK(folder.Ids("of the <bos>") == IdList{78, 69, 269, 220, 27, 65, 78, 82, 29});

  FolderBeside named("smollm2");
  named.With(kConfigFile, R"({"image_token": "<image>", "add_eos_token": true,
                              "extra_special_tokens": {"boi": "<boi>"}})");
  CHECK(named.Ids("a<image><boi>") == IdList{64, 463, 464});
  FolderBeside numbered("smollm2");
  numbered.With("added_tokens.json", R"({"<a>": 463})");
  CHECK(numbered.Ids("a<a>") == IdList{64, 463});
  CHECK_FALSE(numbered.Load().IsSpecial(463));
  FolderBeside split("smollm2");
  split.With(kConfigFile, R"({"split_special_tokens": true, "add_prefix_space": true})");
  CHECK(split.Ids("a<|im_start|>") == IdList{64, 27, 91, 357, 62, 291, 285, 83, 91, 29});
  CHECK((split.Load().digest() != bare));
}

TEST_CASE("tokenizer: some classes make their own of vocabulary and merges") {
  FolderBeside gpt2("gpt2");
  gpt2.With("config.json", R"({"model_type": "gpt2"})")
      .With(kConfigFile, R"({"add_prefix_space": true})");
  CHECK(gpt2.Ids("the<|endoftext|>the") == IdList{269, 460, 269});
  gpt2.With(kConfigFile,
            R"({"add_prefix_space": true, "tokenizer_class": "PreTrainedTokenizerFast"})");
  CHECK(gpt2.Ids("the<|endoftext|>the") == IdList{83, 259, 460, 83, 259});

  FolderBeside llama("llama2");
  const auto ids = [&](const std::string& more, const std::string& type = "llama") {
    llama.With("config.json", R"({"model_type": ")" + type + "\"}")
        .With(kConfigFile,
              R"({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>")" + more + "}");
    return llama.Ids("the</s>the");
  };
  const std::string of_llama = R"(, "tokenizer_class": "LlamaTokenizerFast")";
  CHECK(ids(of_llama) == IdList{1, 361, 2, 331, 351});
  CHECK(ids(of_llama + R"(, "legacy": true)") == IdList{1, 361, 2, 361});
  CHECK(ids(of_llama + R"(, "add_prefix_space": false)") == IdList{1, 331, 351, 2, 331, 351});
  CHECK(ids("") == IdList{1, 361, 2, 361});
  CHECK(ids(of_llama, "mistral") == IdList{1, 361, 2, 361});

  // Names that the class alone has become tokens, behind all others.
  FolderBeside qwen("llama3");
  qwen.With(kConfigFile, R"({"tokenizer_class": "Qwen2Tokenizer", "pad_token": null})");
  CHECK(qwen.Ids("1234<|endoftext|>") == IdList{460, 16, 17, 18, 19, 463});
  CHECK(*FindNamed(NamedTokensOf(qwen.path("")), "eos_token") == "<|endoftext|>");
  CHECK(FindNamed(NamedTokensOf(qwen.path("")), "pad_token") == nullptr);
}

TEST_CASE("tokenizer: what beside tokenizer.json is not honoured is refused by key") {
  FolderBeside folder("llama3");
  const auto refused = [&](const std::string& config, const std::string& message) {
    const std::string text = folder.With(kConfigFile, config).Refused();
    CAPTURE(text);
    CHECK(Has(text, "tokenizer_config.json"));
    CHECK(Has(text, message));
  };
  refused(R"({"tokenizer_class": "CodeLlamaTokenizer"})",
          "tokenizer_class: CodeLlamaTokenizer, which the folder names, is not supported");
  refused(R"({"added_tokens_decoder": {"9999": {"content": "<far>"}}})",
          "added_tokens_decoder.9999: 9999 is not allowed: <far> has the id 463");
  refused(R"({"added_tokens_decoder": {"x": {"content": "<far>"}}})",
          "added_tokens_decoder.x: must be an id with its token");
  refused(R"({"added_tokens_decoder": {"463": {"content": "<x>", "colour": 1}}})",
          "added_tokens_decoder.463.colour: 1 asks for what is not supported");
  refused(R"({"eos_token": 5})", "eos_token: 5 is no token");
  refused(R"({"additional_special_tokens": "<x>"})", "additional_special_tokens: ");
  refused(R"({"fix_mistral_regex": true})", "fix_mistral_regex: true is not supported");
  refused(R"({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]})",
          "fast_tokenizer_files: \"tokenizer.4.0.0.json\" is not supported");
}

}  // namespace
}  // namespace zeroplan
