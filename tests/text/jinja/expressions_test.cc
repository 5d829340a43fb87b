// Jinja and Python to the byte: what expressions.json has is what transformers renders, which
// tests/chat_parity/compare_templates.py wrote there (--expressions) and compares.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "core/base/json_source.h"
#include "tests/paths.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/parser.h"

namespace zeroplan::jinja {
namespace {

// What Jinja has and zeroplan has not: an error, not another text.
constexpr std::array<std::string_view, 14> kUnsupported = {"wordcount",
                                                           "filesizeformat",
                                                           "%c",
                                                           "self",
                                                           "print",
                                                           "block",
                                                           ".name is",
                                                           "(3).real",
                                                           "none[1:]",
                                                           "}[1:]",
                                                           "undefined_name | reverse",
                                                           "lipsum",
                                                           "m.name",
                                                           "[1:]"};

Value ValueOf(const JsonNode& node) {
  if (node.is_array()) {
    List list;
    for (const JsonNode& element : node.elements) list.push_back(ValueOf(element));
    return list;
  }
  if (!node.is_object()) return Value::Of(node.scalar.text());
  Dict dict;
  for (const JsonMember& member : node.members) dict.Set(member.key, ValueOf(member.value));
  return dict;
}

TEST_CASE("jinja: expressions and statements are rendered as transformers renders them") {
  const std::string file = SourcePath("tests/text/jinja/expressions.json");
  const JsonNode known = ParseJsonText(ReadTextFile(file), file);
  Dict variables = *ValueOf(*known.Find("variables")).dict();
  for (const char* name : {"raise_exception", "strftime_now"}) variables.Set(name, Function{name});
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_wday = 5;
  now.tm_yday = 207;
  now.tm_hour = 12;
  int rendered = 0;
  for (const JsonNode& known_case : known.Find("cases")->elements) {
    const std::string& source = known_case.elements[0].scalar.text();
    CAPTURE(source);
    std::string text, error;
    try {
      text = Render(Parse(source), variables, now).text.bytes;
      ++rendered;
    } catch (const TemplateError& caught) {
      error = caught.what();
    }
    CAPTURE(error);
    if (known_case.elements[1].is_null()) {
      CHECK(error != "");
    } else if (error.empty()) {
      CHECK(text == known_case.elements[1].scalar.text());
    } else {
      CHECK(std::any_of(kUnsupported.begin(), kUnsupported.end(), [&](std::string_view part) {
        return source.find(part) != std::string::npos;
      }));
    }
  }
  CHECK(rendered > 500);
}

}  // namespace
}  // namespace zeroplan::jinja
