// Weights out, as transformers reads them.
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
  // fp32, bf16 or fp16. fp32 is what was trained, exactly; 16 bits are half the size and round, as
  // a run of that dtype rounds its parameters.
  Dtype dtype = Dtype::kF32;
  // The most bytes of one file; a larger export becomes several files with an index. A tensor is
  // never cut: a larger one is a file of its own. The default is Hugging Face's.
  uint64_t max_shard_bytes = 5'000'000'000;
  // The folder that training started from: its config.json, tokenizer and licence go along. Empty:
  // there is none.
  std::filesystem::path source;
  // Another, whose files win: the adapter's that is merged. Where it has a tokenizer.json, none of
  // `source` goes along that belongs to a tokenizer. Empty: there is none.
  std::filesystem::path second_source;
  // Tokens that end a text, for generation_config.json (eos_token_id). Empty: those of the sources.
  std::vector<int32_t> stop_tokens;
  IoHook* hook = nullptr;
};

// Writes the master weights in `source` into `folder`, which
// transformers.AutoModelForCausalLM.from_pretrained(folder) loads: unpadded vocabulary, tied head
// left out, parameters that are published in parts cut into them. One model.safetensors, or
// model-00001-of-0000N.safetensors and model.safetensors.index.json; config.json and what goes
// along with it (CheckCompanions). The folder is made if need be.
//
// All is on disk before anything takes its place. A single file takes it in one step. Before
// several do, those of an earlier save are removed: cut off in between, part of the new ones is
// there, which no reader takes for the whole. config.json is the last, so that a folder that had
// none holds a model once all of it is there. Throws Error(kRuntime) if something cannot be
// written; where that is a file that goes along, all others are in place by then. Hears
// ThrowIfInterrupted until the first takes its place.
void WriteHfWeights(const std::filesystem::path& folder, const ModelSpec& spec,
                    std::span<const ParamTensor> table, const StateSource& source,
                    const HfExportOptions& options = {});

// Throws Error(kUsage) where `folder`, which no run has saved to yet, has a file that
// WriteHfWeights would replace, unless a killed WriteHfWeights left it. `option` named the folder.
void CheckExportFolder(const std::filesystem::path& folder, const std::filesystem::path& source,
                       std::string_view option);

// Bytes of all tensors that it writes; headers and companions are small beside them.
uint64_t HfWeightsBytes(std::span<const ParamTensor> table, Dtype dtype);

// Cuts tensors of `bytes` into files of at most `max_bytes`, in order: the first tensor of each
// file. Empty only if there are no tensors.
std::vector<size_t> CutIntoShards(std::span<const uint64_t> bytes, uint64_t max_bytes);

// What lies beside the weights of a Hugging Face folder, and has to go along with them: the config,
// the tokenizer, what the licence says.

// The config.json of weights saved in `dtype`: that of the folder `source`, which must describe
// `spec`, with nothing but the dtype, the vocabulary and the positions changed; the family's own if
// `source` is empty, has none, or has one that other programs may not read (zeroplan takes
// comments, for one).
std::string CompanionConfig(const ModelSpec& spec, const std::filesystem::path& source,
                            Dtype dtype);

// generation_config.json, the tokenizer's files, the chat templates and what says under which terms
// the weights may be used go along from `source`, each whole, unless that is the folder they go to.
// Links are followed within the folder, and those of Hugging Face's cache; others are left out,
// which this says. Returns their bytes; 0 for an empty `source`. Throws Error(kUsage) for a file of
// more than 1 GiB, which is none of these.
uint64_t CheckCompanions(const std::filesystem::path& source);

}  // namespace zeroplan
