// Adapters (core/model/lora.h) and the base that they were made for: read together, written alone.
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

// The tensors of adapters in a folder as PEFT writes it, or fresh ones: A uniform, as
// torch.nn.Linear has it, B zero. Modules that are trained whole are there too where the folder has
// them. Adam's states read as 0. Read throws Error(kUsage) naming file and tensor for values that
// are no numbers or infinite.
class AdapterSource : public StateSource {
 public:
  // Fresh ones of `seed`.
  AdapterSource(std::span<const ParamTensor> table, uint64_t seed);
  // Throws Error(kUsage) naming file and tensor for what is missing, of another shape, or no part
  // of the adapters, and for a tied head that differs from the embedding. REQUIRES: `table` is of
  // `spec`, WithAdapter's.
  AdapterSource(const std::filesystem::path& folder, const ModelSpec& spec,
                std::span<const ParamTensor> table);

  // Warns where the file names the base that it was trained on, and that has other weights than
  // those of `digest` (WeightsDigest), in `folder`.
  void WarnOfOtherBase(const std::string& digest, const std::filesystem::path& folder) const;
  // Whether the file names one.
  bool NamesBase() const { return !base().empty(); }
  // REQUIRES: it is of a folder.
  std::string path() const { return file_->path().string(); }
  // Whether a tensor of the table is read from here.
  bool Has(size_t tensor) const;
  void Read(const TensorRange& range, std::span<float> out) const override;

 private:
  struct Piece {
    uint64_t begin = 0, end = 0;
    const SafetensorsEntry* entry = nullptr;
  };

  std::string base() const;  // its digest; "": none is named

  // Elements of a tensor from `begin` on. Throws Error(kUsage) for one that is not finite.
  void ReadFinite(const SafetensorsEntry& entry, uint64_t begin, std::span<float> out) const;
  // Throws where a tied head is there, too, and is not the embedding.
  void CheckTwin(const ParamTensor& tensor, const SafetensorsEntry& a,
                 const SafetensorsEntry& b) const;

  std::span<const ParamTensor> table_;
  uint64_t seed_ = 0;
  std::optional<SafetensorsFile> file_;
  std::vector<std::vector<Piece>> pieces_;  // by tensor; empty: not in the file
};

// The base in `folder`, for what is made of it by `spec`: a head of its own that the base ties, and
// another vocabulary, whose rows come from elsewhere.
class BaseWeights {
 public:
  // `resizes` as HfWeightsSource has it: rows of added tokens are the mean of the others.
  BaseWeights(const std::filesystem::path& folder, const ModelSpec& spec, bool resizes);

  // Reads a tensor of `spec`'s model by what it is in that.
  void Read(const ParamTensor& tensor, TensorRange range, std::span<float> out) const;
  std::string Describe() const { return source_.Describe(); }

 private:
  std::vector<ParamTensor> table_;
  HfWeightsSource source_;
  std::unordered_map<std::string_view, int> index_;  // by name, of both of a tied head
};

// A model with adapters, of the base in `folder` and what `tuned` has: a checkpoint, an
// AdapterSource. REQUIRES: `tuned` and `table` outlive it.
class AdaptedWeights : public StateSource {
 public:
  // The adapters are those in `adapter`, or where that is empty fresh ones. `resizes`: see
  // BaseWeights.
  AdaptedWeights(const std::filesystem::path& folder, const std::filesystem::path& adapter,
                 const ModelSpec& spec, std::span<const ParamTensor> table, uint64_t seed,
                 bool resizes = false);

  // Reads what checkpoints hold from there instead.
  void ReadTunedFrom(const StateSource& checkpoint) { checkpoint_ = &checkpoint; }
  void Read(const TensorRange& range, std::span<float> out) const override;
  std::string Describe() const { return base_.Describe(); }
  const AdapterSource& adapter() const { return adapter_; }

 private:
  // Rows of single tokens as the embedding or head that they stand in for has them.
  void ReadTokenRows(const ParamTensor& tensor, const TensorRange& range,
                     std::span<float> out) const;

  std::span<const ParamTensor> table_;
  BaseWeights base_;
  AdapterSource adapter_;
  const StateSource* checkpoint_ = nullptr;
};

// The base with its adapters merged: W + s B A, in fp32. Of the tensors of the model without
// adapters, which may have another vocabulary and a head of its own where the base ties it. Read
// throws Error(kUsage) for sums that are infinite.
class MergedWeights : public StateSource {
 public:
  // The base in `folder`, the adapters in `adapter`. `spec`: WithAdapter's. Warns where these were
  // trained on another base.
  MergedWeights(const std::filesystem::path& folder, const std::filesystem::path& adapter,
                const ModelSpec& spec);

  // The tensors that are read, of BaseModel(spec).
  std::span<const ParamTensor> table() const { return merged_table_; }
  void Read(const TensorRange& range, std::span<float> out) const override;

 private:
  // Puts rows of single tokens into a range, in place of those that they replace.
  void PutTokenRows(size_t index, const TensorRange& range, std::span<float> out) const;

  struct Delta {
    int64_t rank = 0, in = 0;
    bool out_in = false;
    std::vector<float> down, up;  // A [G r, in]; B [U, r] times the scale
    std::vector<int> group;       // by output: its linear's place among the pair's, -1 none
    std::vector<int64_t> up_row;  // by output: its row of B
  };

  // Returns what the pair of rows `down` and `up` of the table adds to a matrix.
  Delta DeltaOf(const ParamTensor& weight, size_t down, size_t up) const;
  void Add(const Delta& delta, uint64_t cols, const TensorRange& range, std::span<float> out) const;

  std::vector<ParamTensor> merged_table_, table_;
  BaseWeights base_;
  AdapterSource adapter_;
  // By tensor that is merged: that of the table if the adapter has it whole.
  std::vector<int> whole_;
  std::vector<std::vector<Delta>> deltas_;  // for each pair
  // The rows of single tokens that it has anew.
  std::vector<std::unordered_map<uint64_t, std::vector<float>>> rows_;
};

// The tensors that an adapter's file has of a table: HfTensors, and a tied head under both names,
// as PEFT reads it.
std::vector<HfTensor> AdapterTensors(std::span<const ParamTensor> table);
uint64_t AdapterBytes(std::span<const ParamTensor> table, Dtype dtype);

// Writes the adapters that `source` holds into `folder`: adapter_model.safetensors and
// adapter_config.json, which PEFT loads, and what belongs to the tokenizer from options.source.
// Both are on disk before either takes its place. `base`: what the adapters are to be put on.
void WriteAdapter(const std::filesystem::path& folder, const ModelSpec& spec,
                  std::span<const ParamTensor> table, const StateSource& source,
                  const std::string& base, const std::string& base_digest,
                  const HfExportOptions& options);

}  // namespace zeroplan
