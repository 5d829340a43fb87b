// Checks the files that are generated from the rows of settings: the public header's struct and
// Python's class of a choice. With ZEROPLAN_WRITE_GENERATED=1 in the environment this test writes
// them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "core/settings/settings.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

constexpr const char* kMadeBy = "made of core/settings/setting_rows.inc (docs/adding-a-setting.md)";

// The meaning of the value, followed by its words: "master weights (\"fp32\", \"split\" or
// \"16bit\")".
std::string About(const SettingRow& row) {
  const bool words = row.record == RecordType::kWord && row.words != nullptr;
  return words ? fmt::format("{} ({})", row.about, QuotedChoice(row.words()))
               : std::string(row.about);
}

// Wraps `text` into lines of at most 100 columns that begin with `head`.
std::string Wrapped(const std::string& head, std::string text) {
  std::string out;
  while (!text.empty()) {
    const size_t room = 99 - head.size();
    size_t end = text.size();
    if (end > room) end = text.rfind(' ', room);
    out += head + text.substr(0, end) + "\n";
    text.erase(0, end + 1);
  }
  return out;
}

std::string CppType(const SettingRow& row) {
  const char* type = row.record == RecordType::kBool     ? "bool"
                     : row.record == RecordType::kWhole  ? "int64_t"
                     : row.record == RecordType::kNumber ? "double"
                                                         : "std::string";
  return row.may_be_null ? fmt::format("std::optional<{}>", type) : type;
}

std::string CppMember(const SettingRow& row) {
  const char* open = row.may_be_null || row.record == RecordType::kWord ? ""
                     : row.record == RecordType::kBool                  ? " = false"
                                                                        : " = 0";
  return fmt::format("{}  {} {}{};\n", Wrapped("  // ", About(row)), CppType(row), row.name, open);
}

std::string ChoiceHeader() {
  std::string text = fmt::format(
      "// How a model is trained: {}.\n#pragma once\n\n#include <cstdint>\n#include <optional>\n"
      "#include <string>\n\nnamespace zeroplan::v1 {{\n\n// A choice. A value that a "
      "program lacks is unset.\nstruct Choice {{\n",
      kMadeBy);
  for (const SettingRow* row : kSettingRows) {
    if (row->record != RecordType::kNone) text += CppMember(*row);
  }
  return text + "};\n\n}  // namespace zeroplan::v1\n";
}

std::string PythonType(const SettingRow& row) {
  const char* type = row.record == RecordType::kBool     ? "bool"
                     : row.record == RecordType::kWhole  ? "int"
                     : row.record == RecordType::kNumber ? "float"
                                                         : "str";
  return row.may_be_null ? fmt::format("Optional[{}]", type) : type;
}

std::string ChoiceClass() {
  std::string text = fmt::format(
      "\"\"\"The record of a choice, {}.\"\"\"\n\nfrom __future__ import annotations\n\n"
      "from dataclasses import dataclass\nfrom typing import "
      "Optional\n\n\n@dataclass(frozen=True)\n"
      "class ChoiceRecord:\n    \"\"\"How a model is trained.\"\"\"\n\n",
      kMadeBy);
  for (const SettingRow* row : kSettingRows) {
    if (row->record == RecordType::kNone) continue;
    text += fmt::format("    {}: {}\n", row->name, PythonType(*row));
    std::string about = Wrapped("    ", About(*row));
    about.erase(0, 4);
    about.pop_back();
    text += fmt::format("    \"\"\"{}{}\"\"\"\n", about, about.ends_with('"') ? " " : "");
  }
  return text;
}

void CheckFile(const char* path, const std::string& text) {
  CAPTURE(path);
  const std::string file = SourcePath(path);
  if (std::getenv("ZEROPLAN_WRITE_GENERATED") != nullptr) std::ofstream(file) << text;
  std::ifstream stream(file);
  const std::string found{std::istreambuf_iterator<char>(stream), {}};
  if (found == text) return;
  FAIL(path << " is not made of the present rows; run this test with ZEROPLAN_WRITE_GENERATED=1");
}

TEST_CASE("settings: the files that are made of the rows are up to date") {
  CheckFile("library/include/zeroplan/choice.h", ChoiceHeader());
  CheckFile("python/zeroplan/_choice.py", ChoiceClass());
}

}  // namespace
}  // namespace zeroplan
