#include "core/program/violations.h"

#include <fmt/format.h>

#include "core/program/format.h"

namespace zeroplan {
namespace {
constexpr int64_t kContextLines = 5;  // shown before and after the offending one
}  // namespace

void Violations::Add(std::string_view rule, Site site, std::string_view what) {
  // `rule` is always a literal, so that its view may be kept.
  if (full() || !seen_.insert({rule, site.section, site.index}).second) return;
  std::string text = fmt::format("{}: {}\n", rule, what);
  text += FormatLines(program_, site.section, site.index - kContextLines,
                      site.index + kContextLines + 1, site.index);
  found_.push_back({std::string(rule), site.section, site.index, std::move(text)});
}

std::string FormatSite(const Program& program, Site site) {
  const std::vector<Instruction>& list = program.section(site.section);
  return fmt::format("{} line {}: {}", SectionName(site.section), site.index,
                     FormatInstruction(program, list[static_cast<size_t>(site.index)]));
}

}  // namespace zeroplan
