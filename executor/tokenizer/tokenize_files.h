// Files of text as a file of tokens, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/durable_file.h"
#include "executor/data/token_file.h"
#include "executor/tokenizer/tokenizer.h"

namespace zeroplan {

TokenFileOrigin OriginOf(const Tokenizer& tokenizer);

// Throws Error(kUsage) naming `path` if its header names another tokenizer, or if it has a token
// that this tokenizer does not.
void CheckOrigin(const TokenFileExtent& extent, const std::filesystem::path& path,
                 const Tokenizer& tokenizer);

// Throws as CheckOrigin if a token file among `data` (files, and folders of them, as TokenDataset
// takes them) is of another tokenizer than the one in `model_folder`. A folder without a
// tokenizer.json has nothing to compare with, and neither have files without an origin.
void CheckDataOrigin(std::span<const std::string> data, const std::filesystem::path& model_folder);

// The token that ends a text by the folder's tokenizer_config.json ("eos_token"); nullopt: there is
// no such file, or it names none. `path` as for Tokenizer::FromFile. Throws Error(kUsage) if it
// names one that the tokenizer does not have.
std::optional<int32_t> EndOfText(const std::filesystem::path& path, const Tokenizer& tokenizer);

struct TokenizedFiles {
  uint64_t documents = 0;
  uint64_t bytes = 0;
  uint64_t tokens = 0;
  uint32_t token_bytes = 0;  // 2 or 4
};
// Each file, also each one below a folder, is a document: its ids, then `end_of_text`. Made by
// `threads` threads (0: one a processor), some files at a time: what memory it takes is a multiple
// of the largest file. Throws Error(kUsage) naming what is not there, is empty altogether, or is a
// token file already.
TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer, std::span<const std::string> paths,
                             int32_t end_of_text, const std::filesystem::path& output, int threads,
                             IoHook* hook = nullptr);

// The text of tokens [begin, begin + count) of a token file, cut at its end, special tokens
// included. Throws as CheckOrigin.
std::string TokensAsText(const Tokenizer& tokenizer, const std::filesystem::path& path,
                         uint64_t begin, uint64_t count);

}  // namespace zeroplan
