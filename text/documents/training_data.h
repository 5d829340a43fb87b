// What a model is trained on, in its own tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "text/documents/tokenize_files.h"

namespace zeroplan {

// `data` (files, and folders of them, as TokenDataset takes them) for the model of `model_folder`.
//
// Text and records become a file of the tokens of the folder's tokenizer.json, with its chat
// template and eos_token (TokenizeFiles, with `choices` and `threads`). It is kept in
// `cache_folder` under a name made of the tokenizer's digest, the choices, for records also the
// folder's chat template and tokenizer_config.json, and of each file's path, size and time of
// change: nothing is done twice, and of processes that ask at once one does it. A line says where
// the file is. Nobody deletes it.
//
// `data` itself is returned where the folder is empty or has no tokenizer.json, where the model's
// `vocab` is 256, so that bytes are its tokens, and where there are token files in it. Throws
// Error(kUsage) for token files of another tokenizer (CheckOrigin), for text where the folder has
// weights with other tokens than bytes and no tokenizer.json (unless checkpoints lie there: that
// run may have been trained on bytes), for text that nothing says the
// end of, or that changes while it is read, without a cache folder (""), with the way out in each,
// for choices that would change nothing; also for compressed files and tables whose bytes would be
// the tokens. Error(kRuntime) if the file cannot be written.
std::vector<std::string> DataForModel(std::span<const std::string> data,
                                      const std::filesystem::path& model_folder, int64_t vocab,
                                      const std::filesystem::path& cache_folder, int threads,
                                      const TextChoices& choices = {});

}  // namespace zeroplan
