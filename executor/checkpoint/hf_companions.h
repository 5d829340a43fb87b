// What lies beside the weights of a Hugging Face folder, and has to go along with them: the config,
// the tokenizer, what the licence says.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/dtype.h"
#include "core/base/files.h"
#include "core/model/model_spec.h"

namespace zeroplan {

// The config.json of weights saved in `dtype`: that of the folder `source`, which must describe
// `spec`, with nothing but the dtype changed; the family's own if `source` is empty, has none, or
// has one that other programs may not read (zeroplan takes comments, for one).
std::string CompanionConfig(const ModelSpec& spec, const std::filesystem::path& source,
                            Dtype dtype);

// Copies generation_config.json, the tokenizer's files, the chat template and what says under which
// terms the weights may be used from `source` to `target`, each whole. Links are followed. What is
// there of the same name is replaced; nothing happens if both are one folder. Throws
// Error(kRuntime) naming the file.
void CopyCompanions(const std::filesystem::path& source, const std::filesystem::path& target,
                    IoHook* hook = nullptr);

}  // namespace zeroplan
