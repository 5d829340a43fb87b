// A model's training data as its own tokens, and the cache that keeps them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "text/documents/tokenize_files.h"

namespace zeroplan {

// A request for data.
struct DataRequest {
  std::vector<std::string> data;       // files, and folders of them (SelectData)
  std::filesystem::path model_folder;  // "": none
  int64_t vocab = 0;                   // the model's
  std::filesystem::path cache_folder;  // "": no cache
  int threads = 0;                     // 0: one a processor
  TextChoices choices;
  // Whether to log the forms that were recognised and the cache file: not on all ranks.
  bool says = true;
};

// The files for the model to read: those of `data`, or token files made from them.
//
// Text and records become tokens of the folder's tokenizer.json, with its chat template and
// eos_token (TokenizeFiles): one token file for each file, or for several small consecutive ones.
// They are kept in cache_folder/tokens under names derived from all that determines them: the
// content of the files, the tokenizer, the choices, for records also the folder's chat template. So
// nothing is done twice, whatever the files' names and places, and among concurrent processes one
// does it. A damaged file (ChecksumHolds) is made again. If all files together exceed CacheLimit(),
// the least recently used ones are removed.
//
// Returns `data` itself if the folder is empty or has no tokenizer.json, if the model's `vocab` is
// 256, so that its tokens are bytes, and if the data are token files. Throws Error(kUsage), with
// advice, for text together with token files; for token files that are damaged or of another
// tokenizer (CheckOrigin); for text if the folder has weights with other tokens than bytes and no
// tokenizer.json (unless checkpoints are there: that run may have been trained on bytes); for text
// with tokens that the tokenizer has and the model lacks, without a defined end token, or that
// changes while it is read; without a cache folder; for choices that would have no effect; and for
// data that are no text (RefuseAsBytes). Throws Error(kRuntime) if a file cannot be written.
std::vector<std::string> DataForModel(const DataRequest& request);

// Throws Error(kUsage) for a choice about records if the files of `data` are text only.
void CheckRecordChoices(const TextChoices& choices, std::span<const std::string> data);

// Throws as CheckOrigin if a token file among `data` (files, and folders of them, as in
// TokenDataset) is of another tokenizer than the one in `model_folder`. Checks nothing for a folder
// without a tokenizer.json, nor for files without an origin.
void CheckDataOrigin(std::span<const std::string> data, const std::filesystem::path& model_folder);

// Limit of the kept tokens' bytes: ZEROPLAN_CACHE_LIMIT ("50GB"), else 100 GB. Throws Error(kUsage)
// if it is no amount.
uint64_t CacheLimit();

// The cached token files, by last use, the oldest first.
struct CachedTokens {
  std::filesystem::path path;
  uint64_t bytes = 0;
  bool in_use = false;  // a run uses it
};
std::vector<CachedTokens> ListCachedTokens(const std::filesystem::path& cache_folder);
// Removes the oldest files that are not in use until the others have at most `limit` bytes. Returns
// the number of bytes removed.
uint64_t TrimCachedTokens(const std::filesystem::path& cache_folder, uint64_t limit);

}  // namespace zeroplan
