// Parses numbers and sizes in lines that programs wrote for people.
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
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
// The words of command lines, YAML and Python for true and false; an option alone is true.
bool IsTrue(std::string_view value);
bool IsFalse(std::string_view value);
// Whether `value` is a positive whole number of at most 11 digits.
bool IsCount(std::string_view value);
std::string_view Trimmed(std::string_view text);

// The number after `key` and any spaces, '=', ':', '.' and quotes; thousands may have commas.
std::optional<double> NumberAfter(std::string_view line, std::string_view key);
std::optional<int64_t> CountAfter(std::string_view line, std::string_view key);
// The size after `key`, or before it: "79.15 GiB", "0 bytes".
std::optional<uint64_t> SizeAfter(std::string_view line, std::string_view key);
std::optional<uint64_t> SizeBefore(std::string_view line, std::string_view key);
// DeepSpeed's "31.1GB", which means 31.1 * 2^30 bytes.
std::optional<uint64_t> GibibytesAfter(std::string_view line, std::string_view key);

// Words as a shell or a printed Python list separates them, without quotes, brackets and commas.
std::vector<std::string> WordsIn(std::string_view line);
// "--per-device-train-batch-size" as "per_device_train_batch_size".
std::string PlainOption(std::string_view name);
// Whether a line is a command or continues one: it names a program, or it is an option alone.
bool IsCommand(std::string_view line);
// "OptimizerNames.ADAMW_TORCH" and "<OptimizerNames.ADAMW_TORCH: 'adamw_torch'>", without their
// quotes, as "adamw_torch"; other values unchanged.
std::string PlainOptimizer(std::string value);
// "NVIDIA H100 80GB HBM3", if a program or nvidia-smi prints the GPU's full name; else "".
std::string GpuNameIn(std::string_view line);

// `line` without colours and other control sequences.
std::string WithoutControls(std::string_view line);
// The rank in a line's prefix: "[rank3]:", "[default3]:".
std::optional<int> RankOf(std::string_view line);

}  // namespace zeroplan
