#include "executor/checkpoint/adapter_weights.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/families/adapter_config.h"
#include "core/model/lora.h"
#include "executor/kernels/param_init.h"

namespace zeroplan {
namespace {

// "base_model.model.lm_head.weight", or as PEFT has a module that it saved whole in memory.
std::string_view WithoutAdapterPrefix(std::string_view name) {
  const std::string_view prefix = kAdapterPrefix;
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

AdapterSource::AdapterSource(std::span<const ParamTensor> table, uint64_t seed)
    : table_(table), seed_(seed), pieces_(table.size()) {}

AdapterSource::AdapterSource(const std::filesystem::path& folder,
                             std::span<const ParamTensor> table)
    : table_(table),
      file_(SafetensorsFile::Open(folder / kAdapterWeightsFile)),
      pieces_(table.size()) {
  const std::string path = file_->path().string();
  std::unordered_map<std::string_view, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : file_->entries()) {
    const auto [other, fresh] = entries.emplace(WithoutAdapterPrefix(entry.name), &entry);
    if (fresh) continue;
    ThrowUsage("{}: tensors '{}' and '{}' are the same part of an adapter; keep one", path,
               other->second->name, entry.name);
  }
  for (const HfTensor& tensor : HfTensors(table)) {
    const auto found = entries.find(tensor.name);
    if (found == entries.end()) {
      ThrowUsage("{}: tensor '{}{}' of shape {} is missing; use an adapter of this model", path,
                 kAdapterPrefix, tensor.name, FormatShape(tensor.shape));
    }
    const SafetensorsEntry& entry = *found->second;
    if (entry.shape != tensor.shape) {
      ThrowUsage("{}: tensor '{}' has shape {}, expected {}; use an adapter of this model", path,
                 entry.name, FormatShape(entry.shape), FormatShape(tensor.shape));
    }
    pieces_[tensor.param].push_back({tensor.begin, tensor.begin + tensor.elements, &entry});
    entries.erase(found);
  }
  if (entries.empty()) return;
  ThrowUsage("{}: tensor '{}' is no part of the adapters that {} names; keep the two together",
             path, entries.begin()->second->name, kAdapterConfigFile);
}

std::string AdapterSource::base() const {
  if (!file_) return "";
  const auto named = file_->metadata().find(kBaseDigest);
  return named == file_->metadata().end() ? "" : named->second;
}

void AdapterSource::WarnOfOtherBase(const std::string& digest,
                                    const std::filesystem::path& folder) const {
  const std::string of = base();
  if (of.empty() || of == digest) return;
  LogWarning(
      "{}: was trained on other weights than those in {}: the two together are another model",
      file_->path().string(), folder.string());
}

bool AdapterSource::Has(size_t tensor) const {
  return file_ ? !pieces_[tensor].empty() : IsAdapter(table_[tensor]);
}

void AdapterSource::Read(const TensorRange& range, std::span<float> out) const {
  const auto index = static_cast<size_t>(range.tensor);
  if (range.state != StateKind::kMaster) return std::fill(out.begin(), out.end(), 0.0f);
  if (!file_) {
    return cpu::InitTensor(table_[index], range.tensor, seed_, range.begin,
                           range.begin + range.count, out.data());
  }
  std::fill(out.begin(), out.end(), 0.0f);  // the padding of a vocabulary
  for (const Piece& piece : pieces_[index]) {
    const uint64_t begin = std::max(piece.begin, range.begin);
    const uint64_t end = std::min(piece.end, range.begin + range.count);
    if (begin >= end) continue;
    const std::span<float> values = out.subspan(begin - range.begin, end - begin);
    file_->ReadFloats(*piece.entry, begin - piece.begin, values);
    for (const float value : values) {
      if (std::isfinite(value)) continue;
      ThrowUsage("{}: tensor '{}' has a value of {}; use an adapter whose training did not diverge",
                 path(), piece.entry->name, value);
    }
  }
}

AdaptedWeights::AdaptedWeights(const std::filesystem::path& folder,
                               const std::filesystem::path& adapter, const ModelSpec& spec,
                               std::span<const ParamTensor> table, uint64_t seed)
    : table_(table),
      base_table_(BuildParamTable(BaseModel(spec))),
      base_(folder, BaseModel(spec), base_table_),
      adapter_(adapter.empty() ? AdapterSource(table, seed) : AdapterSource(adapter, table)) {
  std::unordered_map<std::string_view, int> index;
  for (size_t i = 0; i < base_table_.size(); ++i) {
    index.emplace(base_table_[i].name, static_cast<int>(i));
  }
  for (const ParamTensor& tensor : table) {
    const auto found = index.find(tensor.name);
    base_index_.push_back(found == index.end() ? -1 : found->second);
  }
}

void AdaptedWeights::Read(const TensorRange& range, std::span<float> out) const {
  const auto index = static_cast<size_t>(range.tensor);
  if (checkpoint_ != nullptr && table_[index].saved) return checkpoint_->Read(range, out);
  if (adapter_.Has(index)) return adapter_.Read(range, out);
  TensorRange of_base = range;
  of_base.tensor = base_index_[index];
  ZEROPLAN_CHECK(of_base.tensor >= 0, "nothing has {}", table_[index].name);
  base_.Read(of_base, out);
}

MergedWeights::MergedWeights(const std::filesystem::path& folder,
                             const std::filesystem::path& adapter, const ModelSpec& spec)
    : base_table_(BuildParamTable(BaseModel(spec))),
      table_(BuildParamTable(spec)),
      base_(folder, BaseModel(spec), base_table_),
      adapter_(adapter, table_),
      whole_(base_table_.size(), -1),
      deltas_(base_table_.size()) {
  if (adapter_.NamesBase()) adapter_.WarnOfOtherBase(WeightsDigest(folder), folder);
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < table_.size(); ++i) index.emplace(table_[i].name, i);
  const auto key = [](int layer, int id) { return (int64_t{layer} + 1) << 32 | id; };
  std::unordered_map<int64_t, size_t> adapters;
  for (size_t i = 0; i < table_.size(); ++i) {
    if (IsAdapter(table_[i])) adapters.emplace(key(table_[i].layer, table_[i].id), i);
  }
  for (size_t i = 0; i < base_table_.size(); ++i) {
    const ParamTensor& weight = base_table_[i];
    const size_t here = index.at(weight.name);
    if (table_[here].saved) whole_[i] = static_cast<int>(here);
    for (int pair = 0; pair < kMostPairs; ++pair) {
      const auto down = adapters.find(key(weight.layer, LoraDownId(weight.id, pair)));
      if (down == adapters.end()) break;
      const size_t up = adapters.at(key(weight.layer, LoraUpId(weight.id, pair)));
      deltas_[i].push_back(DeltaOf(weight, down->second, up));
    }
  }
}

MergedWeights::Delta MergedWeights::DeltaOf(const ParamTensor& weight, size_t down,
                                            size_t up) const {
  const auto read = [&](size_t tensor) {
    std::vector<float> all(table_[tensor].elements());
    adapter_.Read({static_cast<int>(tensor), StateKind::kMaster, 0, all.size()}, all);
    return all;
  };
  Delta delta;
  delta.out_in = weight.out_in;
  delta.in = weight.shape[weight.out_in ? 1 : 0];
  delta.rank = table_[up].shape[1];
  delta.down = read(down);
  delta.up = read(up);
  for (float& value : delta.up) value *= table_[up].lora_scale;
  const int64_t out = weight.shape[weight.out_in ? 0 : 1];
  delta.group.assign(static_cast<size_t>(out), -1);
  delta.up_row.assign(static_cast<size_t>(out), 0);
  ColumnsOf(weight, table_[up]).ForEach(out, [&delta](const AdaptedColumns::Part& part) {
    for (int64_t o = part.begin; o < part.end; ++o) {
      delta.group[static_cast<size_t>(o)] = static_cast<int>(part.place);
      delta.up_row[static_cast<size_t>(o)] = part.up_begin + o - part.begin;
    }
  });
  return delta;
}

void MergedWeights::Read(const TensorRange& range, std::span<float> out) const {
  const auto index = static_cast<size_t>(range.tensor);
  if (range.state == StateKind::kMaster && whole_[index] >= 0) {
    return adapter_.Read({whole_[index], range.state, range.begin, range.count}, out);
  }
  base_.Read(range, out);
  if (range.state != StateKind::kMaster || deltas_[index].empty()) return;
  const ParamTensor& weight = base_table_[index];
  const auto is_finite = [](float value) { return std::isfinite(value); };
  const bool sound = std::all_of(out.begin(), out.end(), is_finite);
  for (const Delta& delta : deltas_[index]) {
    Add(delta, static_cast<uint64_t>(weight.shape[1]), range, out);
  }
  for (const float value : out) {
    if (is_finite(value) || !sound) continue;
    ThrowUsage("{}: what it adds to {} makes values of {}; use an adapter of this model",
               adapter_.path(), weight.name, value);
  }
}

void MergedWeights::Add(const Delta& d, uint64_t cols, const TensorRange& range,
                        std::span<float> out) const {
  for (uint64_t at = range.begin; at < range.begin + range.count;) {
    const uint64_t row = at / cols, first = at % cols;
    const uint64_t count = std::min(cols - first, range.begin + range.count - at);
    float* const to = out.data() + (at - range.begin);
    for (int64_t r = 0; r < d.rank; ++r) {
      if (d.out_in) {  // row: an output
        const int group = d.group[row];
        if (group < 0) break;
        const float b = d.up[static_cast<size_t>(d.up_row[row] * d.rank + r)];
        const float* a = d.down.data() + (group * d.rank + r) * d.in + static_cast<int64_t>(first);
        for (uint64_t i = 0; i < count; ++i) to[i] += b * a[i];
      } else {  // row: an input
        for (uint64_t i = 0; i < count; ++i) {
          const uint64_t o = first + i;
          if (d.group[o] < 0) continue;
          to[i] += d.up[static_cast<size_t>(d.up_row[o] * d.rank + r)] *
                   d.down[static_cast<size_t>((d.group[o] * d.rank + r) * d.in) + row];
        }
      }
    }
    at += count;
  }
}

}  // namespace zeroplan
