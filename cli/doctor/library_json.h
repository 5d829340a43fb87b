// LibraryFacts as one line of JSON: how the executor tells zeroplan doctor of its libraries.
#pragma once

#include <optional>
#include <string>

#include "hwprofiles/library_facts.h"

namespace zeroplan {

std::string LibrariesAsJson(const LibraryFacts& facts);
// Of the last line of `output`; nothing if that is no such text.
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output);

// "13.0" of 13000, "2.28.3" of 22803, "9.14.0" of 91400.
std::string CudaVersion(int version);
std::string NcclVersion(int version);
std::string CudnnVersion(int version);

}  // namespace zeroplan
