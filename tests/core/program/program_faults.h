// Puts faults into right programs and states what Verify must say.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/program/verify.h"

namespace zeroplan {

inline void ExpectClean(const Program& program) {
  const std::vector<Violation> found = Verify(program);
  for (const Violation& violation : found) MESSAGE(violation.message);
  CHECK(found.empty());
}

// The first violation of `rule`, which must be among what Verify finds, with the line marked.
inline Violation Expect(const Program& program, std::string_view rule) {
  const std::vector<Violation> found = Verify(program, 100);
  std::string rules;
  for (const Violation& violation : found) {
    rules += violation.rule + " ";
    if (violation.rule != rule) continue;
    CHECK(violation.message.starts_with(std::string(rule) + ": "));
    CHECK(violation.message.find("\n--> ") != std::string::npos);
    return violation;
  }
  FAIL_CHECK("no " << rule << " among: " << rules);
  return {};
}

// The index of the first instruction of that kind (from `from` on) for which `wanted` holds, or the
// section's size.
template <typename Kind, typename Wanted>
size_t Find(const Program& program, Section section, Wanted&& wanted, size_t from = 0) {
  const std::vector<Instruction>& list = program.section(section);
  for (size_t i = from; i < list.size(); ++i) {
    const Kind* op = std::get_if<Kind>(&list[i].op);
    if (op != nullptr && wanted(*op)) return i;
  }
  return list.size();
}
template <typename Kind>
size_t Find(const Program& program, Section section) {
  const size_t index = Find<Kind>(program, section, [](const Kind&) { return true; });
  REQUIRE(index < program.section(section).size());
  return index;
}

inline void Erase(Program& program, Section section, size_t index) {
  auto& list = program.section(section);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(index));
}
inline void Duplicate(Program& program, Section section, size_t index) {
  auto& list = program.section(section);
  const Instruction copy = list[index];
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(index), copy);
}
inline void SwapInstructions(Program& program, Section section, size_t a, size_t b) {
  std::swap(program.section(section)[a], program.section(section)[b]);
}

}  // namespace zeroplan
