// What Jinja computes; beside Jinja itself in tests/chat_parity.
#include <doctest/doctest.h>

#include <string>

#include "tests/has.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/parser.h"

namespace zeroplan::jinja {
namespace {

Text Said(const std::string& bytes, int message) { return {bytes, {{0, bytes.size(), message}}}; }

Dict Surroundings() {
  List messages;
  messages.push_back(Dict{{"role", Value::Of("user")}, {"content", Value::Of(" Hi ")}});
  messages.push_back(Dict{{"role", Value::Of("assistant")}, {"content", Said(" Yo! ", 1)}});
  return {{"messages", messages},
          {"bos", Value::Of("<s>")},
          {"tools", None()},
          {"raise_exception", Function{"raise_exception"}}};
}

std::string Print(const std::string& source) {
  return Render(Parse(source), Surroundings()).text.bytes;
}

std::string ErrorOf(const std::string& source) {
  try {
    Print(source);
  } catch (const TemplateError& error) {
    return std::to_string(error.line()) + ": " + error.what();
  }
  FAIL("no error: ", source);
  return "";
}

TEST_CASE("jinja: white space around tags goes as trim_blocks and lstrip_blocks have it") {
  CHECK(Print("a\n  {% if bos %}\nb\n  {% endif %}\nc\n") == "a\nb\nc");
  CHECK(Print("a  {%- if bos -%}  \n b {% endif %}c") == "ab c");
  CHECK(Print("a\n  {{ bos }}\nb") == "a\n  <s>\nb");
  CHECK(Print("a\n  {%+ if bos +%}\nb{% endif %}") == "a\n  \nb");
  CHECK(Print("{# note #}\nx {# y #}z\r\n") == "x z");
  CHECK(Print("{{ ' a ' -}}  b {{- '{{' }}") == " a b{{");
}

TEST_CASE("jinja: expressions") {
  CHECK(Print("{{ (1 + 2 * 3 - 7 // 2) ~ 'x' ~ 2 + 'y' }}") == "4x2y");
  CHECK(Print("{{ -7 // 2 }}{{ -7 % 3 }}") == "-42");
  CHECK(Print("{{ not bos is defined }}{{ x is not defined }}{{ tools is none }}") ==
        "FalseTrueTrue");
  CHECK(Print("{{ 'a' if x else 'b' }}{{ 'a' if x }}{{ x }}{{ '' or 'c' and 'd' }}") == "bd");
  CHECK(Print("{{ messages[-1].role[0:3] }}{{ messages[::-1][0]['role'] | length }}") == "ass9");
  CHECK(Print("{{ 'é中'[1] }}{{ 'aXbXc'.split('X')[-1] }}{{ 'ab' in 'cab' }}") == "中cTrue");
  CHECK(Print("{{ [1, 'a', none] | tojson }}{{ {'k': \"q\\\"\\n\"} | tojson }}") ==
        R"([1, "a", null]{"k": "q\"\n"})");
  CHECK(Print("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}") == "1");
  CHECK(Print("{{ '\\u3000 x\\n' | trim }}{{ '<<a>'.strip('<') }}") == "xa>");
}

TEST_CASE("jinja: loops, scopes, macros") {
  CHECK(Print("{% for m in messages %}{{ loop.index }}{{ m.role }}{{ ',' if not loop.last }}"
              "{% endfor %}") == "1user,2assistant");
  CHECK(Print("{% set n = 1 %}{% for m in messages %}{% set n = 5 %}{{ n }}{% endfor %}{{ n }}") ==
        "551");
  CHECK(Print("{% set s = namespace(n=1) %}{% for m in messages %}{% set s.n = s.n + 1 %}"
              "{% endfor %}{{ s.n }}") == "3");
  CHECK(Print("{% for m in messages if m.role == 'none' %}a{% else %}b{% endfor %}") == "b");
  CHECK(Print("{% macro f(a, b='-') %}({{ a }}{{ b }}){% endmacro %}{{ f(1) }}{{ f(2, b=3) }}") ==
        "(1-)(23)");
  CHECK(Print("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
              "{% endfor %}") == "assistant");
  CHECK(Print("{% set x %}a{{ bos }}{% endset %}{{ x }}{{ x }}") == "a<s>a<s>");
}

TEST_CASE("jinja: what a message says is known in the output, whatever is done to it") {
  const Rendering rendering =
      Render(Parse("{% for m in messages %}[{{ m.role + ':' + m.content | trim }}]{% endfor %}"
                   "{{ messages[1].content.replace('Y', 'ZZ') }}"
                   "{% generation %}g{% endgeneration %}"),
             Surroundings());
  CHECK(rendering.text.bytes == "[user:Hi][assistant:Yo!] ZZo! g");
  const auto& marks = rendering.text.marks;
  REQUIRE(marks.size() == 3);
  CHECK(rendering.text.bytes.substr(marks[0].begin, marks[0].end - marks[0].begin) == "Yo!");
  CHECK(marks[1].begin == marks[0].end + 1);
  CHECK(marks[2].end == rendering.text.bytes.size() - 1);
  CHECK(rendering.generations.size() == 1);
  // Nothing is somewhere too.
  const Rendering nothing =
      Render(Parse("a{{ text.strip() }}b"), {{"text", jinja::Value(Said("  ", 0))}});
  REQUIRE(nothing.text.marks.size() == 1);
  CHECK(nothing.text.marks[0].begin == 1);
  CHECK(nothing.text.marks[0].end == 1);
}

TEST_CASE("jinja: what is not known is an error with its line") {
  CHECK(ErrorOf("\n{{ 'a' | wordwrap }}") == "2: the filter wordwrap is not supported");
  CHECK(Has(ErrorOf("{% include 'x' %}"), "the tag include"));
  CHECK(Has(ErrorOf("{{ x.y }}"), "'x' is undefined"));
  CHECK(Has(ErrorOf("{{ 'a' + 1 }}"), "+ of a text and a number"));
  CHECK(Has(ErrorOf("{{ messages | map('upper') }}"), "an iterator is printed"));
  CHECK(Has(ErrorOf("{% for m in messages %}"), "the end comes before"));
  CHECK(Has(ErrorOf("{{ 'a' | nothing }}"), "there is no filter nothing"));
  CHECK(Has(ErrorOf("{{ 'a'.swapcase() }}"), "text.swapcase() is not supported"));
  CHECK(Has(ErrorOf("{% do messages.append(1) %}"), "the tag do"));
  CHECK(Has(ErrorOf("{{ messages.append(1) }}"), "'append' is undefined"));
  CHECK(Has(ErrorOf("{{ (1 }}"), "unexpected"));
  CHECK(Has(ErrorOf("{{ 'a }}"), "not closed"));
  CHECK(Has(ErrorOf("{{ range(99999999999) }}"), "more than 100000 numbers"));
  CHECK(Has(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "without end"));
  CHECK(Has(ErrorOf("{{ " + std::string(5000, '(') + std::string(5000, ')') + " }}"),
            "nested too deep"));
  std::string sum = "1", doubled = "{% set x = 'ab' %}", nested = "{% set x = [1] %}";
  for (int i = 0; i < 2000; ++i) sum += " + 1";
  for (int i = 0; i < 40; ++i) doubled += "{% set x = x ~ x %}";
  for (int i = 0; i < 200; ++i) nested += "{% set x = [x] %}";
  CHECK(Has(ErrorOf("{{ " + sum + " }}"), "nested too deep"));
  CHECK(Has(ErrorOf(doubled), "take more than 256 MiB"));
  CHECK(Has(ErrorOf(nested), "nested too deep"));
  CHECK(Has(ErrorOf("{% set n = namespace() %}{% set n.n = n %}"), "nested too deep"));
  CHECK(Has(ErrorOf("{% set n = namespace() %}{% set n.n = [n] %}"), "have a namespace"));
  CHECK_THROWS_AS(Print("{{ raise_exception('no') }}"), Refusal);
  // What is not reached does not matter.
  CHECK(Print("{% if tools %}{{ tools | wordwrap }}{% endif %}a") == "a");
}

}  // namespace
}  // namespace zeroplan::jinja
