#include "executor/checkpoint/adapter_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
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

AdapterSource::AdapterSource(const std::filesystem::path& folder, const ModelSpec& spec,
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
    auto found = entries.find(tensor.name);
    const std::string module(ModuleOf(tensor.name));
    if (found == entries.end()) found = entries.find(module + kTokensBase);
    const ParamTensor& param = table[tensor.param];
    const auto twin = *param.twin == '\0' ? entries.end() : entries.find(param.twin);
    if (found == entries.end()) found = twin;
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
    if (twin != entries.end() && twin != found) {
      CheckTwin(param, entry, *twin->second);
      entries.erase(twin);
    }
    entries.erase(found);
  }
  const VocabularyModules modules = VocabularyModulesOf(spec);
  for (const std::string& module : {modules.embedding, modules.head}) {
    // Modules that PEFT trains whole, as it has them in memory.
    for (const char* again : {".modules_to_save.weight", ".original_module.weight"}) {
      entries.erase(module + again);
    }
  }
  if (spec.tied_head && !spec.lora_tokens.empty()) {  // both names, where ensure_weight_tying is
    entries.erase(modules.head + kTokensBase);
    const auto of_head = entries.find(modules.head + kTokensDelta);
    if (of_head != entries.end()) {
      const std::string name = modules.embedding + kTokensDelta;
      const auto rows = std::find_if(table.begin(), table.end(),
                                     [&name](const ParamTensor& t) { return t.name == name; });
      const auto& pieces = pieces_[static_cast<size_t>(rows - table.begin())];
      CheckTwin(*rows, *pieces.front().entry, *of_head->second);
      entries.erase(of_head);
    }
  }
  if (entries.empty()) return;
  ThrowUsage("{}: tensor '{}' is no part of the adapters that {} names; keep the two together",
             path, entries.begin()->second->name, kAdapterConfigFile);
}

void AdapterSource::CheckTwin(const ParamTensor& tensor, const SafetensorsEntry& a,
                              const SafetensorsEntry& b) const {
  constexpr uint64_t kAtOnce = uint64_t{1} << 20;
  bool same = a.shape == b.shape;
  std::vector<float> of_a, of_b;
  for (uint64_t begin = 0; same && begin < a.elements; begin += kAtOnce) {
    of_a.resize(std::min(kAtOnce, a.elements - begin));
    of_b.resize(of_a.size());
    file_->ReadFloats(a, begin, of_a);
    file_->ReadFloats(b, begin, of_b);
    same = std::memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(float)) == 0;
  }
  if (same) return;
  ThrowUsage(
      "{}: tensor '{}' differs from '{}', and {} ties the two; keep what was trained, or name both "
      "in {} without ensure_weight_tying",
      file_->path().string(), b.name, a.name, ModuleOf(tensor.name),
      tensor.tokens.empty() ? "modules_to_save" : "trainable_token_indices");
}

void AdapterSource::ReadFinite(const SafetensorsEntry& entry, uint64_t begin,
                               std::span<float> out) const {
  file_->ReadFloats(entry, begin, out);
  for (const float value : out) {
    if (std::isfinite(value)) continue;
    ThrowUsage("{}: tensor '{}' has a value of {}; use an adapter whose training did not diverge",
               path(), entry.name, value);
  }
}

std::string AdapterSource::base() const {
  if (!file_) return "";
  const auto named = file_->metadata().find(kBaseDigestKey);
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
  if (file_) return !pieces_[tensor].empty();
  return IsAdapter(table_[tensor]) && table_[tensor].tokens.empty();
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
    ReadFinite(*piece.entry, begin - piece.begin, out.subspan(begin - range.begin, end - begin));
  }
}

namespace {

// The model that the weights in `folder` are of: what its config.json says of the vocabulary and
// of the head, and of all else `spec`. `resizes`: of tokens it has as many as `spec`.
ModelSpec ModelIn(const std::filesystem::path& folder, const ModelSpec& spec, bool resizes) {
  ModelSpec base = BaseModel(spec);
  std::error_code ignored;
  if (!std::filesystem::exists(folder / kConfigFile, ignored)) return base;
  const ModelFamily* const families[] = {spec.family};
  const std::string file = (folder / kConfigFile).string();
  const JsonNode root = ParseJsonText(ReadTextFile(file), file);
  // HfWeightsSource says in what another model differs.
  if (JsonSection(&root, "", file).String("model_type").value_or("") != spec.family->name()) {
    return base;
  }
  const ModelSpec of_config = ReadHuggingFaceConfig(folder / kConfigFile, nullptr, families);
  base.tied_head = of_config.tied_head;
  if (!resizes && of_config.vocab != base.vocab) {
    base.vocab = of_config.vocab;
    base.padded_vocab = of_config.padded_vocab;
  }
  return base;
}

}  // namespace

BaseWeights::BaseWeights(const std::filesystem::path& folder, const ModelSpec& spec, bool resizes)
    : table_(BuildParamTable(ModelIn(folder, spec, resizes))),
      source_(folder, ModelIn(folder, spec, resizes), table_, resizes) {
  for (size_t i = 0; i < table_.size(); ++i) {
    index_.emplace(table_[i].name, static_cast<int>(i));
    if (*table_[i].twin != '\0') index_.emplace(table_[i].twin, static_cast<int>(i));
  }
}

void BaseWeights::Read(const ParamTensor& tensor, TensorRange range, std::span<float> out) const {
  const auto found = index_.find(tensor.name);
  ZEROPLAN_CHECK(found != index_.end(), "nothing has {}", tensor.name);
  ZEROPLAN_CHECK(table_[static_cast<size_t>(found->second)].shape == tensor.shape,
                 "{}: of another shape in the base", tensor.name);
  range.tensor = found->second;
  source_.Read(range, out);
}

AdaptedWeights::AdaptedWeights(const std::filesystem::path& folder,
                               const std::filesystem::path& adapter, const ModelSpec& spec,
                               std::span<const ParamTensor> table, uint64_t seed, bool resizes)
    : table_(table),
      base_(folder, spec, resizes),
      adapter_(adapter.empty() ? AdapterSource(table, seed) : AdapterSource(adapter, spec, table)) {
}

void AdaptedWeights::Read(const TensorRange& range, std::span<float> out) const {
  const auto index = static_cast<size_t>(range.tensor);
  const ParamTensor& tensor = table_[index];
  if (checkpoint_ != nullptr && tensor.saved && tensor.trainable) {
    return checkpoint_->Read(range, out);
  }
  if (adapter_.Has(index)) return adapter_.Read(range, out);
  if (!tensor.tokens.empty()) return ReadTokenRows(tensor, range, out);
  base_.Read(tensor, range, out);
}

void AdaptedWeights::ReadTokenRows(const ParamTensor& tensor, const TensorRange& range,
                                   std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);  // padding, and the optimizer's states
  if (range.state != StateKind::kMaster) return;
  const std::string weight =
      tensor.name.substr(0, tensor.name.size() - std::string_view(kTokensDelta).size()) + ".weight";
  const auto whole = std::find_if(table_.begin(), table_.end(),
                                  [&weight](const ParamTensor& t) { return t.name == weight; });
  ZEROPLAN_CHECK(whole != table_.end(), "nothing has {}", weight);
  const auto cols = static_cast<uint64_t>(tensor.shape[1]);
  std::vector<float> row(cols);
  for (size_t i = 0; i < tensor.tokens.size(); ++i) {
    const uint64_t begin = std::max(range.begin, i * cols);
    const uint64_t end = std::min(range.begin + range.count, (i + 1) * cols);
    if (begin >= end) continue;
    Read({static_cast<int>(whole - table_.begin()), StateKind::kMaster,
          static_cast<uint64_t>(tensor.tokens[i]) * cols, cols},
         row);
    std::copy_n(row.begin() + static_cast<int64_t>(begin - i * cols), end - begin,
                out.begin() + static_cast<int64_t>(begin - range.begin));
  }
}

MergedWeights::MergedWeights(const std::filesystem::path& folder,
                             const std::filesystem::path& adapter, const ModelSpec& spec)
    : merged_table_(BuildParamTable(BaseModel(spec))),
      table_(BuildParamTable(spec)),
      base_(folder, spec, /*resizes=*/false),
      adapter_(adapter, spec, table_),
      whole_(merged_table_.size(), -1),
      deltas_(merged_table_.size()),
      rows_(merged_table_.size()) {
  if (adapter_.NamesBase()) adapter_.WarnOfOtherBase(WeightsDigest(folder), folder);
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < table_.size(); ++i) index.emplace(table_[i].name, i);
  const auto key = [](int layer, int id) { return (int64_t{layer} + 1) << 32 | id; };
  std::unordered_map<int64_t, size_t> adapters;
  for (size_t i = 0; i < table_.size(); ++i) {
    if (IsAdapter(table_[i])) adapters.emplace(key(table_[i].layer, table_[i].id), i);
  }
  for (size_t i = 0; i < merged_table_.size(); ++i) {
    const ParamTensor& weight = merged_table_[i];
    const size_t here = index.at(weight.name);
    if (table_[here].saved) whole_[i] = static_cast<int>(here);
    const auto own = index.find(std::string(ModuleOf(weight.name)) + kTokensDelta);
    if (own != index.end()) {
      const ParamTensor& rows = table_[own->second];
      const auto cols = static_cast<uint64_t>(rows.shape[1]);
      for (size_t row = 0; row < rows.tokens.size(); ++row) {
        std::vector<float>& values = rows_[i][static_cast<uint64_t>(rows.tokens[row])];
        values.resize(cols);
        adapter_.Read({static_cast<int>(own->second), StateKind::kMaster, row * cols, cols},
                      values);
      }
    }
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
    adapter_.Read({whole_[index], range.state, range.begin, range.count}, out);
  } else {
    base_.Read(merged_table_[index], range, out);
  }
  if (range.state != StateKind::kMaster) return;
  PutTokenRows(index, range, out);
  if (deltas_[index].empty()) return;
  const ParamTensor& weight = merged_table_[index];
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

void MergedWeights::PutTokenRows(size_t index, const TensorRange& range,
                                 std::span<float> out) const {
  for (const auto& [token, row] : rows_[index]) {
    const uint64_t begin = std::max(range.begin, token * row.size());
    const uint64_t end = std::min(range.begin + range.count, (token + 1) * row.size());
    for (uint64_t at = begin; at < end; ++at) out[at - range.begin] = row[at - token * row.size()];
  }
}

std::vector<HfTensor> AdapterTensors(std::span<const ParamTensor> table) {
  const std::vector<HfTensor> published = HfTensors(table);
  // PEFT has another name for a matrix that rows of single tokens lie beside, and with a tied head
  // both names for both.
  const auto rows_of = [&](std::string_view module) {
    return std::find_if(published.begin(), published.end(), [&](const HfTensor& tensor) {
      return tensor.name == std::string(module) + kTokensDelta;
    });
  };
  std::vector<HfTensor> tensors;
  for (const HfTensor& tensor : published) {
    const auto rows = rows_of(ModuleOf(tensor.name));
    const bool beside = rows != published.end();
    const std::string_view twin = table[tensor.param].twin;
    const auto add = [&tensors](HfTensor one, std::string name) {
      one.name = std::move(name);
      tensors.push_back(std::move(one));
    };
    const auto name_in = [&](std::string_view weight) {
      return beside ? std::string(ModuleOf(weight)) + kTokensBase : std::string(weight);
    };
    add(tensor, name_in(tensor.name));
    if (twin.empty()) continue;
    add(tensor, name_in(twin));
    if (beside) add(*rows, std::string(ModuleOf(twin)) + kTokensDelta);
  }
  return tensors;
}

uint64_t AdapterBytes(std::span<const ParamTensor> table, Dtype dtype) {
  uint64_t bytes = 0;
  for (const HfTensor& tensor : AdapterTensors(table)) bytes += tensor.elements * DtypeBytes(dtype);
  return bytes;
}

}  // namespace zeroplan
