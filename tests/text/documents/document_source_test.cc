#include "text/documents/document_source.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/text/documents/compressed_files.h"
#include "tests/text/tokenizer/tokenizer_folder.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> All(const std::vector<fs::path>& files) {
  DocumentSource source(files, "");
  std::vector<std::string> all;
  for (RawDocument document; source.Next(&document);) {
    all.push_back(fs::path(document.where).filename().string() + " " +
                  std::string(document.bytes()));
    CHECK(source.position() <= source.size());
  }
  CHECK(source.position() == source.size());
  return all;
}

TEST_CASE("document source: texts and records, compressed or not") {
  const TokenizerFolder folder;
  const std::string lines = "\xEF\xBB\xBF{\"text\": \"a\"}\r\n\n  \n{\"text\": \"b\"}";
  folder.Write("a.txt", "one\ntwo\n");
  folder.Write("empty.txt", "");
  folder.Write("b.md.gz", Gzip("three"));
  folder.Write("c.zst", Zstd("four"));
  folder.Write("d.jsonl", lines);
  folder.Write("e.json.gz", Gzip(lines) + Gzip("\n{\"text\": \"c\"}\n") + std::string(100, '\0'));
  folder.Write("f.ndjson.zst", Zstd(lines) + Zstd(""));
  folder.Write("g.jsonl", "");
  const auto path = [&](const char* name) { return fs::path(folder.path(name)); };
  CHECK(All({path("a.txt"), path("empty.txt"), path("b.md.gz"), path("c.zst"), path("d.jsonl"),
             path("e.json.gz"), path("f.ndjson.zst"), path("g.jsonl")}) ==
        std::vector<std::string>{
            "a.txt one\ntwo\n", "b.md.gz three", "c.zst four", "d.jsonl:1 {\"text\": \"a\"}",
            "d.jsonl:4 {\"text\": \"b\"}", "e.json.gz:1 {\"text\": \"a\"}",
            "e.json.gz:4 {\"text\": \"b\"}", "e.json.gz:5 {\"text\": \"c\"}",
            "f.ndjson.zst:1 {\"text\": \"a\"}", "f.ndjson.zst:4 {\"text\": \"b\"}"});
}

TEST_CASE("document source: what is larger than any block comes whole") {
  const TokenizerFolder folder;
  std::string lines, expected;
  for (int i = 0; i < 9; ++i) {
    const std::string line =
        "{\"text\": \"" + std::string(700'000, static_cast<char>('a' + i)) + "\"}";
    expected += "f:" + std::to_string(i + 1) + " " + line;
    lines += line + "\n";
  }
  for (const bool zstd : {false, true}) {
    const std::string name = zstd ? "f.jsonl.zst" : "f.jsonl.gz";
    folder.Write(name, zstd ? Zstd(lines) : Gzip(lines));
    std::string all;
    for (const std::string& document : All({folder.path(name)})) {
      all += "f" + document.substr(name.size());
    }
    CHECK((all == expected));
  }
}

TEST_CASE("document source: what cannot be read is refused by name") {
  const TokenizerFolder folder;
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    folder.Write(name, bytes);
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { All({folder.path(name)}); });
    CHECK(Has(message, folder.path(name)));
    return message;
  };
  const std::string text = "some text that is long enough to be compressed, compressed, compressed";
  CHECK(Has(refused("a.gz", Gzip(text).substr(0, 30)), "cut short"));
  CHECK(Has(refused("a.zst", Zstd(text).substr(0, 30)), "cut short"));
  CHECK(Has(refused("b.gz", text), "no sound gzip file"));
  CHECK(Has(refused("b.zst", text), "no sound zstd file"));
  std::string damaged = Gzip(text);
  damaged[damaged.size() - 6] ^= 1;  // its checksum
  CHECK(Has(refused("c.jsonl.gz", damaged), "no sound gzip file"));
  CHECK(Has(refused("c.gz", Gzip(text) + text), "no sound gzip file"));
  CHECK(Has(refused("d.bin.gz", Gzip(text)), "compressed token file"));
  CHECK(Has(refused("d.bin", text), "is a token file already"));
  CHECK(Has(refused("e.parquet", "PAR1"), "Parquet"));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { All({folder.path("none.jsonl")}); }), "cannot open"));
}

// tests/fixtures/chats.parquet: five conversations in row groups of two, as pyarrow writes them,
// and a column of numbers.
TEST_CASE("document source: tables, where there is Arrow; else the way out") {
  const std::string table = SourcePath("tests/fixtures/chats.parquet");
#ifdef ZEROPLAN_WITH_ARROW
  const std::vector<std::string> rows = All({table});
  REQUIRE(rows.size() == 5);
  CHECK(rows[4] ==
        "chats.parquet: row 5 {\"messages\":[{\"role\":\"user\",\"content\":\"Question 4 é\"},"
        "{\"role\":\"assistant\",\"content\":\"Answer 4\"}],\"id\":null}");
#else
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { All({table}); });
  CHECK(Has(message, "chats.parquet: Parquet needs Arrow"));
  CHECK(Has(message, "to_json"));
#endif
}

TEST_CASE("records: what a line holds, as the first one says") {
  using Kind = RecordFormat::Kind;
  const auto kind = [](const char* line) { return RecognizeRecord(line, "f:1", "").kind; };
  CHECK(kind(R"({"text": "a", "id": 1})") == Kind::kText);
  CHECK(kind(R"({"prompt": "a", "completion": "b"})") == Kind::kCompletion);
  CHECK(kind(R"({"prompt": [], "completion": []})") == Kind::kChatCompletion);
  CHECK(kind(R"({"prompt": "a", "prompt_id": "x", "messages": []})") == Kind::kChat);
  CHECK(RecognizeRecord(R"({"body": "a", "text": 5})", "f:1", "body").field == "body");

  const auto refused = [](const char* line, const char* field = "") {
    const std::string message =
        ErrorOf(ExitCode::kUsage, [&] { RecognizeRecord(line, "f:1", field); });
    CHECK(message.starts_with("f:1: "));
    return message;
  };
  CHECK(Has(refused(R"({"text": "a")"), "is not one whole JSON value: column 13"));
  CHECK(Has(refused("text: a"), "is not one whole JSON value"));
  CHECK(Has(refused(R"({"text": "a"} {"text": "b"})"), "is not one whole JSON value"));
  CHECK(Has(refused("{\"text\": \"\xff\"}"), "UTF-8"));
  CHECK(Has(refused(R"([{"text": "a"}])"), "jq -c '.[]'"));
  CHECK(Has(refused("5"), "no object"));
  CHECK(Has(refused(R"({"conversations": [], "id": 3})"), "it has conversations, id"));
  CHECK(Has(refused(R"({"text": "a", "messages": []})"), "messages, text: which is meant?"));
  CHECK(Has(refused(R"({"text": "a"})", "body"), "has no member body"));
}

TEST_CASE("records: prompts, completions and messages") {
  const auto read = [](const char* line) {
    return ReadRecord(line, RecognizeRecord(line, "f:2", ""), "f:2");
  };
  const Record pair = read(R"({"prompt": "a\u00e9", "completion": "b"})");
  CHECK(pair.text == "aé");
  CHECK(pair.completion == "b");
  const Record chat = read(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
          {"type": "text", "text": "b"}], "name": "Ada"},
          {"content": "c", "role": "assistant", "tool_calls": null}]})");
  REQUIRE(chat.messages.size() == 2);
  CHECK(chat.messages[0].content == "ab");
  CHECK(chat.messages[0].others.at(0).second == "Ada");
  CHECK(chat.messages[1].role == "assistant");
  CHECK(chat.first_counted == 0);
  const Record both = read(
      R"({"prompt": [{"role": "user", "content": "a"}],
          "completion": [{"role": "assistant", "content": "b"}]})");
  CHECK(both.messages.size() == 2);
  CHECK(both.first_counted == 1);
}

TEST_CASE("records: a line of another form names its place and what is wrong") {
  const RecordFormat text = {RecordFormat::Kind::kText, "text"};
  const RecordFormat chat = {RecordFormat::Kind::kChat};
  const auto refused = [](const RecordFormat& format, const std::string& line) {
    const std::string message =
        ErrorOf(ExitCode::kUsage, [&] { ReadRecord(line, format, "f.jsonl:3"); });
    CHECK(message.starts_with("f.jsonl:3: "));
    return message;
  };
  CHECK(Has(refused(text, R"({"messages": []})"), "text is missing"));
  CHECK(Has(refused(text, R"({"text": 5})"), "text: is number"));
  CHECK(Has(refused(text, R"({"text": null})"), "text: is null"));
  CHECK(Has(refused(chat, R"({"text": "a"})"), "messages is missing"));
  CHECK(Has(refused(chat, R"({"messages": []})"), "at least one"));
  const auto message = [&](const std::string& inner) {
    return refused(chat,
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, " + inner + "]}");
  };
  CHECK(Has(message("5"), "messages[1]: is number"));
  CHECK(Has(message(R"({"from": "gpt", "value": "a"})"), "messages[1].role: is missing"));
  CHECK(Has(message(R"({"role": "user", "content": null})"), "messages[1].content: is missing"));
  CHECK(Has(message(R"({"role": 1, "content": "a"})"), "messages[1].role: is number"));
  CHECK(Has(message(R"({"role": "user", "content": [{"type": "image"}]})"),
            "messages[1].content[0]: only parts of the form"));
  CHECK(Has(message(R"({"role": "a", "content": "b", "tool_calls": [{}]})"),
            "messages[1].tool_calls: array cannot be trained on"));
  CHECK(Has(refused(chat, R"({"messages": [{"role": "user", "content": "a"}], "tools": [1]})"),
            "tools: is not supported"));
}

}  // namespace
}  // namespace zeroplan
