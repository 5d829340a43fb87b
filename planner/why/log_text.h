// Numbers and sizes in lines that programs wrote for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

inline bool HasPart(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
std::string_view Trimmed(std::string_view text);

// The number behind `key`, and behind spaces, '=', ':', '.' and quotes there; thousands may have
// commas.
std::optional<double> NumberAfter(std::string_view line, std::string_view key);
std::optional<int64_t> CountAfter(std::string_view line, std::string_view key);
// The size behind `key` or before it: "79.15 GiB", "0 bytes". `key` in front of it and behind.
std::optional<uint64_t> SizeAfter(std::string_view line, std::string_view key);
std::optional<uint64_t> SizeBefore(std::string_view line, std::string_view key);
// "31.1GB" of DeepSpeed, which is 2^30 bytes.
std::optional<uint64_t> GibibytesAfter(std::string_view line, std::string_view key);

// Words as a shell or a printed Python list has them, without quotes, brackets and commas.
std::vector<std::string> WordsIn(std::string_view line);
// "--per-device-train-batch-size" as "per_device_train_batch_size".
std::string PlainOption(std::string_view name);
// Whether a line is, or goes on, a command: programs are named on it, or it is an option alone.
bool IsCommand(std::string_view line);
// "OptimizerNames.ADAMW_TORCH" and "<OptimizerNames.ADAMW_TORCH: 'adamw_torch'>", without their
// quotes, as "adamw_torch"; other values as they are.
std::string PlainOptimizer(std::string value);
// "NVIDIA H100 80GB HBM3", where a program or nvidia-smi names the GPU in full; else "".
std::string GpuNameIn(std::string_view line);

// `line` without colours and other control sequences.
std::string WithoutControls(std::string_view line);
// The rank in front of a line: "[rank3]:", "[default3]:".
std::optional<int> RankOf(std::string_view line);

}  // namespace zeroplan
