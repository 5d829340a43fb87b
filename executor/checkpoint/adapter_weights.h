// Reads adapters (core/model/lora.h) together with the base that they were made for, and writes
// adapters alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

// The tensors of adapters in a folder that PEFT wrote, or of fresh adapters: A is uniform, as in
// torch.nn.Linear, and B zero. If the folder has modules that are trained whole, they are included.
// Adam's states read as 0. Read throws Error(kUsage) that names file and tensor for values that are
// NaN or infinite.
class AdapterSource : public StateSource {
 public:
  // Fresh adapters, initialised from `seed`.
  AdapterSource(std::span<const ParamTensor> table, uint64_t seed);
  // Throws Error(kUsage) that names file and tensor if a tensor is missing, has another shape or is
  // no part of the adapters, and if a tied head differs from the embedding. REQUIRES: `table` is
  // the table of `spec`, which WithAdapter returned.
  AdapterSource(const std::filesystem::path& folder, const ModelSpec& spec,
                std::span<const ParamTensor> table);

  // Warns if the file names the base that it was trained on, and that base's digest is not `digest`
  // (WeightsDigest), that of the base in `folder`.
  void WarnOfOtherBase(const std::string& digest, const std::filesystem::path& folder) const;
  // True if the file names its base.
  bool NamesBase() const { return !base().empty(); }
  // REQUIRES: the source reads a folder.
  std::string path() const { return file_->path().string(); }
  // True if this source holds the tensor of the table.
  bool Has(size_t tensor) const;
  void Read(const TensorRange& range, std::span<float> out) const override;

 private:
  struct Piece {
    uint64_t begin = 0, end = 0;
    const SafetensorsEntry* entry = nullptr;
  };

  std::string base() const;  // the digest of the base; "": the file names none

  // Reads elements of a tensor from `begin` on. Throws Error(kUsage) if one is not finite.
  void ReadFinite(const SafetensorsEntry& entry, uint64_t begin, std::span<float> out) const;
  // Throws if the file also has the tied head and it differs from the embedding.
  void CheckTwin(const ParamTensor& tensor, const SafetensorsEntry& a,
                 const SafetensorsEntry& b) const;

  std::span<const ParamTensor> table_;
  uint64_t seed_ = 0;
  std::optional<SafetensorsFile> file_;
  std::vector<std::vector<Piece>> pieces_;  // by tensor; empty: not in the file
};

// The base in `folder`, read as a model of `spec`. That model may have a head of its own where the
// base ties it, and another vocabulary, whose rows come from elsewhere.
class BaseWeights {
 public:
  // `resizes` as in HfWeightsSource: rows of added tokens are the mean of the others.
  BaseWeights(const std::filesystem::path& folder, const ModelSpec& spec, bool resizes);

  // Reads a range of `tensor`, which belongs to `spec`'s model.
  void Read(const ParamTensor& tensor, TensorRange range, std::span<float> out) const;
  std::string Describe() const { return source_.Describe(); }

 private:
  std::vector<ParamTensor> table_;
  HfWeightsSource source_;
  std::unordered_map<std::string_view, int> index_;  // by name; a tied head has two
};

// A model with adapters: the base in `folder`, plus the adapters of a folder, fresh adapters, or a
// checkpoint. REQUIRES: `table` and the checkpoint outlive it.
class AdaptedWeights : public StateSource {
 public:
  // Reads the adapters in `adapter`, or makes fresh ones if it is empty. `resizes`: see
  // BaseWeights.
  AdaptedWeights(const std::filesystem::path& folder, const std::filesystem::path& adapter,
                 const ModelSpec& spec, std::span<const ParamTensor> table, uint64_t seed,
                 bool resizes = false);

  // From here on, reads tensors that checkpoints hold from `checkpoint`.
  void ReadTunedFrom(const StateSource& checkpoint) { checkpoint_ = &checkpoint; }
  void Read(const TensorRange& range, std::span<float> out) const override;
  std::string Describe() const { return base_.Describe(); }
  const AdapterSource& adapter() const { return adapter_; }

 private:
  // Reads the rows of single tokens from the embedding or head that they replace.
  void ReadTokenRows(const ParamTensor& tensor, const TensorRange& range,
                     std::span<float> out) const;

  std::span<const ParamTensor> table_;
  BaseWeights base_;
  AdapterSource adapter_;
  const StateSource* checkpoint_ = nullptr;
};

// The base with its adapters merged: W + s B A, in fp32. The tensors are those of the model without
// adapters, which may have another vocabulary, and a head of its own where the base ties it. Read
// throws Error(kUsage) if a sum is infinite.
class MergedWeights : public StateSource {
 public:
  // The base is in `folder`, the adapters in `adapter`. `spec`: from WithAdapter. Warns if the
  // adapters were trained on another base.
  MergedWeights(const std::filesystem::path& folder, const std::filesystem::path& adapter,
                const ModelSpec& spec);

  // The table of BaseModel(spec), whose tensors Read returns.
  std::span<const ParamTensor> table() const { return merged_table_; }
  void Read(const TensorRange& range, std::span<float> out) const override;

 private:
  // Overwrites rows in a range with the rows of single tokens that replace them.
  void PutTokenRows(size_t index, const TensorRange& range, std::span<float> out) const;

  struct Delta {
    int64_t rank = 0, in = 0;
    bool out_in = false;
    std::vector<float> down, up;  // A [G r, in]; B [U, r] times the scale
    std::vector<int> group;       // by output: the place of its linear in the pair, -1: none
    std::vector<int64_t> up_row;  // by output: its row of B
  };

  // Returns the sum that the pair of tensors `down` and `up` of the table adds to a matrix.
  Delta DeltaOf(const ParamTensor& weight, size_t down, size_t up) const;
  void Add(const Delta& delta, uint64_t cols, const TensorRange& range, std::span<float> out) const;

  std::vector<ParamTensor> merged_table_, table_;
  BaseWeights base_;
  AdapterSource adapter_;
  // By merged tensor: the tensor of the table, if the adapter has it whole.
  std::vector<int> whole_;
  std::vector<std::vector<Delta>> deltas_;  // for each pair
  // By merged tensor: its rows of single tokens that the adapter replaces.
  std::vector<std::unordered_map<uint64_t, std::vector<float>>> rows_;
};

// The tensors of a table that an adapter's file holds: HfTensors, with a tied head under both
// names, as PEFT reads it.
std::vector<HfTensor> AdapterTensors(std::span<const ParamTensor> table);
uint64_t AdapterBytes(std::span<const ParamTensor> table, Dtype dtype);

// Writes the adapters that `source` holds into `folder`: adapter_model.safetensors and
// adapter_config.json, which PEFT loads, and the tokenizer's files from options.source. Both files
// are on disk before either is renamed into place. `base`: the model that the adapters are for.
void WriteAdapter(const std::filesystem::path& folder, const ModelSpec& spec,
                  std::span<const ParamTensor> table, const StateSource& source,
                  const std::string& base, const std::string& base_digest,
                  const HfExportOptions& options);

}  // namespace zeroplan
