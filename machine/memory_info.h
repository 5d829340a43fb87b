// What the kernel says of this machine's memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace zeroplan {

// The number behind "KEY:" in the machine's meminfo, or in a NUMA node's: bytes where the line says
// kB, else as it is (HugePages_Total counts pages). nullopt: the file is not there or does not say.
std::optional<uint64_t> MemoryInfo(std::string_view key,
                                   const std::filesystem::path& file = "/proc/meminfo");

}  // namespace zeroplan
