// What a model is trained on, in its own tokens, and where they are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "text/documents/tokenize_files.h"

namespace zeroplan {

// What data is wanted for.
struct DataRequest {
  std::vector<std::string> data;       // files, and folders of them (SelectData)
  std::filesystem::path model_folder;  // "": none
  int64_t vocab = 0;                   // of the model
  std::filesystem::path cache_folder;  // "": there is none
  int threads = 0;                     // 0: one a processor
  TextChoices choices;
  // Whether lines say what was taken, and where it is kept: not of all ranks.
  bool says = true;
};

// The files that the model reads: those of `data`, or files of tokens that were made of them.
//
// Text and records become tokens of the folder's tokenizer.json, with its chat template and
// eos_token (TokenizeFiles), a file of tokens for each file, or for some small ones that follow one
// another. They are kept in cache_folder/tokens under names made of what decides them: the content
// of the files, the tokenizer, the choices, for records also what the folder says of its chat
// template. So nothing is done twice, whatever files are called and wherever they lie, and of
// processes that ask at once one does it. A file that was damaged (ChecksumHolds) is made again.
// What was not used for longest is removed when all take more than CacheLimit().
//
// `data` itself is returned where the folder is empty or has no tokenizer.json, where the model's
// `vocab` is 256, so that bytes are its tokens, and where it is token files. Throws Error(kUsage)
// for text beside token files, for token files that are damaged or of another tokenizer
// (CheckOrigin), for text where the folder has weights with other tokens than bytes and no
// tokenizer.json (unless checkpoints lie there: that run may have been trained on bytes), for text
// with tokens that the tokenizer has and the model does not, that nothing says the end of, or that
// changes while it is read, without a cache folder, for choices that would change nothing, and for
// what is no text (RefuseAsBytes), with the way out in each; Error(kRuntime) if a file cannot be
// written.
std::vector<std::string> DataForModel(const DataRequest& request);

// Throws Error(kUsage) for a choice that is about records where the files of `data` are text alone.
void CheckRecordChoices(const TextChoices& choices, std::span<const std::string> data);

// Throws as CheckOrigin if a token file among `data` (files, and folders of them, as TokenDataset
// takes them) is of another tokenizer than the one in `model_folder`. A folder without a
// tokenizer.json has nothing to compare with, and neither have files without an origin.
void CheckDataOrigin(std::span<const std::string> data, const std::filesystem::path& model_folder);

// Bytes that kept tokens may take: ZEROPLAN_CACHE_LIMIT ("50GB"), else 100 GB. Throws Error(kUsage)
// if it is no amount.
uint64_t CacheLimit();

// The files of tokens that are kept, by when they were last used, the oldest first.
struct CachedTokens {
  std::filesystem::path path;
  uint64_t bytes = 0;
  bool in_use = false;  // by a run
};
std::vector<CachedTokens> ListCachedTokens(const std::filesystem::path& cache_folder);
// Removes the oldest that are not in use until the others take at most `limit` bytes. Returns how
// many bytes were removed.
uint64_t TrimCachedTokens(const std::filesystem::path& cache_folder, uint64_t limit);

}  // namespace zeroplan
