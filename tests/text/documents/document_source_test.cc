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
    // The column that holds what is no text is named.
    const std::string make =
        "${ZEROPLAN_PYTHON:-python3} -c \"import pyarrow as a, pyarrow.parquet as p; p.write_table("
        "a.table({'text': ['a'], 'image': [{'bytes': b'x', 'path': 'y'}]}), '" +
        folder.path("f.parquet") + "')\"";
    REQUIRE(std::system(make.c_str()) == 0);
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { All({folder.path("f.parquet")}); }),
              "f.parquet: cannot be read as a table: the column image holds bytes, no text"));
    const std::string damaged = ErrorOf(ExitCode::kUsage, [&] { All({folder.path("e.parquet")}); });
    CHECK(Has(damaged, "e.parquet: cannot be read as a table: "));
  }
  const ScopedEnv no_python("ZEROPLAN_PYTHON", "no-such-python");
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { All({table}); });
  CHECK(
      Has(message, "chats.parquet: a table, which no-such-python reads with the package pyarrow"));
  CHECK(Has(message, "pip install pyarrow"));
  CHECK(Has(message,
            "cd / && python3 -c 'import datasets as d; d.load_dataset(\"parquet\", "
            "data_files=\"" +
                table + "\")[\"train\"].to_json(\"/"));
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
  CHECK(Has(refused("echo 'N[]'; echo 'Ethe column image holds bytes, no text'"),
            "cannot be read as a table: the column image holds bytes, no text"));
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

// tests/text/documents/conversations_test.cc has what becomes of files as a whole.
TEST_CASE("document source: bytes of records that are no UTF-8 are counted, or refused by file") {
  const TokenizerFolder folder;
  const auto read = [&](const std::string& name, const std::string& bytes) {
    folder.Write(name, bytes);
    DocumentSource source({folder.path(name)}, {});
    std::vector<std::pair<std::string, uint64_t>> all;
    for (RawDocument document; source.Next(&document);) {
      all.emplace_back(document.bytes, document.broken);
    }
    return all;
  };
  using Records = std::vector<std::pair<std::string, uint64_t>>;
  CHECK(read("a.csv", "text\ncaf\xe9 \x93x\x94\nb\n") ==
        Records{{"{\"text\":\"caf\uFFFD \uFFFDx\uFFFD\"}", 3}, {R"({"text":"b"})", 0}});
  CHECK(read("a.tsv", "text\tn\na\t\xff\n") == Records{{"{\"text\":\"a\",\"n\":\"\uFFFD\"}", 1}});
  CHECK(read("a.jsonl", "{\"text\": \"caf\xe9\"}\n") == Records{{"{\"text\": \"caf\uFFFD\"}", 1}});
  CHECK(read("a.json", "[{\"text\": \"caf\xe9\"}]") == Records{{"{\"text\": \"caf\uFFFD\"}", 1}});
  // Characters that stand for themselves in no JSON.
  CHECK(read("b.csv", "text,b\n\"a\x01\t\n\\\",c\n") ==
        Records{{R"({"text":"a\u0001\u0009\n\\","b":"c"})", 0}});

  std::string rows, lines;
  for (int i = 0; i < 20; ++i) {
    rows += "caf\xe9 or tea\n";
    lines += "{\"text\": \"caf\xe9 or tea\"}\n";
  }
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::string>("c.csv", "text\n" + rows), {"c.jsonl", lines}}) {
    CAPTURE(name);
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { read(name, bytes); });
    CHECK(Has(message, folder.path(name) + ": 20 of its "));
    CHECK(Has(message, "iconv -f LATIN1 -t UTF-8"));
  }
  // One of 200 bytes is none in a text of some length, and the next file begins anew.
  folder.Write("d.csv", "text\n" + rows.substr(0, 5 * 12) + std::string(2000, 'x') + "\n");
  CHECK(All({folder.path("d.csv"), folder.path("d.csv")}).size() == 12);
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

TEST_CASE("records: marks of what is not to be learned, as other trainers have them") {
  const auto counts = [](const std::string& messages, const std::string& beside = "") {
    const std::string line = "{\"messages\": [" + messages + "]" + beside + "}";
    const Record record = ReadRecord(line, RecognizeRecord(line, "f:1", {}), "f:1");
    std::string all;
    for (const ChatMessage& message : record.chat.messages) {
      all += message.counts ? '1' : '0';
      CHECK(message.others.empty());
    }
    CHECK(record.unused.empty());
    return all;
  };
  const std::string question = R"({"role": "user", "content": "q"}, )";
  const auto answer = [&](const std::string& mark) {
    return counts(question + R"({"role": "assistant", "content": "a", )" + mark + "}");
  };
  for (const char* name :
       {"train", "training", "trainable", "loss", "loss_mask", "loss_scale", "weight"}) {
    CAPTURE(name);
    const std::string mark = "\"" + std::string(name) + "\": ";
    CHECK(answer(mark + "0") == "10");
    CHECK(answer(mark + "false") == "10");
    CHECK(answer(mark + "1.0") == "11");
    CHECK(answer(mark + "true") == "11");
    CHECK(answer(mark + "null") == "11");
  }
  CHECK(answer(R"("masked": true)") == "10");
  CHECK(answer(R"("masked": false, "weight": 1)") == "11");
  CHECK(answer(R"("train_detail": [], "train": false)") == "10");
  const std::string four = question + R"({"role": "assistant", "content": "a"}, )" + question +
                           R"({"role": "assistant", "content": "b"})";
  CHECK(counts(four, R"(, "loss_mask": [0, 0, 0, 1])") == "0001");
  CHECK(counts(four, R"(, "loss_mask": [0, false, 0, true], "system": "s")") == "10001");

  const auto refused = [&](const std::string& messages, const std::string& beside = "") {
    return ErrorOf(ExitCode::kUsage, [&] { counts(messages, beside); });
  };
  const auto refused_answer = [&](const std::string& mark) {
    return refused(question + R"({"role": "assistant", "content": "a", )" + mark + "}");
  };
  CHECK(Has(refused_answer(R"("loss": 0.5)"), "f:1: messages[1].loss: is 0.5, must be true or"));
  CHECK(Has(refused_answer(R"("loss_mask": [1, 0])"), "messages[1].loss_mask: is [1,0]"));
  CHECK(Has(refused_answer(R"("masked": true, "train": true)"),
            "messages[1].train: says the opposite of another mark"));
  CHECK(Has(refused_answer(R"("train_detail": [{"begin_offset": 0, "train": false}])"),
            "messages[1].train_detail: parts of a message cannot be left out"));
  CHECK(Has(refused_answer(R"("label": false)"), "messages[1].label: parts of a message"));
  CHECK(Has(refused(R"({"role": "user", "content": "q", "loss": true})"),
            "messages[0].loss: only what the assistant says can count"));
  CHECK(Has(refused(four, R"(, "loss_mask": [0, 1])"),
            "loss_mask: must be a list of 4 numbers, 1 or 0 for each message"));
  CHECK(Has(refused(four, R"(, "loss_mask": [0, 2, 0, 1])"), "loss_mask[1]: is 2, must be 1 or 0"));
  CHECK(Has(refused(four, R"(, "loss_mask": [1, 1, 1, 1])"), "loss_mask[0]: only what the"));
  CHECK(
      Has(refused(four, R"(, "label": false)"), "label: says whether the answer is wanted (KTO)"));
  CHECK(Has(refused(four, R"(, "kto_tag": true)"), "kto_tag: says whether the answer is wanted"));
  CHECK(Has(refused(four, R"(, "train": false)"), "train: a mark of a whole record"));
  CHECK(Has(refused(four, R"(, "mask": "User")"), "mask: a mark of a whole record"));
  for (const char* line : {R"({"prompt": "a", "completion": "b", "label": "False"})",
                           R"({"instruction": "a", "output": "b", "kto_tag": false})",
                           R"({"question": "a", "answer": "b", "label": 0})"}) {
    CAPTURE(line);
    CHECK(Has(ErrorOf(ExitCode::kUsage,
                      [&] { ReadRecord(line, RecognizeRecord(line, "f:1", {}), "f:1"); }),
              ": says whether the answer is wanted (KTO)"));
  }
  CHECK(Has(refused(R"({"role": "user", "content": "q"})", R"(, "chosen": "a", "rejected": "b")"),
            "chosen: the answer to the conversation is there"));
  // Beside a text, and where it is no yes or no, it says something else.
  for (const char* line : {R"({"text": "a", "label": true, "weight": 0, "images": ["x"]})",
                           R"({"prompt": "a", "completion": "b", "label": "sports"})"}) {
    CAPTURE(line);
    CHECK(ReadRecord(line, RecognizeRecord(line, "f:1", {}), "f:1").unused.at(0) == "label");
  }
}

TEST_CASE("records: images, sound and video are refused, and what is not used is named") {
  const auto read = [](const std::string& line) {
    return ReadRecord(line, RecognizeRecord(line, "f:1", {}), "f:1");
  };
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "<image>what"}, {"role": "assistant",
          "content": "b"}], )";
  for (const char* name : {"image", "images", "video", "videos", "audio", "audios"}) {
    CAPTURE(name);
    const std::string member = "\"" + std::string(name) + "\": ";
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { read(chat + member + "[\"a.png\"]}"); }),
              "f:1: " + std::string(name) + ": zeroplan trains on text"));
    // Of a table of which some rows have images.
    CHECK(read(chat + member + "[]}").unused == std::vector<std::string>{name});
    CHECK(read(chat + member + "null}").unused == std::vector<std::string>{name});
  }
  CHECK(Has(ErrorOf(ExitCode::kUsage,
                    [&] { read(R"({"question": "a", "answer": "b", "image": {"path": "x"}})"); }),
            "f:1: image: "));
  CHECK(read(R"({"id": 7, "text": "a", "source": "b", "tools": []})").unused ==
        std::vector<std::string>{"id", "source", "tools"});
  CHECK(read(R"({"prompt": "a", "completion": "b", "tools": [1]})").unused ==
        std::vector<std::string>{"tools"});
  CHECK(read(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a",
                 "cache_control": {"type": "b"}}]}], "prompt": "c"})")
            .unused == std::vector<std::string>{"prompt", "messages[].content[].cache_control"});
}

TEST_CASE("records: calls in OpenAI's and ms-swift's forms, and arguments that are a text") {
  const auto read = [](const std::string& line) {
    Record record = ReadRecord(line, RecognizeRecord(line, "f:1", {}), "f:1");
    ReadArguments("f:1", &record.chat);
    return record;
  };
  const auto arguments = [](const ChatMessage& message, size_t call = 0) {
    CHECK(message.role == "assistant");
    const jinja::Value* function = nullptr;
    for (const auto& [name, value] : message.others) {
      if (name == "tool_calls") function = value.list()->at(call).dict()->Find("function");
    }
    REQUIRE(function != nullptr);
    return function->dict()->Find("arguments")->dict()->Find("town")->text()->bytes;
  };
  const std::string call = R"({"name": "weather", "arguments": "{\"town\": \"Rome\"}"})";
  const Record given = read(
      R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [
          {"id": "1", "type": "function", "function": )" +
      call + R"(}]},
          {"role": "tool", "tool_call_id": "1", "content": "sunny"}]})");
  CHECK(arguments(given.chat.messages.at(0)) == "Rome");
  const Record earlier =
      read(R"({"messages": [{"role": "assistant", "content": null, "function_call": )" + call +
           R"(}, {"role": "function", "name": "weather", "content": "sunny"}],
          "functions": [{"name": "weather"}]})");
  CHECK(arguments(earlier.chat.messages.at(0)) == "Rome");
  CHECK(earlier.chat.messages.at(1).role == "tool");
  CHECK(earlier.chat.tools.list()->at(0).dict()->Find("function") != nullptr);
  // None at all is a list, too, for which transformers takes the template for tools.
  const char* none = R"({"messages": [{"role": "user", "content": "a"}], "tools": []})";
  const jinja::Value tools = ReadRecord(none, RecognizeRecord(none, "f:1", {}), "f:1").chat.tools;
  REQUIRE(tools.list() != nullptr);
  CHECK(tools.list()->empty());
  CHECK(earlier.unused.empty());
  const std::string quoted = R"("{\"name\": \"weather\", \"arguments\": {\"town\": \"Rome\"}}")";
  const Record swift = read(R"({"messages": [{"role": "tool_call", "content": )" + quoted +
                            R"(}, {"role": "tool_response", "content": "sunny"}]})");
  CHECK(arguments(swift.chat.messages.at(0)) == "Rome");
  CHECK(swift.chat.messages.at(1).role == "tool");
  const Record share_gpt =
      read(R"({"conversations": [{"role": null, "from": "function_call", "value":)"
           R"( "[{\"name\": \"a\", \"arguments\": {\"town\": \"Oslo\"}},)"
           R"( {\"name\": \"b\", \"arguments\": {\"town\": \"Rome\"}}]"}]})");
  CHECK(arguments(share_gpt.chat.messages.at(0)) == "Oslo");
  CHECK(arguments(share_gpt.chat.messages.at(0), 1) == "Rome");

  const auto refused = [&](const std::string& message) {
    return ErrorOf(ExitCode::kUsage, [&] { read("{\"messages\": [" + message + "]}"); });
  };
  CHECK(Has(refused(R"({"role": "assistant", "tool_calls": [{"function": {"name": "f",
                        "arguments": "town: Rome"}}]})"),
            "f:1: message 1: tool_calls[0].function.arguments: is a text that is no JSON object"));
  CHECK(Has(refused(R"({"role": "assistant", "function_call": "weather"})"),
            "messages[0].function_call: a function_call is"));
  CHECK(Has(refused(R"({"role": "assistant", "function_call": {"name": "f"},
                        "tool_calls": [{"function": {"name": "f"}}]})"),
            "messages[0].function_call: the message has tool_calls, too"));
  CHECK(Has(refused(R"({"role": "tool_call", "content": "weather"})"),
            "messages[0].content: a function_call is"));
}

TEST_CASE("records: a member that is there twice, and what is nested without an end") {
  const auto refused = [](const std::string& line) {
    return ErrorOf(ExitCode::kUsage, [&] { RecognizeRecord(line, "f:1", {}); });
  };
  CHECK(Has(refused(R"({"text": "a", "text": "b"})"),
            "f:1: an object has the member text twice, of which one would be lost"));
  CHECK(Has(refused(R"({"messages": [{"role": "user", "content": "a", "content": "b"}]})"),
            "the member content twice"));
  CHECK(Has(refused("{\"text\": \"a\", \"b\": " + std::string(1000, '[')),
            "f:1: values are nested more than 64 deep; flatten them"));
  const std::string line =
      "{\"text\": \"a\", \"b\": " + std::string(60, '[') + std::string(60, ']') + "}";
  CHECK(RecognizeRecord(line, "f:1", {}).kind == RecordFormat::Kind::kText);
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
  CHECK(Has(refused(chat, R"({"messages": "[{\"role\": \"user\"}]"})"),
            "is a text that holds the list of messages as JSON; write the list itself"));
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
