#include "core/base/json_source.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_departures.h"
#include "core/base/json_section.h"
#include "core/base/limits.h"

namespace zeroplan {
namespace {

TEST_CASE("json: a file has as many values as its memory is worth") {
  std::string text = "[1";
  for (size_t i = 2; i < kMostJsonValues; ++i) text += ",1";  // the list is one
  CHECK_NOTHROW(ParseJsonText(text + "]", "f"));
  CHECK_THROWS_WITH_AS(ParseJsonText(text + ",1]", "f"),
                       doctest::Contains("more than 4000000 values in one file"), Error);
}

TEST_CASE("json: a name with a byte 0 in it is shown, and the reason behind it") {
  const std::string twice = R"({"a\u0000b": 1, "a\u0000b": 2})";
  CHECK_THROWS_WITH_AS(ParseJsonText(twice, "f"),
                       "f:1: a\\x00b: the key is given twice, here and on line 1; keep one of them",
                       Error);
  CHECK_THROWS_WITH_AS(ReadTextFile(std::string("/dev/null\0.json", 15)),
                       doctest::Contains("a byte 0 is in the name"), Error);
}

TEST_CASE("json: comments, trailing commas, commas left out at a line's end") {
  const JsonNode root = ParseJsonText(
      "\xEF\xBB\xBF// top\n"
      "{ # hash\n"
      "  \"a\": [1, 2,], /* block\n over lines */\n"
      "  \"b\": {\"c\": \"x // no comment # here\"}\n"
      "  \"d\": 1e3,\n"
      "}\n# end",
      "f.json");
  REQUIRE(root.is_object());
  CHECK(root.Find("a")->elements.size() == 2);
  CHECK(root.Find("a")->line == 3);
  CHECK(root.Find("b")->line == 5);
  CHECK(root.Find("b")->Find("c")->scalar == "x // no comment # here");
  CHECK(root.Find("d")->line == 6);
  CHECK(root.Find("d")->scalar == 1000.0);
  CHECK(root.Find("e") == nullptr);
  CHECK(root.Find("d")->Find("x") == nullptr);
}

TEST_CASE("json: malformed text names file and line") {
  struct Case {
    std::string text, message;
  };
  const Case cases[] = {
      {"", "f:1:1: the file is empty"},
      {"\n\n# only a comment", "f:3:17: the file is empty"},
      {"{", "f:1:2: the object that starts on line 1 is not closed"},
      {"{\"a\": 1", "is not closed"},
      {"{\"a\": [1", "the list that starts on line 1 is not closed"},
      {"{\"a\" 1}", "f:1:6: a: expected ':' after the key"},
      {"{\"a\": \"x\" \"b\": 2}", "f:1:11: a: expected ',' or '}'"},
      // A value without quotes runs to the end of its line, as in Hjson.
      {"{\"a\": 1 \"b\": 2}", "runs to the end of its line: 1 \"b\": 2}"},
      {"{\"a\": 01}", "runs to the end of its line: 01}"},
      {"{a: cpu}", "f:1:9: the object that starts on line 1 is not closed"},
      {"{'a': 'x}", "a string is not closed; add a '"},
      {"{'a': 'x\n'}", "a string is not closed before the end of the line; add a '"},
      {"{'a': '''x\n}", "a string is not closed; add '''"},
      {"a: 1\nb: 2\na: 3", "f:3: a: the key is given twice, here and on line 1"},
      {"a: 1\n}", "unexpected '}'"},
      {"a: [1, 2\nb: 3", "is not closed"},
      {"{\"a\": 1} x", "unexpected 'x'"},
      {"{\n\"a\": 1,\n\"a\": 2}", "f:3: a: the key is given twice, here and on line 2"},
      {"{\"a\": }", "expected a value, found '}'"},
      {"{\"a\": ,}", "expected a value, found ','"},
      {"{,}", "expected a key"},
      {"{\"a\": \"x\n\"}", "a string is not closed before the end of the line"},
      {"{\"a\": \"x", "a string is not closed"},
      {"{\"a\": \"\\q\"}", "is not a valid JSON string"},
      {"{\"a\": \"\xff\"}", "is not a valid JSON string"},
      {"{\"a\": 1} /* open", "the comment is not closed"},
      {std::string("{\"a\": \0}", 8), "expected a value"},
      {"{\"a\": \"\\", "a string is not closed"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    CHECK_THROWS_WITH_AS(ParseJsonText(c.text, "f"), doctest::Contains(c.message.c_str()), Error);
  }
  CHECK_THROWS_WITH_AS(ParseJsonText(std::string(100'000, '['), "f"), doctest::Contains("nested"),
                       Error);
  // Every prefix of a good text is an error, never a crash.
  const std::string good = "{\"a\": [1, {\"b\": \"c\\u00e9\"}], \"d\": null}";
  for (size_t n = 0; n < good.size(); ++n) {
    CHECK_THROWS_AS(ParseJsonText(good.substr(0, n), "f"), Error);
  }
}

TEST_CASE("json: Hjson as people write it") {
  const JsonNode root = ParseJsonText(
      "# no outer braces\n"
      "zero_optimization: {\n"
      "  stage: 3\n"
      "  device: cpu\n"
      "  'path': 'it\\'s \"here\"'\n"
      "  text: '''\n"
      "        one\n"
      "          two\n"
      "        '''\n"
      "}\n"
      "on: True, off: False, none: None\n"
      "list: [1, 'b', \"c\"\n 4]\n",
      "f");
  const JsonNode& zero = *root.Find("zero_optimization");
  CHECK(zero.Find("stage")->scalar == 3);
  CHECK(zero.Find("device")->scalar == "cpu");
  CHECK(zero.Find("path")->scalar == "it's \"here\"");
  CHECK(zero.Find("text")->scalar == "one\n  two");
  CHECK(zero.Find("text")->line == 6);
  CHECK(root.Find("on")->scalar == true);
  CHECK(root.Find("on")->line == 11);
  CHECK(root.Find("off")->scalar == false);
  CHECK(root.Find("none")->is_null());
  auto value = [](const char* text) { return ParseJsonText(text, "f").Find("a")->scalar; };
  CHECK(value("{a: 1 }") == 1);
  CHECK(value("{a: 5e8 # comment\n}") == 5e8);
  CHECK(value("{a: 5e8 // comment\n}") == 5e8);
  CHECK(value("{a: cpu, # comment\n}") == "cpu, # comment");  // Hjson: to the end of the line
  CHECK(value("{a: 1.2.3\n}") == "1.2.3");
  CHECK(value("{a: True}") == true);
  CHECK(value("{a: Truer\n}") == "Truer");
  CHECK(value("{a: 1e999\n}") == "1e999");
  CHECK(value("{a: C:\\x\n}") == "C:\\x");
  CHECK(value("{\"a\": '''x'''}") == "x");
  CHECK(value("a: \"b\"") == "b");
  // A document need not be an object.
  CHECK(ParseJsonText("just text", "f").scalar == "just text");
  CHECK(ParseJsonText("[1]", "f").is_array());
}

TEST_CASE("json: time grows with the size, not faster") {
  // Each would take minutes if a value, key or string looked at the whole line or text.
  std::string list = "{\"a\": [", quotes = "{a: [", keys = "{";
  for (int i = 0; i < 200'000; ++i) {
    list += "1,";
    quotes += "'''x''',";
    keys += fmt::format("\"k{}\": 1,", i);
  }
  CHECK(ParseJsonText(list + "]}", "f").Find("a")->elements.size() == 200'000);
  CHECK(ParseJsonText(quotes + "]}", "f").Find("a")->elements.size() == 200'000);
  CHECK(ParseJsonText(keys + "}", "f").members.size() == 200'000);
}

TEST_CASE("json section: numbers as people write them") {
  const JsonNode root = ParseJsonText(
      R"({"a": 5e8, "b": "1", "c": 1e14, "d": "auto", "e": null, "f": "True", "g": 1, "h": "2.5",
          "i": -3, "j": 9223372036854775808, "k": 1.5, "l": [1], "m": 9223372036854775807})",
      "f");
  JsonSection s(&root, "", "f");
  CHECK(s.Int("a") == 500'000'000);
  CHECK(s.Int("b") == 1);
  CHECK(s.Int("c") == 100'000'000'000'000);
  CHECK(s.Int("d") == std::nullopt);
  CHECK(s.IsAuto("d"));
  CHECK(s.Int("e") == std::nullopt);
  CHECK_FALSE(s.IsAuto("e"));
  CHECK(s.Bool("f") == true);
  CHECK(s.Bool("g") == true);
  CHECK(s.Number("h", 0, 3) == 2.5);
  CHECK(s.Int("m") == kMaxInt);
  CHECK(s.Int("absent") == std::nullopt);
  CHECK(s.Int("i", -5) == -3);
  CHECK_THROWS_WITH_AS(s.Int("i"), "f:2: i: -3 is not allowed; use a whole number of at least 0",
                       Error);
  CHECK_THROWS_AS(s.Int("j"), Error);
  CHECK_THROWS_AS(s.Int("k"), Error);
  CHECK_THROWS_WITH_AS(s.Int("l"), doctest::Contains("l: [...] is not allowed"), Error);
  CHECK_THROWS_AS(s.Bool("a"), Error);
  CHECK_THROWS_AS(s.Number("h", 0, 1), Error);
  CHECK_THROWS_AS(s.String("a"), Error);
  CHECK(s.Unknown().empty());
}

TEST_CASE("json: files that cannot be read") {
  const auto folder = std::filesystem::temp_directory_path();
  CHECK_THROWS_WITH_AS(ReadTextFile(folder), doctest::Contains("is a folder"), Error);
  CHECK_THROWS_WITH_AS(ReadTextFile(folder / "no-such-file.json"),
                       doctest::Contains("cannot be read"), Error);
}

TEST_CASE("json: a pipe is read once and asked for again") {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  REQUIRE(write(ends[1], "{}\n", 3) == 3);
  close(ends[1]);
  const std::string name = "/dev/fd/" + std::to_string(ends[0]);
  CHECK(ReadTextFile(name) == "{}\n");
  CHECK(ReadTextFile(name) == "{}\n");
  close(ends[0]);
}

TEST_CASE("json departures: a comma that is left out is a slip in what is JSON otherwise") {
  const auto look = [](const char* text) { return FindJsonDepartures(text, "f"); };
  const JsonDepartures none = look("{\"a\": [1, \"x\"],\n \"b\": null}");
  CHECK(none.broken.empty());
  CHECK(none.hjson.empty());
  CHECK(look("{\n  \"a\": 1\n  \"b\": 2}").broken == "f:2:9: a comma is missing after a's value");
  CHECK(look("{\"a\": {\"c\": 1}\n \"b\": 2}").broken ==
        "f:1:15: a comma is missing after a's value");
  CHECK(look("{\"a\": [1\n2]}").broken == "f:1:9: a comma is missing after list's element");
  CHECK(look("{\"a\": 1 // one\n \"b\": 2,}").broken ==
        "f:1:8: a comma is missing after a's value");
  // Whoever writes Hjson leaves commas out.
  CHECK(look("{\n a: 1\n b: 2}").broken.empty());
  CHECK(look("a: 1\n\"b\": 2").broken.empty());
  const std::pair<const char*, const char*> hjson[] = {
      {"{\"a\": 1, # one\n\"b\": 2}", "f:1:10: a comment"},
      {"{\"a\": 1,}", "f:1:9: a comma before '}'"},
      {"{\"a\": [1,\n]}", "f:1:10: a comma before ']'"},
      {"{a: 1}", "f:1:2: a key without quotes"},
      {"{'a': 1}", "f:1:2: a key in single quotes"},
      {"{\"a\": 'x'}", "f:1:7: a string in single quotes"},
      {"{\"a\": True}", "f:1:7: a word of Python's"},
      {"{\"a\": x\n}", "f:1:7: a string without quotes"},
      {"a: 1", "f:1:1: an object without braces"},
  };
  for (const auto& [text, place] : hjson) {
    CAPTURE(text);
    CHECK(look(text).broken.empty());
    CHECK(look(text).hjson == place);
  }
}

}  // namespace
}  // namespace zeroplan
