// usage: render_variables TEMPLATE VARIABLES YYYY-MM-DD
//
// TEMPLATE: a file of Jinja. VARIABLES: lines of JSON, each an object with what the template finds
// around it: messages, tools, ... Prints a line of JSON for each: text, or error, and whether that
// is a refusal of the template's own.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/parser.h"

namespace zeroplan {
namespace {

jinja::Value ValueOf(const nlohmann::ordered_json& json) {
  if (json.is_array()) {
    jinja::List list;
    for (const auto& element : json) list.push_back(ValueOf(element));
    return list;
  }
  if (json.is_object()) {
    jinja::Dict dict;
    for (const auto& [key, member] : json.items()) dict.Set(key, ValueOf(member));
    return dict;
  }
  if (json.is_string()) return jinja::Value::Of(json.get<std::string>());
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number()) return jinja::Value::Integer(json.dump());
  return jinja::None();
}

nlohmann::json Answer(const jinja::Block& block, const std::string& line, const std::tm& now) {
  const jinja::Value given = ValueOf(nlohmann::ordered_json::parse(line));
  jinja::Dict variables = *given.dict();
  for (const char* name : {"raise_exception", "strftime_now"}) {
    variables.Set(name, jinja::Function{name});
  }
  try {
    return {{"text", jinja::Render(block, variables, now).text.bytes}};
  } catch (const jinja::Refusal& refusal) {
    return {{"error", refusal.what()}, {"refused", true}};
  } catch (const jinja::TemplateError& error) {
    return {{"error", std::to_string(error.line()) + ": " + error.what()}, {"refused", false}};
  }
}

int Run(const std::string& template_file, const std::string& file, const char* date) {
  std::tm now{};
  if (std::sscanf(date, "%d-%d-%d", &now.tm_year, &now.tm_mon, &now.tm_mday) != 3) {
    ThrowUsage("{}: no date", date);
  }
  now.tm_year -= 1900;
  now.tm_mon -= 1;
  now.tm_hour = 12;
  timegm(&now);  // finds the day of the week
  const jinja::Block block = jinja::Parse(ReadTextFile(template_file));
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::string text = Answer(block, line, now).dump() + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return zeroplan::Run(argv[1], argv[2], argv[3]);
  } catch (const zeroplan::jinja::TemplateError& error) {
    std::fprintf(stderr, "line %d: %s\n", error.line(), error.what());
    return 1;
  } catch (const zeroplan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
