// Records as tokens of a model, and what of them counts in the loss.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/text/documents/compressed_files.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/documents/token_cache.h"
#include "text/documents/token_text.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}";
constexpr const char* kChats =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})"
    "\n"
    R"({"messages": [{"role": "user", "content": "Bye"}]})"
    "\n";

const TextChoices kAll = {.train_on_all = true};

class Model : public TokenizerFolder {
 public:
  Model() : Model(kTemplate) {}
  explicit Model(const std::string& chat_template) {
    fs::create_directory(path("model"));
    fs::copy_file(TokenizerFixture("qwen2"), path("model/tokenizer.json"));
    Write("model/tokenizer_config.json",
          R"({"eos_token": "<|endoftext|>", "chat_template": ")" + chat_template + "\"}");
  }
  // `text` in a file of that name, as tokens, shown with what counts.
  std::string Tokens(const std::string& name, const std::string& text,
                     const TextChoices& choices = {}) const {
    Write(name, text);
    const Tokenizer tokenizer = Tokenizer::FromFile(path("model"));
    TokenizeOptions options;
    options.model = path("model");
    options.end_of_text = [&] { return *EndOfText(path("model"), tokenizer); };
    options.choices = choices;
    const std::vector<fs::path> files = {path(name)};
    done = TokenizeFiles(tokenizer, files, options, path("out.bin"));
    return TokensAsText(tokenizer, path("out.bin"), {0, 1'000'000, true});
  }
  std::string Refused(const std::string& name, const std::string& text,
                      const TextChoices& choices = {}) const {
    fs::remove(path("out.bin"));
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { Tokens(name, text, choices); });
    CHECK_FALSE(fs::exists(path("out.bin")));
    return message;
  }
  mutable TokenizedFiles done;
};

TEST_CASE("conversations: what the assistant says counts, or all") {
  const Model model;
  CHECK(model.Tokens("a.jsonl", kChats) ==
        "-- document 1, token 0 --\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "[[Yo<|im_end|>]]\n\n-- document 2, token 21 --\n<|im_start|>user\nBye<|im_end|>\n");
  CHECK(model.done.documents == 2);
  CHECK(model.done.uncounted == 1);
  CHECK(model.done.counted == 3);
  CHECK(Has(Summary(model.done), "(3 count in the loss), 2 documents (1 without"));
  CHECK(model.Tokens("a.jsonl.gz", Gzip(kChats), kAll) ==
        "-- document 1, token 0 --\n[[<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "Yo<|im_end|>\n]]\n-- document 2, token 21 --\n[[<|im_start|>user\nBye<|im_end|>\n]]");
  CHECK(model.done.uncounted == 0);
}

TEST_CASE("conversations: of a prompt and its completion the completion counts") {
  const Model model;
  CHECK(model.Tokens("a.jsonl", R"({"prompt": "Say: ", "completion": "the 1"})") ==
        "-- document 1, token 0 --\nSay:[[ the 1<|endoftext|>]]");
  CHECK(model.Tokens("a.jsonl", R"({"prompt": "Say:", "completion": " x<|endoftext|>"})") ==
        "-- document 1, token 0 --\nSay:[[ x<|endoftext|>]]");
  CHECK(
      model.Tokens(
          "a.jsonl",
          R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
          R"( {"role": "user", "content": "c"}],)"
          R"( "completion": [{"role": "assistant", "content": "d"}]})") ==
      "-- document 1, token 0 --\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
      "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[[d<|im_end|>]]\n");
}

TEST_CASE("conversations: texts count as a whole and end once") {
  const Model model;
  CHECK(model.Tokens("a.jsonl",
                     "{\"text\": \"a b\"}\n{\"text\": \"\"}\n"
                     "{\"text\": \"c<|endoftext|>\"}") ==
        "-- document 1, token 0 --\n[[a b<|endoftext|>]]\n-- document 2, token 3 --\n"
        "[[c<|endoftext|>]]");
  CHECK(model.Tokens("a.jsonl", R"({"body": "x", "text": 4})", {{{"text", "body"}}}) ==
        "-- document 1, token 0 --\n[[x<|endoftext|>]]");
}

TEST_CASE("conversations: what cannot be trained on is refused with its line") {
  const Model model;
  CHECK(Has(model.Refused("a.jsonl", std::string(kChats) +
                                         R"({"messages": [{"role": "tool", "content": ""}]})"),
            "a.jsonl:3: the chat template of "));
  CHECK(Has(model.Refused("a.jsonl", std::string(kChats) + R"({"text": "a"})"),
            "a.jsonl:3: messages is missing"));
  CHECK(Has(model.Refused("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})"),
            "no token counts in the loss"));
  CHECK(Has(model.Refused("a.jsonl", R"({"messages": [{"role": "user", "content": "a"},)"
                                     R"( {"role": "assistant", "content": "b", "train": false}]})"),
            "no assistant's message and no completion, or all are marked \"train\": false"));
  const Model other("{% extends 'x' %}");
  CHECK(Has(other.Refused("a.jsonl", kChats), "chat template, line 1: the tag extends"));
  fs::remove(other.path("model/tokenizer_config.json"));
  const std::string none = other.Refused("a.jsonl", kChats);
  CHECK(Has(none, "a.jsonl:1: a conversation, and "));
  CHECK(Has(none, "has no chat template"));
}

TEST_CASE("conversations: a template that cannot take the first record says so before the rest") {
  const Model model;
  CHECK(Has(model.Refused("a.json", R"([{"messages": [{"role": "tool", "content": ""}]}, {"te)"),
            "a.json:1: the chat template of "));
}

TEST_CASE("conversations: records that cannot be read are left out, so many as are allowed") {
  const Model model;
  const std::string lines = std::string(R"({"text": "a"})") + "\n{\"text\": \n" +
                            R"({"text": "b"})" + "\n" + R"({"text": 5})" + "\n";
  TextChoices choices;
  choices.skip_bad = 2;
  CHECK(model.Tokens("a.jsonl", lines, choices) ==
        "-- document 1, token 0 --\n[[a<|endoftext|>]]\n-- document 2, token 2 --\n"
        "[[b<|endoftext|>]]");
  CHECK(model.done.skipped == 2);
  choices.skip_bad = 1;
  const std::string one = model.Refused("a.jsonl", lines, choices);
  CHECK(Has(one, "a.jsonl:4: text: is number"));
  CHECK(Has(one, "1 record was left out before it"));
  CHECK(Has(model.Refused("a.jsonl", lines), "⟦skip_bad⟧ leaves so many records out"));
  choices.skip_bad = 5;
  CHECK(model.Tokens("a.csv", "text,n\na,1\nb\nc,2\n", choices) ==
        "-- document 1, token 0 --\n[[a<|endoftext|>]]\n-- document 2, token 2 --\n"
        "[[c<|endoftext|>]]");
  // What is no record is not left out.
  CHECK(Has(model.Refused("b.png", "x", choices), "an image"));
  CHECK(Has(model.Refused("a.json", "[{\"text\": \"a\"}, {\"te", choices), "does not end"));
}

TEST_CASE("conversations: instructions and questions, with a chat template and without") {
  Model model;
  const std::string task = R"({"instruction": "add", "input": "1+1", "output": "2"})";
  CHECK(model.Tokens("a.jsonl", task) ==
        "-- document 1, token 0 --\n<|im_start|>user\nadd\n1+1<|im_end|>\n<|im_start|>assistant\n"
        "[[2<|im_end|>]]\n");
  CHECK(FirstDocument(Tokenizer::FromFile(model.path("model")), model.path("out.bin")) ==
        "<|im_start|>user\nadd\n1+1<|im_end|>\n<|im_start|>assistant\n[[2<|im_end|>]]\n");
  CHECK(Has(model.Tokens("b.csv", "question,answer\n1+1,2\n"), "assistant\n[[2<|im_end|>]]"));
  fs::remove(model.path("model/tokenizer_config.json"));
  model.Write("model/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  CHECK(Has(model.Tokens("a.jsonl", task), "### Response:\n[[2<|endoftext|>]]"));
  CHECK(Has(model.Refused("b.csv", "question,answer\n1+1,2\n"), "say with ⟦map⟧ which members"));
  TextChoices choices;
  choices.names = {{"prompt", "question"}, {"completion", "answer"}};
  CHECK(model.Tokens("b.csv", "question,answer\n1+1,2\n", choices) ==
        "-- document 1, token 0 --\n1+1[[2<|endoftext|>]]");
}

TEST_CASE("conversations: messages that are marked so are read and not learned") {
  const Model model;
  const std::string shown = model.Tokens(
      "a.jsonl",
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},)"
      R"( {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}],)"
      R"( "loss_mask": [0, 0, 0, 1]})"
      "\n"
      R"({"conversations": [{"role": "user", "content": "a"}, {"role": "assistant",)"
      R"( "content": "b", "loss": false}]})");
  CHECK(shown ==
        "-- document 1, token 0 --\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[[d<|im_end|>]]\n\n"
        "-- document 2, token 38 --\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "b<|im_end|>\n");
}

TEST_CASE("conversations: what the template prints nothing of, and members without a use") {
  const Model model(
      "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}:{{ m.content }}{{ m.thinking }}"
      "{% endif %}{% endfor %}");
  const Tokenizer tokenizer = Tokenizer::FromFile(model.path("model"));
  const auto chat = ChatTemplate::FromFolder(model.path("model"), tokenizer);
  const DocumentEncoder encoder(tokenizer, {}, chat, {});
  const auto encode = [&](const std::string& line) {
    RawDocument document;
    document.where = "a.jsonl:1";
    document.bytes = line;
    document.format = RecognizeRecord(line, "a.jsonl:1", {});
    return encoder.Encode(document);
  };
  const EncodedDocument encoded =
      encode(R"({"id": 5, "tools": [{}], "chat_template_kwargs": {"mood": 1}, "messages": [)"
             R"({"role": "user", "content": "a", "time": 3}, {"role": "tool", "content": "b"},)"
             R"( {"role": "assistant", "content": " ", "reasoning": "c", "tool_calls": [{}]},)"
             R"( {"role": "tool", "content": " "}]})");
  CHECK(encoded.unused == std::vector<std::string>{"id"});
  CHECK(encoded.unprinted == std::vector<std::string>{"tools", "chat_template_kwargs.mood",
                                                      "messages[].time", "messages[].tool_calls",
                                                      "contents of the role tool"});
  const EncodedDocument whole =
      encode(R"({"messages": [{"role": "user", "content": "a"}], "documents": []})");
  CHECK(whole.unused.empty());
  CHECK(whole.unprinted.empty());
}

TEST_CASE("conversations: a template that prints whole messages prints all of their members") {
  const Model model(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m | tojson }}{% else %}<|im_start|>"
      "{{ m.content }}<|im_end|>{% endif %}{% endfor %}");
  const Tokenizer tokenizer = Tokenizer::FromFile(model.path("model"));
  const auto chat = ChatTemplate::FromFolder(model.path("model"), tokenizer);
  const DocumentEncoder encoder(tokenizer, {}, chat, {});
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a b", "time": 3, "mood": 1},)"
      R"( {"role": "assistant", "content": "c", "mood": 2, "score": 3}]})";
  RawDocument document;
  document.where = "a.jsonl:1";
  document.bytes = line;
  document.format = RecognizeRecord(line, "a.jsonl:1", {});
  // mood of the user is printed.
  CHECK(encoder.Encode(document).unprinted == std::vector<std::string>{"messages[].score"});
}

TEST_CASE("conversations: arguments of calls are printed once as JSON, with all digits") {
  const std::string call =
      R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",)"
      R"( "arguments": )";
  const std::string digits = "123456789012345678901";
  const Model as_json(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | "
      "tojson }}{% endfor %}<|im_end|>{% endfor %}");
  const std::string object = as_json.Tokens("a.jsonl", call + "{\"id\": " + digits + "}}}]}]}");
  CHECK(Has(object, "{\"id\": " + digits + "}"));
  CHECK(as_json.Tokens("a.jsonl", call + R"("{\"id\":)" + digits + R"(}"}}]}]})") == object);
  // A template that prints a text as it is gets it as it is.
  const Model as_given(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% if c.function.arguments "
      "is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif "
      "%}{% endfor %}<|im_end|>{% endfor %}");
  CHECK(Has(as_given.Tokens("a.jsonl", call + R"("{\"id\":  1}"}}]}]})"), "{\"id\":  1}"));
}

TEST_CASE("conversations: what Alpaca's text has no place for needs a chat template") {
  Model model;
  const std::string system =
      R"({"instruction": "add", "output": "2", "system": "count", "history": []})";
  const std::string history = R"({"instruction": "add", "output": "2", "history": [["a", "b"]]})";
  CHECK(Has(model.Tokens("a.jsonl", system), "system\ncount<|im_end|>"));
  CHECK(Has(model.Tokens("a.jsonl", history), "assistant\n[[b<|im_end|>]]"));
  fs::remove(model.path("model/tokenizer_config.json"));
  model.Write("model/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  CHECK(Has(model.Refused("a.jsonl", system), "a.jsonl:1: system: needs a chat template"));
  CHECK(Has(model.Refused("a.jsonl", history), "a.jsonl:1: history: needs a chat template"));
}

TEST_CASE("conversations: records in a file that is named as text are no text") {
  const Model model;
  CHECK(Has(model.Tokens("a.jsonlines", kChats), "[[Yo<|im_end|>]]"));
  CHECK(Has(model.Refused("a.jsonl.txt", kChats),
            "a.jsonl.txt: is text by its name, and its first record is of conversations "
            "(messages); give it a name that ends in .jsonl"));
  CHECK(Has(model.Refused("b.log.gz", Gzip("\n [\n{\"text\": \"a\"}]")), "is of texts (text)"));
  for (const char* text : {"{\"a\": 1}", "{ int x; }", "[1, 2]", "{", "[a] b", "{\"text\": 1"}) {
    CAPTURE(text);
    CHECK(Has(model.Tokens("c.txt", text), text));
  }
}

TEST_CASE("conversations: a table in UTF-16 is refused, with the way out") {
  const Model model;
  for (const std::string mark : {"", "\xFF\xFE"}) {
    const std::string text = mark + std::string("t\0e\0x\0t\0\n\0a\0\n\0", 14);
    CHECK(Has(model.Refused("a.csv", text), "iconv -f UTF-16 -t UTF-8"));
  }
}

TEST_CASE("conversations: kept tokens are those of the choices and the template") {
  const Model model;
  model.Write("a.jsonl", kChats);
  const std::vector<std::string> data = {model.path("a.jsonl")};
  const auto kept = [&](const TextChoices& choices) {
    return DataForModel({data, model.path("model"), 50257, model.path("cache"), 1, choices});
  };
  const std::vector<std::string> first = kept({});
  CHECK(kept({}) == first);
  const std::vector<std::string> all = kept(kAll);
  CHECK(all != first);
  model.Write("model/chat_template.jinja", "{{ messages[0].content }}{{ messages[-1].content }}");
  CHECK(kept(kAll) != all);
  CHECK(Has(ErrorOf(ExitCode::kUsage,
                    [&] { DataForModel({first, model.path("model"), 50257, "", 1, kAll}); }),
            "⟦train_on⟧: there are no records"));
  model.Write("b.txt.gz", Gzip("text"));
  const std::vector<std::string> bytes = {model.path("b.txt.gz")};
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { DataForModel({bytes, "", 50257, "", 1}); }),
            "its bytes are no text"));
}

}  // namespace
}  // namespace zeroplan
