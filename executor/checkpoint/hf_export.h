// Writes weights in the format that transformers reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/files.h"
#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

struct HfExportOptions {
  // fp32, bf16 or fp16. fp32 holds the trained weights exactly. 16 bits have half the size and
  // round as a run of that dtype rounds its parameters.
  Dtype dtype = Dtype::kF32;
  // The most bytes of one file; a larger export becomes several files with an index. A tensor is
  // never cut; one that is larger gets its own file. The default is Hugging Face's.
  uint64_t max_shard_bytes = 5'000'000'000;
  // The folder that training started from. Its config.json, tokenizer and licence are copied.
  // Empty: there is none.
  std::filesystem::path source;
  // A second folder, that of a merged adapter, whose files take precedence. If it has a
  // tokenizer.json, no tokenizer file of `source` is copied. Empty: there is none.
  std::filesystem::path second_source;
  // Tokens that end a text, for generation_config.json (eos_token_id). Empty: the sources' tokens.
  std::vector<int32_t> stop_tokens;
  IoHook* hook = nullptr;
};

// Writes the master weights in `source` into `folder`, which
// transformers.AutoModelForCausalLM.from_pretrained(folder) loads: the vocabulary is unpadded, a
// tied head is left out, and parameters that are published in parts are cut into these parts.
// Writes one model.safetensors, or model-00001-of-0000N.safetensors and
// model.safetensors.index.json; also config.json and its companions (CheckCompanions). Creates the
// folder if it is missing.
//
// All files are on disk before the first is renamed into place. A single weight file is replaced in
// one step. Before several files are renamed, those of an earlier save are removed; an interruption
// in between leaves only some of the new files, which no reader accepts as complete. config.json is
// renamed last, so that a folder that had none holds a model only once it is complete. Throws
// Error(kRuntime) if a file cannot be written; if it is a companion, all other files are in place
// by then. Calls ThrowIfInterrupted until the first rename.
void WriteHfWeights(const std::filesystem::path& folder, const ModelSpec& spec,
                    std::span<const ParamTensor> table, const StateSource& source,
                    const HfExportOptions& options = {});

// Throws Error(kUsage) if `folder`, which no run has saved to yet, has a file that WriteHfWeights
// would replace, unless a killed WriteHfWeights left it. `option`: the option that named the
// folder.
void CheckExportFolder(const std::filesystem::path& folder, const std::filesystem::path& source,
                       std::string_view option);

// The bytes of all tensors that WriteHfWeights writes; headers and companions are small in
// comparison.
uint64_t HfWeightsBytes(std::span<const ParamTensor> table, Dtype dtype);

// Distributes tensors of `bytes` over files of at most `max_bytes`, in order. Returns the first
// tensor of each file; empty only if there are no tensors.
std::vector<size_t> CutIntoShards(std::span<const uint64_t> bytes, uint64_t max_bytes);

// Below: the companions of the weights in a Hugging Face folder, which are copied with them: the
// config, the tokenizer, the licence.

// The config.json of weights saved in `dtype`. It is the one of the folder `source`, which must
// describe `spec`; only the dtype, the vocabulary and the positions are changed. It is the family's
// own if `source` is empty, has no config.json, or has one that other programs cannot read
// (zeroplan accepts comments, for example).
std::string CompanionConfig(const ModelSpec& spec, const std::filesystem::path& source,
                            Dtype dtype);

// Checks the companions that are copied from `source`, each whole: generation_config.json, the
// tokenizer's files, the chat templates and the licence files. None is copied if `source` is the
// target folder. Links are followed within the folder and into Hugging Face's cache; other links
// are left out with a notice. Returns the companions' bytes; 0 for an empty `source`. Throws
// Error(kUsage) for a file of more than 1 GiB, because no companion is that large.
uint64_t CheckCompanions(const std::filesystem::path& source);

}  // namespace zeroplan
