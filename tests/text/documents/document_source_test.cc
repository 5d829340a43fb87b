#include "text/documents/document_source.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/scoped_env.h"
#include "tests/text/documents/compressed_files.h"
#include "tests/text/tokenizer/tokenizer_folder.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> All(const std::vector<fs::path>& files) {
  DocumentSource source(files, {});
  std::vector<std::string> all;
  for (RawDocument document; source.Next(&document);) {
    all.push_back(fs::path(document.where).filename().string() + " " + document.bytes);
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
  folder.Write("H.CSV", "text\nd\n");
  folder.Write("I.JSONL.GZ", Gzip(lines));
  const auto path = [&](const char* name) { return fs::path(folder.path(name)); };
  CHECK(All({path("H.CSV"), path("I.JSONL.GZ")}) ==
        std::vector<std::string>{"H.CSV:2 {\"text\":\"d\"}", "I.JSONL.GZ:1 {\"text\": \"a\"}",
                                 "I.JSONL.GZ:4 {\"text\": \"b\"}"});
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
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { All({folder.path("none.jsonl")}); }), "cannot open"));
}

// tests/fixtures/chats.parquet: five conversations in row groups of two, as pyarrow writes them,
// and a column of numbers.
TEST_CASE("document source: tables, where Python has pyarrow; else the way out") {
  const std::string table = SourcePath("tests/fixtures/chats.parquet");
  if (std::system("${ZEROPLAN_PYTHON:-python3} -c 'import pyarrow.parquet' 2> /dev/null") == 0) {
    const std::vector<std::string> rows = All({table});
    REQUIRE(rows.size() == 5);
    CHECK(rows[0].ends_with(R"("content": "Answer 0"}], "id": null})"));
    CHECK(
        rows[4] ==
        "chats.parquet: row 5 {\"messages\": [{\"role\": \"user\", \"content\": \"Question 4 é\"}, "
        "{\"role\": \"assistant\", \"content\": \"Answer 4\"}]}");
    const TokenizerFolder folder;
    folder.Write("e.parquet", "PAR1, and no more");
    const std::string damaged = ErrorOf(ExitCode::kUsage, [&] { All({folder.path("e.parquet")}); });
    CHECK(Has(damaged, "e.parquet: cannot be read as a table: "));
  }
  const ScopedEnv no_python("ZEROPLAN_PYTHON", "no-such-python");
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { All({table}); });
  CHECK(
      Has(message, "chats.parquet: a table, which no-such-python reads with the package pyarrow"));
  CHECK(Has(message, "pip install pyarrow"));
}

// What a Python says over the pipe, whatever it reads with.
TEST_CASE("document source: rows that a Python hands over") {
  const TokenizerFolder folder;
  folder.Write("t.arrow", "");
  const auto rows = [&](const std::string& says) {
    folder.Write("python", "#!/bin/sh\n" + says + "\n");
    fs::permissions(folder.path("python"), fs::perms::owner_all);
    const ScopedEnv python("ZEROPLAN_PYTHON", folder.path("python"));
    return All({folder.path("t.arrow")});
  };
  CHECK(rows(R"(echo 'N["text", "id"]'; echo 'R{"text": "a"}'; echo 'R{"text": "b"}')") ==
        std::vector<std::string>{R"(t.arrow: row 1 {"text": "a", "id": null})",
                                 R"(t.arrow: row 2 {"text": "b"})"});
  const auto refused = [&](const std::string& says) {
    return ErrorOf(ExitCode::kUsage, [&] { rows(says); });
  };
  CHECK(Has(refused("echo 'N[]'; echo 'Eno table'"), "cannot be read as a table: no table"));
  CHECK(Has(refused("echo 'Epyarrow: no module'"), "pip install pyarrow"));
  CHECK(Has(refused(R"(echo 'N["text"]'; echo 'R{"text": "a"}'; kill -9 $$)"), "ended before it"));
}

TEST_CASE("document source: JSON over several lines, and lists") {
  const TokenizerFolder folder;
  const auto all = [&](const std::string& text) {
    folder.Write("f.json", text);
    return All({folder.path("f.json")});
  };
  const std::vector<std::string> two = {R"(f.json:1 {"text": "a,]}"})",
                                        R"(f.json:2 {"text": "\""})"};
  CHECK(all("[{\"text\": \"a,]}\"},\n{\"text\": \"\\\"\"}\n]\n") == two);
  CHECK(all("{\"text\": \"a,]}\"}\n{\"text\": \"\\\"\"}") == two);
  CHECK(all("\n{\n \"text\": [1, {}]\n}\n{\n \"text\": 2\n}\n").size() == 2);
  CHECK(all("[]").empty());
  folder.Write("g.jsonl", R"([{"text": "a"}, {"text": "b"}])");
  CHECK(All({folder.path("g.jsonl")}).size() == 2);
  const auto refused = [&](const std::string& text) {
    return ErrorOf(ExitCode::kUsage, [&] { all(text); });
  };
  CHECK(Has(refused("[{\"text\": 1}\n{\"text\": 2}]"), "f.json:2: a comma is missing"));
  CHECK(Has(refused("[{\"text\": 1},\n"), "does not end"));
  CHECK(Has(refused("[{\"text\": 1}] x"), "more behind the list"));
  CHECK(Has(refused("{\n\"text\": \"a"), "f.json:1: the record that begins here does not end"));
  CHECK(Has(refused("[1, 2]"), "f.json:1: is a JSON number, no object"));
}

TEST_CASE("document source: rows of CSV and TSV") {
  const TokenizerFolder folder;
  const auto all = [&](const std::string& text, const char* name = "f.csv") {
    folder.Write(name, text);
    return All({folder.path(name)});
  };
  const std::vector<std::string> rows = {R"(f.csv:2 {"prompt":"a, \"b\"\nc","completion":""})",
                                         R"(f.csv:4 {"prompt":"é","completion":"d"})"};
  CHECK(all("\xEF\xBB\xBFprompt,completion\r\n\"a, \"\"b\"\"\nc\",\r\né,d\r\n\r\n") == rows);
  CHECK(all("prompt;completion\n\"a, \"\"b\"\"\nc\";\né;d") == rows);
  CHECK(all("prompt\tcompletion\na, b\tc\n", "f.tsv") ==
        std::vector<std::string>{R"(f.tsv:2 {"prompt":"a, b","completion":"c"})"});
  const auto refused = [&](const std::string& text) {
    return ErrorOf(ExitCode::kUsage, [&] { all(text); });
  };
  CHECK(Has(refused(""), "f.csv:1: the first row, which names the columns, is missing"));
  CHECK(Has(refused("text,text\n"), "two are text"));
  CHECK(Has(refused("text,b\n1,2,3\n"), "f.csv:2: has 3 fields, where the first row names 2"));
  CHECK(Has(refused("text\n\"a\nb"), "f.csv:2: a quote is opened"));
  CHECK(Has(refused("text\n\"a\"b\n"), "behind a closing quote"));
}

TEST_CASE("records: what a line holds, as the first one says") {
  using Kind = RecordFormat::Kind;
  const auto kind = [](const char* line, const RecordNames& names = {}) {
    return RecognizeRecord(line, "f:1", names).kind;
  };
  CHECK(kind(R"({"text": "a", "id": 1})") == Kind::kText);
  CHECK(kind(R"({"prompt": "a", "completion": "b"})") == Kind::kCompletion);
  CHECK(kind(R"({"prompt": [], "completion": []})") == Kind::kChatCompletion);
  CHECK(kind(R"({"prompt": "a", "prompt_id": "x", "messages": []})") == Kind::kChat);
  CHECK(kind(R"({"conversations": [], "id": 3})") == Kind::kChat);
  CHECK(kind(R"({"instruction": "a", "input": "", "output": "b"})") == Kind::kInstruction);
  CHECK(kind(R"({"question": "a", "answer": "b"})") == Kind::kQuestion);
  CHECK(kind(R"({"q": "a", "a": "b"})", {{"prompt", "q"}, {"completion", "a"}}) ==
        Kind::kCompletion);
  CHECK(kind(R"({"q": [], "a": []})", {{"prompt", "q"}, {"completion", "a"}}) ==
        Kind::kChatCompletion);
  CHECK(kind(R"({"instruction": "a", "output": "b", "text": "c"})",
             {{"instruction", "instruction"}, {"output", "output"}}) == Kind::kInstruction);
  CHECK(RecognizeRecord(R"({"body": "a", "text": 5})", "f:1", {{"text", "body"}}).NameOf("text") ==
        "body");

  const auto refused = [](const std::string& line, const RecordNames& names = {}) {
    const std::string message =
        ErrorOf(ExitCode::kUsage, [&] { RecognizeRecord(line, "f:1", names); });
    CHECK(message.starts_with("f:1: "));
    return message;
  };
  CHECK(Has(refused(R"({"text": "a")"), "is not one whole JSON value: column 13"));
  CHECK(Has(refused("text: a"), "is not one whole JSON value"));
  CHECK(Has(refused(R"({"text": "a"} {"text": "b"})"), "is not one whole JSON value"));
  CHECK(Has(refused("{\"text\": \"\xff\"}"), "UTF-8"));
  CHECK(Has(refused("5"), "no object"));
  CHECK(Has(refused(R"({"dialog": [], "id": 3})"), "it has dialog, id"));
  CHECK(Has(refused(R"({"text": "a", "messages": []})"), "has messages, and also text: which"));
  CHECK(Has(refused(R"({"instruction": "a", "output": "b", "text": "c"})"),
            "as instruction=instruction,output=output"));
  CHECK(Has(refused(R"({"text": "a"})", {{"text", "body"}}), "has no member body"));

  CheckRecordNames({{"question", "q"}, {"answer", "a"}, {"system", "s"}});
  for (const RecordNames& wrong : {RecordNames{{"prompt", "q"}}, RecordNames{{"body", "b"}},
                                   RecordNames{{"text", "b"}, {"messages", "m"}}}) {
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { CheckRecordNames(wrong); }), "make no record"));
  }
}

TEST_CASE("records: an object with very many members is refused before it takes long") {
  std::string line = "{";
  for (int i = 0; i < 10'001; ++i) line += "\"k" + std::to_string(i) + "\": 0, ";
  const std::string message =
      ErrorOf(ExitCode::kUsage, [&] { RecognizeRecord(line + "\"text\": \"a\"}", "f:1", {}); });
  CHECK(Has(message, "f:1: an object with more than 10000 members"));
}

TEST_CASE("records: prompts, completions and messages") {
  const auto read = [](const char* line) {
    return ReadRecord(line, RecognizeRecord(line, "f:2", {}), "f:2");
  };
  const Record pair = read(R"({"prompt": "a\u00e9", "completion": "b"})");
  CHECK(pair.text == "aé");
  CHECK(pair.completion == "b");
  const Record chat = read(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
          {"type": "text", "text": "b"}], "name": "Ada"},
          {"content": "c", "role": "assistant", "tool_calls": null, "weight": 0},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}],
          "system": "s", "tools": "[{\"name\": \"f\"}]",
          "chat_template_kwargs": {"enable_thinking": false}})");
  const std::vector<ChatMessage>& messages = chat.chat.messages;
  REQUIRE(messages.size() == 4);
  CHECK(messages[0].role == "system");
  CHECK(messages[1].content == "ab");
  CHECK(messages[1].others.at(0).second.text()->bytes == "Ada");
  CHECK(messages[2].role == "assistant");
  CHECK_FALSE(messages[2].counts);
  CHECK_FALSE(messages[3].content.has_value());
  CHECK(messages[3].others.at(0).first == "tool_calls");
  CHECK(chat.chat.tools.list()->size() == 1);
  CHECK(chat.chat.variables.Find("enable_thinking") != nullptr);
  CHECK(chat.chat.first_counted == 0);
  const Record both = read(
      R"({"prompt": [{"role": "user", "content": "a"}],
          "completion": [{"role": "assistant", "content": "b"}]})");
  CHECK(both.chat.messages.size() == 2);
  CHECK(both.chat.first_counted == 1);

  const Record said = read(
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
          {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
          {"from": "observation", "value": "1"}, {"from": "gpt", "value": "b"}]})");
  std::string roles;
  for (const ChatMessage& message : said.chat.messages) roles += message.role + " ";
  CHECK(roles == "system user assistant tool assistant ");
  CHECK(said.chat.messages[2].others.at(0).first == "tool_calls");

  const Record task = read(
      R"({"instruction": "do", "input": "it", "output": "done", "system": "s",
          "history": [["q", "a"]]})");
  CHECK(task.chat.messages.size() == 5);
  CHECK(task.chat.messages[3].content == "do\nit");
  CHECK(task.text.ends_with("### Instruction:\ndo\n\n### Input:\nit\n\n### Response:\n"));
  CHECK(task.completion == "done");
  CHECK(read(R"({"instruction": "do", "output": "done"})").chat.messages[0].content == "do");
  const Record asked = read(R"({"question": "a", "answer": "b"})");
  CHECK(asked.chat.messages.size() == 2);
}

TEST_CASE("records: a line of another form names its place and what is wrong") {
  const RecordFormat text = {RecordFormat::Kind::kText};
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
  CHECK(Has(message(R"({"from": "me", "value": "a"})"), "messages[1].from: me is not known"));
  CHECK(Has(message(R"({"content": "a"})"), "messages[1].role: is missing"));
  CHECK(Has(message(R"({"role": "assistant", "content": "a", "weight": 0.5})"),
            "messages[1].weight: is 0.5, must be 1 or 0"));
  CHECK(Has(message(R"({"role": "user", "content": "a", "train": true})"),
            "only what the assistant says can count"));
  CHECK(Has(message(R"({"role": "user", "content": null})"), "messages[1].content: is missing"));
  CHECK(Has(message(R"({"role": 1, "content": "a"})"), "messages[1].role: is number"));
  CHECK(Has(message(R"({"role": "user", "content": [{"type": "image"}]})"),
            "messages[1].content[0]: only parts of the form"));
  CHECK(Has(refused(chat, R"({"messages": [{"role": "user", "content": "a"}], "tools": "x"})"),
            "tools: is a text that is no JSON"));
  CHECK(Has(refused(chat, R"({"messages": [{"role": "system", "content": "a"}], "system": "b"})"),
            "the first message is the system's already"));
}

}  // namespace
}  // namespace zeroplan
