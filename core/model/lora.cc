#include "core/model/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/model/model_family.h"

namespace zeroplan {

bool IsNamed(std::string_view module, std::string_view name) {
  if (module == name) return true;
  return module.size() > name.size() && module.ends_with(name) &&
         module[module.size() - name.size() - 1] == '.';
}

namespace {

constexpr int64_t kMostRank = 65536;
constexpr float kMostAlpha = 1e6f;

// Rows keep names as static strings; these are made of a family's.
const char* Kept(std::string name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return names.insert(std::move(name)).first->c_str();
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

bool IsProduct(const ParamRow& row) {
  return row.use == ParamUse::kProduct && !row.is_vector && row.adaptable;
}

std::vector<std::string> LinearsOf(const std::vector<ParamRow>& layer) {
  std::vector<std::string> linears;
  for (const ParamRow& row : layer) {
    if (!IsProduct(row)) continue;
    for (const ParamPart& part : Linears(row)) linears.emplace_back(ModuleOf(part.name));
  }
  return linears;
}

std::string NameInLayer(std::string_view prefix, size_t layer, std::string_view linear) {
  return fmt::format("{}{}.{}", prefix, layer, linear);
}

// An entry of spec.lora_targets, taken apart.
struct TargetEntry {
  std::string_view name;
  std::optional<std::string_view> layers, rank, alpha;

  explicit TargetEntry(std::string_view entry) : name(entry) {
    // What follows a mark goes from `text` to `part`.
    const auto cut = [](std::string_view& text, char mark, auto& part) {
      const size_t at = text.find(mark);
      if (at == std::string_view::npos) return;
      part = text.substr(at + 1);
      text = text.substr(0, at);
    };
    cut(name, ':', rank);
    cut(name, '@', layers);
    if (rank) cut(*rank, '/', alpha);
  }
};

template <typename T>
bool ParseWhole(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end && !text.empty();
}

// Layers [begin, end) of a linear.
struct LayerRange {
  size_t begin = 0, end = 0;
};

// Reads entries of spec.lora_targets for a model whose layers have `linears`.
class TargetReader {
 public:
  TargetReader(const ModelSpec& spec, const std::vector<std::string>& linears,
               std::string_view prefix, std::string_view source)
      : spec_(spec), linears_(linears), prefix_(prefix), source_(source) {}

  AdapterGrid Read() const {
    AdapterGrid grid(static_cast<size_t>(spec_.layers),
                     std::vector<LinearAdapter>(linears_.size()));
    if (spec_.lora_targets.empty()) return grid;
    for (const std::string_view text : SplitList(spec_.lora_targets)) {
      const TargetEntry entry(text);
      const LayerRange layers = Layers(text, entry);
      const LinearAdapter adapter = Adapter(text, entry);
      bool found = false;
      for (size_t i = 0; i < linears_.size(); ++i) {
        const LayerRange range = Matched(entry.name, linears_[i], layers);
        for (size_t layer = range.begin; layer < range.end; ++layer) grid[layer][i] = adapter;
        found = found || range.begin < range.end;
      }
      if (found) continue;
      ThrowUsage("{}: {} is no linear of the model's layers; they are {}, and {} means all",
                 source_, PrintableText(text, 100), fmt::join(linears_, ", "), kAllLinear);
    }
    for (size_t i = 0; i < linears_.size() && !spec_.lora_saved.empty(); ++i) {
      if (!IsListed(linears_[i], spec_.lora_saved)) continue;
      for (std::vector<LinearAdapter>& layer : grid) layer[i] = {};
    }
    return grid;
  }

 private:
  LayerRange Layers(std::string_view text, const TargetEntry& entry) const {
    const auto count = static_cast<size_t>(spec_.layers);
    if (!entry.layers) return {0, count};
    const size_t dash = entry.layers->find('-');
    const bool one = dash == std::string_view::npos;
    size_t first = 0, last = 0;
    const bool whole = ParseWhole(entry.layers->substr(0, dash), first) &&
                       ParseWhole(entry.layers->substr(one ? 0 : dash + 1), last);
    if (!whole || first > last || last >= count) {
      ThrowUsage("{}: {}: {} are no layers; use @FIRST-LAST, from 0 to {}", source_,
                 PrintableText(text, 100), PrintableText(*entry.layers, 40), count - 1);
    }
    return {first, last + 1};
  }

  LinearAdapter Adapter(std::string_view text, const TargetEntry& entry) const {
    LinearAdapter adapter{spec_.lora_rank, spec_.lora_alpha};
    if (!entry.rank) return adapter;
    if (!ParseWhole(*entry.rank, adapter.rank) || adapter.rank < 1 || adapter.rank > kMostRank ||
        (entry.alpha && !ParseWhole(*entry.alpha, adapter.alpha)) || !(adapter.alpha > 0) ||
        !(adapter.alpha <= kMostAlpha)) {
      ThrowUsage(
          "{}: {}: no rank and alpha; use :RANK or :RANK/ALPHA, of 1 to {} and above 0 to {}",
          source_, PrintableText(text, 100), kMostRank, kMostAlpha);
    }
    return adapter;
  }

  // Returns those of `layers` in which the linear is called `name`.
  LayerRange Matched(std::string_view name, const std::string& linear, LayerRange layers) const {
    if (name == kAllLinear || IsNamed(linear, name)) return layers;
    size_t layer = 0;
    if (!name.ends_with("." + linear)) return {};
    const std::string_view before = name.substr(0, name.size() - linear.size() - 1);
    const bool numbered = ParseWhole(before.substr(before.rfind('.') + 1), layer);
    if (!numbered || layer < layers.begin || layer >= layers.end) return {};
    if (!IsNamed(NameInLayer(prefix_, layer, linear), name)) return {};
    return {layer, layer + 1};
  }

  const ModelSpec& spec_;
  const std::vector<std::string>& linears_;
  std::string_view prefix_, source_;
};

float ScaleOf(const ModelSpec& spec, const LinearAdapter& adapter) {
  const auto rank = static_cast<float>(adapter.rank);
  return adapter.alpha / (spec.lora_rslora ? std::sqrt(rank) : rank);
}

// The rows of one layer's adapters: of each matrix of `weights` in turn, a pair for the linears
// that have one rank and one alpha.
std::vector<ParamRow> AdapterRows(const ModelSpec& spec, const std::vector<ParamRow>& weights,
                                  const std::vector<LinearAdapter>& adapters) {
  std::vector<ParamRow> rows;
  auto next = adapters.begin();
  for (const ParamRow& weight : weights) {
    if (!IsProduct(weight)) continue;
    const std::vector<ParamPart> linears = Linears(weight);
    ZEROPLAN_CHECK(linears.size() <= AdaptedColumns::kMost, "{} linears in one matrix",
                   linears.size());
    const std::vector<LinearAdapter> here(next, next + static_cast<int64_t>(linears.size()));
    next += static_cast<int64_t>(linears.size());
    std::vector<LinearAdapter> kinds;
    for (const LinearAdapter& one : here) {
      const bool known = std::find(kinds.begin(), kinds.end(), one) != kinds.end();
      if (one.rank > 0 && !known) kinds.push_back(one);
    }
    for (size_t pair = 0; pair < kinds.size(); ++pair) {
      const LinearAdapter& kind = kinds[pair];
      std::vector<ParamPart> downs, ups;
      int64_t mask = 0, down_rows = 0, up_rows = 0;
      const char* name = "";  // of several pairs, that of the first linear
      for (size_t i = 0; i < linears.size(); ++i) {
        if (here[i] != kind) continue;
        if (downs.empty()) name = kinds.size() == 1 ? weight.name : linears[i].name;
        downs.push_back({AdapterName(linears[i].name, "lora_A"), kind.rank});
        ups.push_back({AdapterName(linears[i].name, "lora_B"), linears[i].rows});
        down_rows += kind.rank;
        up_rows += linears[i].rows;
        mask |= int64_t{1} << i;
      }
      const auto in = static_cast<float>(In(weight));
      const int number = static_cast<int>(pair);
      ParamRow down = MatrixRow(LoraDownId(weight.id, number), AdapterName(name, "lora_A"),
                                down_rows, In(weight), 1 / std::sqrt(in));
      // torch.nn.Linear's: kaiming_uniform with a = sqrt(5), whose bound is 1 / sqrt(in).
      down.init = InitKind::kUniform;
      down.parts = std::move(downs);
      ParamRow up = MatrixRow(LoraUpId(weight.id, number), AdapterName(name, "lora_B"), up_rows,
                              kind.rank, 0);
      up.init = InitKind::kZeros;
      up.parts = std::move(ups);
      for (ParamRow* row : {&down, &up}) {
        row->out_in = true;
        row->lora_linears = mask;
        row->lora_scale = ScaleOf(spec, kind);
        rows.push_back(std::move(*row));
      }
    }
  }
  return rows;
}

// Rows in memory come in such numbers: the head's products are fastest so.
constexpr uint64_t kTokenRowsUnit = 8;

// Makes the rows of `tokens` of the embedding or head `weight`.
ParamRow TokenRows(const ParamRow& weight, std::vector<int64_t> tokens) {
  ParamRow row =
      MatrixRow(LoraTokensId(weight.id), Kept(std::string(ModuleOf(weight.name)) + kTokensDelta),
                static_cast<int64_t>(AlignUp(tokens.size(), kTokenRowsUnit)), weight.shape[1],
                weight.init_std);
  row.out_in = true;
  row.unpadded_rows = static_cast<int64_t>(tokens.size());
  row.use = ParamUse::kOther;
  row.tokens = std::move(tokens);
  return row;
}

// The first of `rows` that has a row for each token; null: none has.
const ParamRow* FindVocabulary(const std::vector<ParamRow>& rows, const ModelSpec& spec) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&spec](const ParamRow& row) {
    return !row.is_vector && row.unpadded_rows == spec.vocab && row.shape[0] == spec.padded_vocab;
  });
  return found == rows.end() ? nullptr : &*found;
}

void AddTokenRows(const ModelSpec& spec, ParamRows& rows) {
  const auto add = [&spec](const std::string& list, std::vector<ParamRow>& to) {
    if (list.empty()) return;
    const ParamRow* weight = FindVocabulary(to, spec);
    ZEROPLAN_CHECK(weight != nullptr, "{} has no rows of tokens {}", spec.name, list);
    to.push_back(TokenRows(*weight, ReadTokens(list, spec.vocab, spec.name)));
  };
  add(spec.lora_tokens, rows.before);
  add(spec.lora_head_tokens, rows.after);
}

void Freeze(const ModelSpec& spec, std::vector<ParamRow>& rows) {
  for (ParamRow& row : rows) {
    row.trainable = !spec.lora_saved.empty() && IsListed(ModuleOf(row.name), spec.lora_saved);
    row.saved = row.trainable;
  }
}

}  // namespace

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
  spec.lora_tokens.clear();
  spec.lora_head_tokens.clear();
  return spec;
}

AdaptedColumns ColumnsOf(const ParamRow& weight, const ParamRow& adapter) {
  AdaptedColumns columns;
  columns.mask = adapter.lora_linears;
  const std::vector<ParamPart> linears = Linears(weight);
  int64_t end = 0;
  for (size_t i = 0; i < std::size(columns.ends); ++i) {
    if (i < linears.size()) end += linears[i].rows;
    columns.ends[i] = end;
  }
  return columns;
}

std::vector<std::string> LayerLinears(const ModelSpec& spec) {
  return LinearsOf(spec.family->Params(BaseModel(spec)).layer);
}

std::vector<int64_t> ReadTokens(std::string_view list, int64_t vocab, std::string_view source,
                                std::string_view one) {
  std::vector<int64_t> tokens;
  if (list.empty()) return tokens;
  std::set<int64_t> seen;
  for (const std::string_view entry : SplitList(list)) {
    const size_t dash = entry.find('-');
    int64_t first = 0, last = 0;
    bool whole = ParseWhole(entry.substr(0, dash), first);
    last = first;
    if (dash != std::string_view::npos) whole = whole && ParseWhole(entry.substr(dash + 1), last);
    if (!whole || first < 0 || last < first || last >= vocab) {
      ThrowUsage("{}: {} are no {}s; use NUMBER or FIRST-LAST, from 0 to {}", source,
                 PrintableText(entry, 60), one, vocab - 1);
    }
    for (int64_t token = first; token <= last; ++token) {
      if (!seen.insert(token).second) {
        ThrowUsage("{}: {} {} is there twice; name it once", source, one, token);
      }
      tokens.push_back(token);
    }
  }
  return tokens;
}

std::string WriteTokens(const std::vector<int64_t>& tokens) {
  std::vector<std::string> entries;
  for (size_t first = 0, end = 0; first < tokens.size(); first = end) {
    for (end = first + 1; end < tokens.size() && tokens[end] == tokens[end - 1] + 1;) ++end;
    entries.push_back(end - first == 1 ? fmt::format("{}", tokens[first])
                                       : fmt::format("{}-{}", tokens[first], tokens[end - 1]));
  }
  return fmt::format("{}", fmt::join(entries, ","));
}

AdapterGrid ReadTargets(const ModelSpec& spec, std::string_view source) {
  const ParamRows rows = spec.family->Params(BaseModel(spec));
  const std::vector<std::string> linears = LinearsOf(rows.layer);
  return TargetReader(spec, linears, rows.layer_prefix, source).Read();
}

std::string WriteTargets(const ModelSpec& spec, const AdapterGrid& grid) {
  const std::vector<std::string> linears = LayerLinears(spec);
  std::vector<std::string> entries;
  for (size_t i = 0; i < linears.size(); ++i) {
    for (size_t first = 0, end = 0; first < grid.size(); first = end) {
      const LinearAdapter& adapter = grid[first][i];
      for (end = first + 1; end < grid.size() && grid[end][i] == adapter;) ++end;
      if (adapter.rank == 0) continue;
      std::string entry = linears[i];
      if (end - first < grid.size()) entry += fmt::format("@{}", first);
      if (end - first < grid.size() && end - first > 1) entry += fmt::format("-{}", end - 1);
      const bool usual = adapter.rank == spec.lora_rank && adapter.alpha == spec.lora_alpha;
      if (!usual) entry += fmt::format(":{}", adapter.rank);
      if (adapter.alpha != spec.lora_alpha) entry += fmt::format("/{}", adapter.alpha);
      entries.push_back(std::move(entry));
    }
  }
  return fmt::format("{}", fmt::join(entries, ","));
}

bool IsEven(const ModelSpec& spec, const AdapterGrid& grid) {
  return std::all_of(grid.begin(), grid.end(), [&](const std::vector<LinearAdapter>& layer) {
    return layer == grid.front() &&
           std::all_of(layer.begin(), layer.end(), [&spec](const LinearAdapter& one) {
             return one.rank == 0 || (one.rank == spec.lora_rank && one.alpha == spec.lora_alpha);
           });
  });
}

AdapterNames NamesOfAdapters(const ModelSpec& spec) {
  const AdapterGrid grid = ReadTargets(spec, "⟦lora_targets⟧");
  const ParamRows rows = spec.family->Params(BaseModel(spec));
  const std::vector<std::string> linears = LinearsOf(rows.layer);
  // Calls fn(layer, adapter) for each layer in which the linear has one; returns their number.
  const auto for_each = [&](size_t linear, auto&& fn) {
    size_t count = 0;
    for (size_t layer = 0; layer < grid.size(); ++layer) {
      if (grid[layer][linear].rank == 0) continue;
      fn(layer, grid[layer][linear]);
      ++count;
    }
    return count;
  };
  const auto everywhere = [&](size_t linear) {
    return for_each(linear, [](size_t, const LinearAdapter&) {}) == grid.size();
  };
  AdapterNames names;
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto own_name = [&](size_t layer) {
      return NameInLayer(rows.layer_prefix, layer, linears[i]);
    };
    std::string last = linears[i].substr(linears[i].rfind('.') + 1);
    for (size_t other = 0; other < linears.size(); ++other) {
      if (IsNamed(linears[other], last) && !everywhere(other)) last = linears[i];
    }
    if (!everywhere(i)) {
      for_each(
          i, [&](size_t layer, const LinearAdapter&) { names.modules.push_back(own_name(layer)); });
    } else if (std::find(names.modules.begin(), names.modules.end(), last) == names.modules.end()) {
      names.modules.push_back(std::move(last));
    }
    // One name where all layers with an adapter have one value, else one for each.
    const auto add = [&](auto LinearAdapter::*member, auto usual, auto& list) {
      std::set<decltype(usual)> values;
      for_each(i, [&](size_t, const LinearAdapter& one) { values.insert(one.*member); });
      if (values.size() == 1) {
        if (*values.begin() != usual) list.emplace_back(linears[i], *values.begin());
        return;
      }
      for_each(i, [&](size_t layer, const LinearAdapter& one) {
        if (one.*member != usual) list.emplace_back(own_name(layer), one.*member);
      });
    };
    add(&LinearAdapter::rank, spec.lora_rank, names.ranks);
    add(&LinearAdapter::alpha, spec.lora_alpha, names.alphas);
  }
  return names;
}

std::string DescribeAdapters(const ModelSpec& spec) {
  const bool even = IsEven(spec, ReadTargets(spec, "⟦lora_targets⟧"));
  const auto of_tokens = [&spec](std::string_view what, const std::string& list) {
    if (list.empty()) return std::string();
    const size_t tokens = ReadTokens(list, spec.vocab, what).size();
    return tokens == 1 ? fmt::format(", the row of 1 token of the {}", what)
                       : fmt::format(", rows of {} tokens of the {}", tokens, what);
  };
  return fmt::format("rank {}, alpha {}{}{}, on {}{}{}", spec.lora_rank, spec.lora_alpha,
                     spec.lora_rslora ? " by its root" : "",
                     spec.lora_dropout > 0 ? fmt::format(", dropout {}", spec.lora_dropout) : "",
                     even ? fmt::format("{}", fmt::join(NamesOfAdapters(spec).modules, ", "))
                          : PrintableText(spec.lora_targets, 300),
                     of_tokens("embedding", spec.lora_tokens),
                     of_tokens("head", spec.lora_head_tokens));
}

void AddAdapters(const ModelSpec& spec, ParamRows& rows) {
  ZEROPLAN_CHECK(rows.own.empty(), "adapters of layers that differ: {}", spec.name);
  for (auto* list : {&rows.before, &rows.layer, &rows.after}) Freeze(spec, *list);
  AddTokenRows(spec, rows);
  // The head and embeddings keep 16 bit, as bitsandbytes leaves them.
  for (ParamRow& row : rows.layer) {
    row.quantized = spec.lora_quantized && IsProduct(row) && !row.trainable;
  }
  const std::vector<std::string> linears = LinearsOf(rows.layer);
  const AdapterGrid grid = TargetReader(spec, linears, rows.layer_prefix, "⟦lora_targets⟧").Read();
  const bool same = std::all_of(grid.begin(), grid.end(),
                                [&grid](const auto& layer) { return layer == grid.front(); });
  for (size_t layer = 0; layer < grid.size() && !same; ++layer) {
    const bool as_before = layer > 0 && grid[layer] == grid[layer - 1];
    rows.own.push_back(as_before ? rows.own.back() : AdapterRows(spec, rows.layer, grid[layer]));
  }
  if (!same || grid.empty()) return;
  for (ParamRow& row : AdapterRows(spec, rows.layer, grid.front())) {
    rows.layer.push_back(std::move(row));
  }
}

namespace {

// `rows`: of the model without adapters.
void CheckTokens(const ModelSpec& spec, const ParamRows& rows, std::string_view source) {
  const auto check = [&](const std::string& list, const std::vector<ParamRow>& within) {
    if (list.empty()) return;
    ReadTokens(list, spec.vocab, source);
    const ParamRow* weight = FindVocabulary(within, spec);
    if (weight == nullptr) {
      ThrowUsage("{}: {} has no such matrix with a row for each token", source, spec.name);
    }
    const std::string_view module = ModuleOf(weight->name);
    const bool carried = IsListed(std::string(module) + ".weight", spec.frozen);
    if (carried || !IsListed(module, spec.lora_saved)) return;
    ThrowUsage("{}: {} is trained whole, and so are its rows of single tokens; leave one out",
               source, module);
  };
  check(spec.lora_tokens, rows.before);
  check(spec.lora_head_tokens, rows.after);
}

}  // namespace

void CheckAdapters(const ModelSpec& spec, std::string_view source) {
  if (!HasAdapters(spec)) return;
  if (spec.experts > 0) {
    ThrowUsage(
        "{}: {} is a mixture of experts, and adapters of such models are not trained; use the "
        "method full, or 'plan' with ⟦runtime⟧ deepspeed, fsdp2 or ddp",
        source, spec.name);
  }
  const ParamRows rows = spec.family->Params(BaseModel(spec));
  const AdapterGrid grid = ReadTargets(spec, source);
  const bool none = std::all_of(grid.begin(), grid.end(), [](const auto& layer) {
    return std::all_of(layer.begin(), layer.end(),
                       [](const LinearAdapter& one) { return one.rank == 0; });
  });
  if (none) ThrowUsage("{}: no linear has an adapter; name one, or {}", source, kAllLinear);
  if (!(spec.lora_alpha > 0))
    ThrowUsage("{}: an alpha of {} adapts nothing", source, spec.lora_alpha);
  if (!(spec.lora_dropout >= 0 && spec.lora_dropout < 1)) {
    ThrowUsage("{}: a dropout of {} is not allowed; use a number from 0 to below 1", source,
               spec.lora_dropout);
  }
  CheckTokens(spec, rows, source);
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
