#include "core/model/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/model/model_family.h"

namespace zeroplan {
namespace {

// Rows keep names as static strings; these are made of a family's.
const char* Kept(std::string name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return names.insert(std::move(name)).first->c_str();
}

// As PEFT matches names of modules.
bool IsNamed(std::string_view module, std::string_view name) {
  if (module == name) return true;
  return module.size() > name.size() && module.ends_with(name) &&
         module[module.size() - name.size() - 1] == '.';
}

template <typename Modules>
bool AnyIsNamed(const Modules& modules, std::string_view name) {
  return std::any_of(modules.begin(), modules.end(),
                     [name](std::string_view module) { return IsNamed(module, name); });
}

bool IsListed(std::string_view module, std::string_view list) {
  const std::vector<std::string_view> names = SplitList(list);
  return std::any_of(names.begin(), names.end(),
                     [module](std::string_view name) { return IsNamed(module, name); });
}

bool IsTarget(const ModelSpec& spec, std::string_view module) {
  return spec.lora_targets == kAllLinear || IsListed(module, spec.lora_targets);
}

int64_t In(const ParamRow& weight) { return weight.shape[weight.out_in ? 1 : 0]; }
int64_t Out(const ParamRow& weight) { return weight.shape[weight.out_in ? 0 : 1]; }

// The published linears that a matrix is made of, or itself.
std::vector<ParamPart> Linears(const ParamRow& weight) {
  if (!weight.parts.empty()) return weight.parts;
  return {{weight.name, Out(weight)}};
}

// "self_attn.qkv_proj.lora_A.weight" of "self_attn.qkv_proj.weight".
const char* AdapterName(std::string_view weight, const char* half) {
  return Kept(std::string(ModuleOf(weight)) + "." + half + ".weight");
}

bool IsProduct(const ParamRow& row) { return row.use == ParamUse::kProduct && !row.is_vector; }

void Freeze(const ModelSpec& spec, std::vector<ParamRow>& rows) {
  for (ParamRow& row : rows) {
    row.trainable = !spec.lora_saved.empty() && IsListed(ModuleOf(row.name), spec.lora_saved);
    row.saved = row.trainable;
  }
}

}  // namespace

float LoraScale(const ModelSpec& spec) {
  const auto rank = static_cast<float>(spec.lora_rank);
  return spec.lora_alpha / (spec.lora_rslora ? std::sqrt(rank) : rank);
}

ModelSpec BaseModel(ModelSpec spec) {
  const ModelSpec none;
  spec.frozen.clear();
  spec.lora_rank = none.lora_rank;
  spec.lora_alpha = none.lora_alpha;
  spec.lora_dropout = none.lora_dropout;
  spec.lora_rslora = none.lora_rslora;
  spec.lora_quantized = none.lora_quantized;
  spec.lora_targets.clear();
  spec.lora_saved.clear();
  return spec;
}

AdaptedColumns ColumnsOf(const ModelSpec& spec, const ParamRow& weight) {
  AdaptedColumns columns;
  const std::vector<ParamPart> linears = Linears(weight);
  ZEROPLAN_CHECK(linears.size() <= AdaptedColumns::kMost, "{} linears in one matrix",
                 linears.size());
  int64_t end = 0;
  for (size_t i = 0; i < AdaptedColumns::kMost; ++i) {
    if (i < linears.size()) {
      end += linears[i].rows;
      if (IsTarget(spec, ModuleOf(linears[i].name))) columns.mask |= int64_t{1} << i;
    }
    if (i < 2) columns.ends[i] = end;
  }
  return columns;
}

std::vector<std::string> LayerLinears(const ModelSpec& spec) {
  std::vector<std::string> linears;
  for (const ParamRow& row : spec.family->Params(BaseModel(spec)).layer) {
    if (!IsProduct(row)) continue;
    for (const ParamPart& part : Linears(row)) linears.emplace_back(ModuleOf(part.name));
  }
  return linears;
}

std::vector<std::string> AdaptedModules(const ModelSpec& spec) {
  std::vector<std::string> modules;
  const std::vector<std::string> linears = LayerLinears(spec);
  for (const std::string& linear : linears) {
    if (!IsTarget(spec, linear)) continue;
    std::string last = linear.substr(linear.rfind('.') + 1);
    const bool means_others = std::any_of(
        linears.begin(), linears.end(),
        [&](const std::string& other) { return IsNamed(other, last) && !IsTarget(spec, other); });
    if (means_others) last = linear;
    if (std::find(modules.begin(), modules.end(), last) == modules.end()) {
      modules.push_back(std::move(last));
    }
  }
  return modules;
}

void AddAdapters(const ModelSpec& spec, ParamRows& rows) {
  for (auto* list : {&rows.before, &rows.layer, &rows.after}) Freeze(spec, *list);
  // The head and embeddings keep 16 bit, as bitsandbytes leaves them.
  for (ParamRow& row : rows.layer) {
    row.quantized = spec.lora_quantized && IsProduct(row) && !row.trainable;
  }
  const std::vector<ParamRow> weights = rows.layer;
  for (const ParamRow& weight : weights) {
    if (!IsProduct(weight)) continue;
    std::vector<ParamPart> downs, ups;
    int64_t down_rows = 0, up_rows = 0;
    for (const ParamPart& linear : Linears(weight)) {
      if (!IsTarget(spec, ModuleOf(linear.name))) continue;
      downs.push_back({AdapterName(linear.name, "lora_A"), spec.lora_rank});
      ups.push_back({AdapterName(linear.name, "lora_B"), linear.rows});
      down_rows += spec.lora_rank;
      up_rows += linear.rows;
    }
    if (downs.empty()) continue;
    const auto in = static_cast<float>(In(weight));
    ParamRow down = MatrixRow(LoraDownId(weight.id), AdapterName(weight.name, "lora_A"), down_rows,
                              In(weight), 1 / std::sqrt(in));
    // torch.nn.Linear's: kaiming_uniform with a = sqrt(5), whose bound is 1 / sqrt(in).
    down.init = InitKind::kUniform;
    down.parts = std::move(downs);
    ParamRow up = MatrixRow(LoraUpId(weight.id), AdapterName(weight.name, "lora_B"), up_rows,
                            spec.lora_rank, 0);
    up.init = InitKind::kZeros;
    up.parts = std::move(ups);
    for (ParamRow* row : {&down, &up}) {
      row->out_in = true;
      rows.layer.push_back(std::move(*row));
    }
  }
}

void CheckAdapters(const ModelSpec& spec, std::string_view source) {
  if (!HasAdapters(spec)) return;
  const ParamRows rows = spec.family->Params(BaseModel(spec));
  const std::vector<std::string> linears = LayerLinears(spec);
  if (spec.lora_targets != kAllLinear) {
    for (const std::string_view target : SplitList(spec.lora_targets)) {
      if (AnyIsNamed(linears, target)) continue;
      ThrowUsage("{}: {} is no linear of the model's layers; they are {}, and {} means all", source,
                 target, fmt::join(linears, ", "), kAllLinear);
    }
  }
  if (!(spec.lora_alpha > 0))
    ThrowUsage("{}: an alpha of {} adapts nothing", source, spec.lora_alpha);
  if (!(spec.lora_dropout >= 0 && spec.lora_dropout < 1)) {
    ThrowUsage("{}: a dropout of {} is not allowed; use a number from 0 to below 1", source,
               spec.lora_dropout);
  }
  if (spec.lora_saved.empty()) return;
  std::vector<std::string_view> whole, parts;
  for (const auto* list : {&rows.before, &rows.layer, &rows.after}) {
    for (const ParamRow& row : *list) {
      for (const ParamPart& part : row.parts) parts.push_back(ModuleOf(part.name));
      const std::string_view name = ModuleOf(row.name);
      if (row.parts.empty() && (whole.empty() || whole.back() != name)) whole.push_back(name);
    }
  }
  for (const std::string_view name : SplitList(spec.lora_saved)) {
    if (AnyIsNamed(parts, name)) {
      ThrowUsage("{}: {} is part of one matrix here, which cannot be trained whole; others can: {}",
                 source, name, fmt::join(whole, ", "));
    }
    if (AnyIsNamed(whole, name)) continue;
    ThrowUsage("{}: {} is no module of the model; they are {}{}", source, name,
               fmt::join(whole, ", "), spec.tied_head ? " (the embedding is the head, too)" : "");
  }
  CheckTrainedTogether(BuildParamTable(spec), source, "save");
}

}  // namespace zeroplan
