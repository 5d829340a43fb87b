// LibraryFacts as one line of JSON: how the executor tells zeroplan doctor of its libraries.
#pragma once

#include <optional>
#include <string>

#include "hwprofiles/library_facts.h"

namespace zeroplan {

std::string LibrariesAsJson(const LibraryFacts& facts);
// Of the last line of `output`; nothing if that is no such text.
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output);

}  // namespace zeroplan
