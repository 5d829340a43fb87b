#include "text/tokenizer/stop_tokens.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "core/base/json_section.h"
#include "core/base/json_source.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// nullopt: there is no such file, or it does not say.
std::optional<std::vector<int32_t>> ReadStopTokens(const fs::path& file, int64_t vocab) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  const JsonNode document = ParseJsonText(ReadTextFile(file), file.string());
  JsonSection section(&document, "", file.string());
  const JsonNode* value = section.Value("eos_token_id");
  if (value == nullptr) return std::nullopt;
  std::vector<int32_t> tokens;
  const auto add = [&](const JsonNode& node) {
    const std::optional<double> number = ScalarNumber(node);
    if (!number || *number < 0 || *number != static_cast<double>(static_cast<int64_t>(*number)) ||
        *number > std::numeric_limits<int32_t>::max()) {
      section.Fail("eos_token_id", "{} is no token; use its number, or a list of numbers",
                   node.Quote());
    }
    if (*number < static_cast<double>(vocab)) tokens.push_back(static_cast<int32_t>(*number));
  };
  if (value->is_array()) {
    for (const JsonNode& item : value->elements) add(item);
  } else {
    add(*value);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace

std::vector<int32_t> StopTokensOf(const fs::path& folder, int64_t vocab) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (auto tokens = ReadStopTokens(folder / name, vocab)) return *std::move(tokens);
  }
  return {};
}

}  // namespace zeroplan
