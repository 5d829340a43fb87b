// The tokens at which a model's text is over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace zeroplan {

// The tokens that end a text, by the model folder's files: "eos_token_id" (a token, or a list of
// them) of generation_config.json, where that says it, else of config.json; as transformers has it.
// Rising; empty: neither says any. Ids outside `vocab` are left out: a model of another size may
// have kept its family's. Throws Error(kUsage) naming file, line and key for anything else than
// tokens.
std::vector<int32_t> StopTokensOf(const std::filesystem::path& folder, int64_t vocab);

}  // namespace zeroplan
