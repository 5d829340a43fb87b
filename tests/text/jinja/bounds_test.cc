// What a template may cost: short ones that would take hours or all memory end with an error, in
// few steps and within the bytes that they may have.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "tests/has.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/parser.h"

namespace zeroplan::jinja {
namespace {

// Of 8 MiB and a million steps; one of both is what ends it.
std::string EndOf(const std::string& source, const Dict& variables = {}) {
  try {
    Render(Parse(source), variables, {}, {1'000'000, size_t{8} << 20});
  } catch (const TemplateError& error) {
    return error.what();
  }
  return "no error";
}

bool IsBound(const std::string& error) {
  return error == "the template does not come to an end" ||
         error == "the template's values take more than 8 MiB";
}

// KiB that the process had at most.
long MostMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST_CASE("jinja bounds: what a template makes is charged before it is made") {
  const std::string big = "{% set a = 'ab' * 1000000 %}";
  const std::vector<std::string> hostile = {
      "{{ 'a' * 1000000000000 }}",
      "{{ 9 * 'a' * 10 ** 17 }}",
      "{{ ([0] * 1000000000000) | length }}",
      "{{ ((1, 2) * 10 ** 15) | length }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
      "{{ ('b' * 1000000).join('a' * 100000) }}",
      "{{ (('a' * 1000000) | list) | join('b' * 1000000) }}",
      "{{ ('a' * 1000000) | list | length }}",
      "{{ ('a ' * 1000000).split() | length }}",
      "{{ ('a,' * 1000000).split(',') | length }}",
      "{{ ('a\n' * 1000000).splitlines() | length }}",
      "{{ ('a\n' * 100000) | indent(1000000) }}",
      "{{ 'a'.center(10 ** 15) }}",
      "{{ 'a'.ljust(10 ** 15) }}{{ 'a'.zfill(10 ** 15) }}",
      "{{ 'a'.zfill(10 ** 15) }}",
      "{{ '' | indent(10 ** 15, true) }}",
      "{{ [1] | tojson(indent=10 ** 15) }}",
      "{{ [1] | batch(10 ** 15, 0) | list }}",
      "{{ [1] | slice(10 ** 15) | list }}",
      big + "{{ a ~ a ~ a ~ a ~ a }}",
      big + "{{ a + a + a + a + a }}",
      big + "{{ a.upper() ~ a.title() ~ a }}",
      big + "{{ (a, a, a, a) | tojson }}",
      big + "{{ (a, a, a, a) }}",
      big + "{{ '%s%s%s%s%s' % (a, a, a, a, a) }}",
      big + "{{ '{0}{0}{0}{0}{0}'.format(a) }}",
      big + "{{ a[::-1] ~ a[::-1] }}",
      big + "{% for i in range(99) %}{{ a }}{% endfor %}",
      big +
          "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + [a ~ i] %}"
          "{% endfor %}",
      "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
      "{% set n = namespace(a=[1]) %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
      "{% macro m() %}{{ m() }}{{ 'a' * 5000000 }}{% endmacro %}{{ m() }}{{ 'a' * 9000000 }}",
  };
  const long before = MostMemory();
  for (const std::string& source : hostile) {
    CAPTURE(source);
    CHECK(source.size() < 200);
    const std::string error = EndOf(source);
    CAPTURE(error);
    const bool recursive = source.find("m()") != std::string::npos;
    CHECK((recursive ? Has(error, "nested too deep") : IsBound(error)));
  }
#ifdef __SANITIZE_ADDRESS__  // which keeps what is given back
  CHECK(before > 0);
#else
  // 8 MiB are what they may have; the rest is what making them takes for a moment.
  CHECK(MostMemory() - before < 100 * 1024);
#endif
}

TEST_CASE("jinja bounds: work without end ends") {
  // Each name is twice the one before: 2^60 elements, in few bytes.
  const std::string doubled =
      "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% endfor "
      "%}";
  const std::string twice = doubled +
                            "{% set m = namespace(a=[1]) %}{% for i in range(60) %}"
                            "{% set m.a = [m.a, m.a] %}{% endfor %}";
  for (const std::string& source : std::vector<std::string>{
           twice + "{{ n.a == m.a }}",
           twice + "{{ n.a < m.a }}",
           twice + "{{ n.a in [m.a] }}",
           twice + "{{ [n.a].index(m.a) }}",
           twice + "{{ [n.a, m.a] | sort }}",
           doubled + "{{ n.a }}",
           doubled + "{{ n.a | tojson }}",
           doubled + "{{ n.a ~ '' }}",
           "{% set n = namespace(a=(1,)) %}{% for i in range(60) %}{% set n.a = (n.a, n.a) %}"
           "{% endfor %}{{ {n.a: 1} }}",
           "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
           "{% for a in range(9999) %}{{ range(99999) | sum }}{% endfor %}",
           "{% for a in range(99999) %}{{ 'a' in 'b' * 100000 }}{% endfor %}",
           "{% set a = 'b' * 1000000 %}{% for i in range(99999) %}{{ a[i] }}{% endfor %}",
           "{% set a = 'b' * 1000000 %}{% for i in range(99999) %}{{ a | length }}{% endfor %}",
           "{% set a = 'b' * 1000000 %}{% for i in range(99999) %}{{ a == a ~ '' }}{% endfor %}",
           "{% set a = ('b ' * 9999).split() %}{% for i in range(9999) %}{{ 'c' in a }}{% endfor "
           "%}",
       }) {
    CAPTURE(source);
    const std::string error = EndOf(source);
    CAPTURE(error);
    CHECK(IsBound(error));
  }
}

TEST_CASE("jinja bounds: looking for parts of a text takes time in proportion to it") {
  // A million bytes, of which each place looks like the part: 10^11 comparisons one by one. It
  // takes a step for each 256 bytes; a search that is not linear would not end today.
  const Dict variables = {{"a", Value(Text{std::string(1'000'000, 'a'), {}})},
                          {"part", Value(Text{std::string(200'000, 'a') + "b", {}})}};
  const Limits limits = {200'000, size_t{64} << 20};
  const std::string source =
      "{{ part in a }}{{ a.find(part) }}{{ a.rfind('b' ~ part[:-1]) }}{{ a.count(part) }}"
      "{{ a.split(part) | length }}{{ a.rsplit('b' ~ part[:-1]) | length }}"
      "{{ a.replace(part, '') == a }}{{ a.partition(part)[1] }}{{ a.rpartition(part)[0] }}";
  CHECK(Render(Parse(source), variables, {}, limits).text.bytes == "False-1-1011True");
}

TEST_CASE("jinja bounds: a mapping of many keys finds each at once") {
  Dict dict;
  for (int i = 0; i < 80'000; ++i) dict.Set("key" + std::to_string(i), int64_t{i});
  CHECK(dict.size() == 80'000);
  CHECK(*dict.Find("key79999")->number() == 79'999);
  CHECK(dict.Find("key80000") == nullptr);
  dict.Set("key5", int64_t{-1});
  CHECK(dict.size() == 80'000);
  CHECK(*(dict.begin() + 5)->value.number() == -1);  // at its place
  // Of any kind; 1, 1.0 and true are one key.
  Dict mixed;
  for (int i = 0; i < 20; ++i) mixed.SetKey(int64_t{i}, int64_t{i});
  mixed.SetKey(1.0, int64_t{100});
  mixed.SetKey(true, int64_t{101});
  mixed.SetKey(Value::Tuple({int64_t{1}, Value::Of("a")}), None());
  mixed.SetKey(None(), None());
  CHECK(mixed.size() == 22);
  CHECK(*mixed.FindKey(int64_t{1})->number() == 101);
  CHECK(mixed.FindKey(Value::Tuple({1.0, Value::Of("a")})) != nullptr);
  CHECK(mixed.Find("1") == nullptr);
  CHECK_THROWS_AS(mixed.SetKey(List(), None()), TemplateError);
}

TEST_CASE("jinja bounds: what is used up and given back may be used again") {
  // 1000 times 1 MB, one after the other, within 8 MiB.
  const std::string source =
      "{% set n = namespace(a='') %}{% for i in range(1000) %}{% set n.a = 'a' * 1000000 %}"
      "{% endfor %}{{ n.a | length }}";
  CHECK(Render(Parse(source), {}, {}, {10'000'000, size_t{8} << 20}).text.bytes == "1000000");
}

TEST_CASE("jinja bounds: values may be nested, but not without end") {
  std::string nested = "{% set x = [1] %}";
  for (int i = 0; i < 200; ++i) nested += "{% set x = {'a': x} %}";
  CHECK(Has(EndOf(nested), "nested too deep"));
  CHECK(Has(EndOf("{{ " + std::string(5000, '[') + std::string(5000, ']') + " }}"),
            "nested too deep"));
  CHECK(Has(EndOf("{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}"),
            "calls itself without end"));
  CHECK(Has(EndOf("{% macro f() %}{% call f() %}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}"),
            "calls itself without end"));
  CHECK(Has(EndOf("{% set l = namespace() %}{% for x in [1] %}{% set l.l = loop %}{% endfor %}"),
            "nested too deep"));
}

}  // namespace
}  // namespace zeroplan::jinja
