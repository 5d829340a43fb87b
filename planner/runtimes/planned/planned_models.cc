#include "planner/runtimes/planned/planned_models.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/families/llama/llama.h"
#include "core/families/load_model.h"
#include "core/lowering/graph_builder.h"
#include "core/model/lora.h"

namespace zeroplan {
namespace {

// Parts of a layer in the order of its forward pass, by the names of their tensors.
struct Part {
  std::string_view name;
  ParamUse use;
};
constexpr ParamUse kNone = ParamUse::kOther, kProduct = ParamUse::kProduct;
constexpr Part kParts[] = {
    {"input_layernorm", kNone},
    {"self_attn.q_proj", kProduct},
    {"self_attn.k_proj", kProduct},
    {"self_attn.v_proj", kProduct},
    {"self_attn.qkv_proj", kProduct},
    {"self_attn.q_norm", kNone},
    {"self_attn.k_norm", kNone},
    {"self_attn.o_proj", kProduct},
    {"post_attention_layernorm", kNone},
    {"pre_feedforward_layernorm", kNone},
    {"mlp.gate_proj", kProduct},
    {"mlp.up_proj", kProduct},
    {"mlp.gate_up_proj", kProduct},
    {"mlp.down_proj", kProduct},
    {"mlp.gate", kProduct},
    {"mlp.router", kProduct},
    {"block_sparse_moe.gate", kProduct},
    {"mlp.experts", kProduct},
    {"block_sparse_moe.experts", kProduct},
    {"mlp.shared_expert.gate_proj", kProduct},
    {"mlp.shared_expert.up_proj", kProduct},
    {"mlp.shared_expert.down_proj", kProduct},
    {"mlp.shared_expert_gate", kProduct},
    {"post_feedforward_layernorm", kNone},
};
constexpr size_t kUnknownPart = std::size(kParts);

size_t PartOf(std::string_view suffix) {
  const std::string_view module = ModuleOf(suffix);
  for (size_t i = 0; i < kUnknownPart; ++i) {
    if (kParts[i].name == module) return i;
  }
  return kUnknownPart;
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "model.layers.3.mlp.up_proj.weight": the layers' prefix, a number, and the rest. Empty prefix:
// none of a language model's layers.
struct Placed {
  std::string prefix;
  int64_t layer = 0;
  std::string suffix;
};
Placed PlaceOf(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string::npos || name.find("vision") < at || name.find("visual") < at ||
      name.find("audio") < at) {
    return {};
  }
  const size_t begin = at + kLayers.size(), end = name.find('.', begin);
  if (end == std::string::npos || !IsDigits(std::string_view(name).substr(begin, end - begin)) ||
      end - begin > 6) {
    return {};
  }
  return {name.substr(0, begin), std::stoll(name.substr(begin, end - begin)), name.substr(end + 1)};
}

// Experts' matrices are one parameter each, as transformers 5 has them: "mlp.experts.gate_up_proj"
// of "mlp.experts.7.up_proj.weight". Empty: no expert's.
std::string ExpertsParam(const std::string& suffix) {
  constexpr std::string_view kExperts = "experts.";
  const size_t at = suffix.find(kExperts);
  if (at == std::string::npos) return "";
  const size_t begin = at + kExperts.size(), end = suffix.find('.', begin);
  if (end == std::string::npos || !IsDigits(std::string_view(suffix).substr(begin, end - begin))) {
    return "";
  }
  const std::string part = suffix.substr(end + 1);
  const bool down = part.starts_with("down_proj") || part.starts_with("w2");
  return suffix.substr(0, begin) + (down ? "down_proj" : "gate_up_proj");
}

int64_t Rows(const NamedShape& tensor) {
  return tensor.shape.size() < 2 ? tensor.elements() : tensor.elements() / tensor.shape.back();
}
int64_t Columns(const NamedShape& tensor) {
  return tensor.shape.size() < 2 ? 1 : tensor.shape.back();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t side : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", side);
  return "[" + text + "]";
}

// The tensors of a model, sorted by what is known of them.
struct Table {
  std::string layer_prefix;
  std::vector<NamedShape> layer;  // of each layer; names within it; experts are one
  std::vector<NamedShape> embedding, vision, after;
  std::vector<NamedShape> rest;  // of no known use, outside of the layers
};

// Adds up experts' tensors.
std::vector<NamedShape> JoinExperts(const std::vector<NamedShape>& tensors) {
  std::vector<NamedShape> joined;
  std::map<std::string, size_t> at;
  for (const NamedShape& tensor : tensors) {
    const std::string experts = ExpertsParam(tensor.name);
    if (experts.empty()) {
      joined.push_back(tensor);
      continue;
    }
    const auto [found, added] = at.try_emplace(experts, joined.size());
    if (added) {
      joined.push_back({experts, {0, Columns(tensor)}, tensor.file});
    }
    NamedShape& all = joined[found->second];
    if (all.shape.back() != Columns(tensor)) {
      ThrowUsage("{}: {}: shape: {} is not that of the other experts; get the weights anew",
                 tensor.file, PrintableText(tensor.name, 120), ShapeText(tensor.shape));
    }
    all.shape.front() += Rows(tensor);
  }
  std::stable_sort(joined.begin(), joined.end(), [](const NamedShape& a, const NamedShape& b) {
    const size_t part = PartOf(a.name), other = PartOf(b.name);
    return part != other ? part < other : a.name > b.name;  // weights before biases
  });
  return joined;
}

std::string KeyOf(const std::vector<NamedShape>& tensors) {
  std::set<std::string> lines;
  for (const NamedShape& tensor : tensors) lines.insert(tensor.name + ShapeText(tensor.shape));
  std::string key;
  for (const std::string& line : lines) key += line + "\n";
  return key;
}

Table Sort(const std::vector<NamedShape>& tensors, const PlannedConfig& config,
           const std::string& source) {
  Table table;
  std::map<std::string, std::map<int64_t, std::vector<NamedShape>>> stacks;
  for (const NamedShape& tensor : tensors) {
    if (tensor.name.ends_with("rotary_emb.inv_freq")) continue;  // no parameter
    Placed placed = PlaceOf(tensor.name);
    if (!placed.prefix.empty()) {
      stacks[placed.prefix][placed.layer].push_back(
          {std::move(placed.suffix), tensor.shape, tensor.file});
    } else if (tensor.name.ends_with("embed_tokens.weight")) {
      table.embedding.push_back(tensor);
    } else if (tensor.name.ends_with("lm_head.weight")) {
      if (!config.spec.tied_head) table.after.push_back(tensor);
    } else if (tensor.name == "model.norm.weight" || tensor.name.ends_with("model.norm.weight") ||
               tensor.name.ends_with("language_model.norm.weight")) {
      table.after.insert(table.after.begin(), tensor);
    } else if (config.code.vision.present()) {
      table.vision.push_back(tensor);
    } else {
      table.rest.push_back(tensor);
    }
  }
  const auto largest = std::max_element(
      stacks.begin(), stacks.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (largest == stacks.end() ||
      largest->second.size() != static_cast<size_t>(config.spec.layers)) {
    ThrowUsage(
        "{}: num_hidden_layers: {} are not the {} layers that the weights beside it hold; get both "
        "of one model",
        source, config.spec.layers, largest == stacks.end() ? 0 : largest->second.size());
  }
  table.layer_prefix = largest->first;
  std::string key;
  for (const auto& [layer, of_layer] : largest->second) {
    const std::vector<NamedShape> joined = JoinExperts(of_layer);
    std::string its_key = KeyOf(joined);
    if (table.layer.empty()) {
      table.layer = joined;
      key = std::move(its_key);
    } else if (its_key != key) {
      ThrowUsage(
          "{}: layer {} has other tensors or shapes than layer 0, and layers that differ are not "
          "planned; ⟦params⟧ COUNT plans for a model of its size",
          joined.front().file, layer);
    }
  }
  for (auto& [prefix, stack] : stacks) {
    if (prefix == table.layer_prefix) continue;
    for (auto& [layer, of_layer] : stack) {
      for (NamedShape& tensor : of_layer) {
        tensor.name = fmt::format("{}{}.{}", prefix, layer, tensor.name);
        table.rest.push_back(std::move(tensor));
      }
    }
  }
  if (table.embedding.size() != 1) {
    ThrowUsage("{}: {} tensors are called embed_tokens.weight, and a model that is planned has one",
               source, table.embedding.size());
  }
  const size_t after = config.spec.tied_head ? 1 : 2;
  if (table.after.size() != after) {
    ThrowUsage(
        "{}: behind its layers are {} tensors that are known, and a norm{} are expected "
        "(tie_word_embeddings {})",
        source, table.after.size(), after == 2 ? " and lm_head.weight" : "", config.spec.tied_head);
  }
  return table;
}

// Throws where the weights' tensors are not what the config's come to.
void CheckAgainstConfig(const Table& table, const Table& expected, const std::string& source) {
  const auto check = [&](const std::vector<NamedShape>& found,
                         const std::vector<NamedShape>& wanted) {
    for (const NamedShape& tensor : wanted) {
      const auto same = [&](const NamedShape& other) {
        return PartOf(other.name) == kUnknownPart
                   ? other.name == tensor.name
                   : PartOf(other.name) == PartOf(tensor.name) &&
                         other.name.substr(other.name.rfind('.')) ==
                             tensor.name.substr(tensor.name.rfind('.'));
      };
      const auto at = std::find_if(found.begin(), found.end(), same);
      if (at == found.end()) {
        ThrowUsage("{}: has no tensor {}{}, which {} asks for; get config and weights of one model",
                   found.front().file, table.layer_prefix, "N." + tensor.name, source);
      }
      if (Rows(*at) != Rows(tensor) || Columns(*at) != Columns(tensor)) {
        ThrowUsage(
            "{}: {}N.{}: shape: {} is not {}, which {} comes to; get config and weights of one "
            "model",
            at->file, table.layer_prefix, PrintableText(at->name, 120), ShapeText(at->shape),
            ShapeText(tensor.shape), source);
      }
    }
  };
  check(table.layer, expected.layer);
  const NamedShape &embedding = table.embedding.front(), &wanted = expected.embedding.front();
  if (Columns(embedding) != Columns(wanted)) {
    ThrowUsage(
        "{}: {}: shape: {} is not hidden_size {} wide, which {} says; get config and "
        "weights of one model",
        embedding.file, embedding.name, ShapeText(embedding.shape), Columns(wanted), source);
  }
}

bool Holds(const Table& table, std::string_view part) {
  return std::any_of(table.layer.begin(), table.layer.end(),
                     [&](const NamedShape& tensor) { return ModuleOf(tensor.name) == part; });
}

// Throws where a layer of an unknown type is none that is planned; else says its parts.
void SetCodeByParts(const Table& table, std::string_view type, const std::string& source,
                    PlannedConfig* config) {
  PlannedCode& code = config->code;
  code.one_qkv = Holds(table, "self_attn.qkv_proj");
  code.one_gate_up = Holds(table, "mlp.gate_up_proj");
  config->spec.qk_norm = Holds(table, "self_attn.q_norm");
  code.post_norms = Holds(table, "pre_feedforward_layernorm");
  std::string lacks;
  const auto need = [&](std::string_view part) {
    if (lacks.empty() && !Holds(table, part)) lacks = part;
  };
  need("input_layernorm");
  if (!code.one_qkv) {
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
      need(part);
  }
  need("self_attn.o_proj");
  need("post_attention_layernorm");
  if (code.post_norms) need("post_feedforward_layernorm");
  if (!code.one_gate_up) {
    need("mlp.gate_proj");
    need("mlp.up_proj");
  }
  need("mlp.down_proj");
  if (!lacks.empty()) {
    ThrowUsage(
        "{}: model_type: \"{}\" is not known, and its layers have no {}, so their work is not "
        "known either; use {}, or ⟦params⟧ COUNT for a model of its size",
        source, PrintableText(type, 60), lacks, PlannedTypes());
  }
  const auto has_bias = [&](std::string_view name) {
    return std::any_of(table.layer.begin(), table.layer.end(),
                       [&](const NamedShape& tensor) { return tensor.name == name; });
  };
  config->spec.qkv_bias =
      has_bias(code.one_qkv ? "self_attn.qkv_proj.bias" : "self_attn.q_proj.bias");
  config->spec.out_bias = has_bias("self_attn.o_proj.bias");
  config->spec.mlp_bias = has_bias("mlp.down_proj.bias");
  code.approximated.push_back(fmt::format(
      "model_type {} is not known: its layers are taken to work as Llama's do, from their tensors' "
      "names and shapes",
      PrintableText(type, 60)));
}

class PlannedFamily : public ModelFamily {
 public:
  PlannedFamily(std::string type, PlannedCode code, const ModelSpec& spec, const Table& table)
      : type_(std::move(type)), code_(std::move(code)) {
    rows_.layer_prefix = Keep(table.layer_prefix);
    // The layer's rows first, whose adapters have ids of their own.
    const double share = code_.experts > 0 ? static_cast<double>(code_.experts_per_token) /
                                                 static_cast<double>(code_.experts)
                                           : 1;
    for (const NamedShape& tensor : table.layer) {
      const size_t part = PartOf(tensor.name);
      const bool product =
          part < kUnknownPart && tensor.shape.size() >= 2 && kParts[part].use == kProduct;
      ParamRow& row = AddRow(tensor, product ? kProduct : kNone, &rows_.layer);
      if (tensor.name.find("experts.") != std::string::npos) row.token_share = share;
      row.adaptable = code_.experts == 0 || tensor.name.starts_with("self_attn.");
    }
    AddRow(table.embedding.front(), spec.tied_head ? ParamUse::kHead : kNone, &rows_.before);
    for (const NamedShape& tensor : table.vision) AddRow(tensor, kNone, &rows_.before);
    for (const NamedShape& tensor : table.rest) AddRow(tensor, kNone, &rows_.before);
    for (const NamedShape& tensor : table.after) {
      AddRow(tensor, tensor.shape.size() > 1 ? ParamUse::kHead : kNone, &rows_.after);
    }
  }

  std::string_view name() const override { return type_; }
  const PlannedCode* planned() const override { return &code_; }
  ParamRows Params(const ModelSpec& /*spec*/) const override { return rows_; }
  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& /*builder*/) const override { Refuse(); }
  std::string_view ConfigKey(std::string_view field) const override {
    if (field == "ffn" && code_.experts > 0) return "moe_intermediate_size";
    return LlamaConfigKey(field);
  }
  ModelSpec ReadConfig(JsonSection* /*config*/,
                       std::vector<std::string>* /*notes*/) const override {
    Refuse();
  }
  std::string WriteConfig(const ModelSpec& /*spec*/) const override { Refuse(); }
  const std::vector<ModelPreset>& presets() const override {
    static const std::vector<ModelPreset> none;
    return none;
  }
  ModelSpec Shape(int64_t /*layers*/, int64_t /*hidden*/, int64_t /*positions*/,
                  bool /*byte_level*/) const override {
    Refuse();
  }

 private:
  [[noreturn]] void Refuse() const {
    ThrowUsage(
        "model_type: \"{}\" is not trained by zeroplan; ⟦runtime⟧ deepspeed, fsdp2 or ddp "
        "plans it for other programs",
        type_);
  }
  const char* Keep(const std::string& text) { return names_.emplace_back(text).c_str(); }
  ParamRow& AddRow(const NamedShape& tensor, ParamUse use, std::vector<ParamRow>* rows) {
    ParamRow row;
    row.id = std::min(next_id_++, kLoraIds - 1);
    row.name = Keep(tensor.name);
    row.shape = {Rows(tensor), Columns(tensor)};
    row.is_vector = tensor.shape.size() < 2;
    row.decay = !row.is_vector;
    row.unpadded_rows = row.shape[0];
    row.use = use;
    row.out_in = true;
    rows->push_back(row);
    return rows->back();
  }

  std::string type_;
  PlannedCode code_;
  std::deque<std::string> names_;
  ParamRows rows_;
  int next_id_ = 0;
};

// All that tells one family from another.
std::string FamilyKey(std::string_view type, const PlannedConfig& config, const Table& table) {
  const PlannedCode& code = config.code;
  const VisionTower& vision = code.vision;
  std::string key = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", type, table.layer_prefix,
      config.spec.tied_head, code.gemma_norms, code.bounded_scores, code.bounded_logits,
      code.experts, code.experts_per_token, code.normalized_shares, code.window, code.window_layers,
      code.masked, vision.images, vision.patches, vision.quick_gelu);
  for (const auto* part :
       {&table.embedding, &table.vision, &table.rest, &table.layer, &table.after}) {
    key += KeyOf(*part);
  }
  return key;
}

const ModelFamily* FamilyOf(std::string_view type, const PlannedConfig& config,
                            const Table& table) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const PlannedFamily>> families;
  const std::lock_guard lock(mutex);
  auto& family = families[FamilyKey(type, config, table)];
  if (!family) {
    family = std::make_unique<PlannedFamily>(std::string(type), config.code, config.spec, table);
  }
  return family.get();
}

uint64_t Elements(const std::vector<NamedShape>& tensors) {
  uint64_t sum = 0;
  for (const NamedShape& tensor : tensors) sum += static_cast<uint64_t>(tensor.elements());
  return sum;
}

// A note where an index beside the config says another size.
void NoteIndex(const std::filesystem::path& folder, uint64_t params,
               std::vector<std::string>* notes) {
  const std::filesystem::path file = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (notes == nullptr || !std::filesystem::exists(file, ignored)) return;
  const JsonNode index = ParseJsonText(ReadTextFile(file), file.string());
  const JsonNode* metadata = index.Find("metadata");
  const JsonNode* size = metadata != nullptr ? metadata->Find("total_size") : nullptr;
  if (size == nullptr || size->kind != JsonNode::Kind::kScalar || !size->scalar.is_number()) return;
  for (const double bytes : {2.0, 4.0}) {
    const double share = size->scalar.number() / bytes / static_cast<double>(params);
    if (share > 0.995 && share < 1.005) return;
  }
  notes->push_back(
      fmt::format("{}: total_size: {} bytes are not 2 or 4 for each of the {} parameters that "
                  "config.json comes "
                  "to; with the files of weights beside it their own shapes are taken",
                  file.string(), size->scalar.Dump(), params));
}

class PlannedModels : public OtherModelReader {
 public:
  bool Knows(std::string_view model_type) const override { return IsPlannedType(model_type); }
  std::span<const PublishedConfig> Published() const override { return PublishedModels(); }
  ModelSpec Read(const ModelSource& from, const JsonNode& config, std::string_view model_type,
                 const OtherModels& others, std::vector<std::string>* notes) const override {
    return ReadPlannedModel(from, config, model_type, others.image_tokens, notes);
  }
};
const PlannedModels kPlannedModels;
[[maybe_unused]] const bool kRegistered = RegisterOtherModels(&kPlannedModels);

}  // namespace

std::vector<std::string> ApproximatedOf(const PlannedCode& code) {
  std::vector<std::string> out = code.approximated;
  if (code.experts > 0) {
    out.push_back(fmt::format(
        "experts are the grouped products of transformers 5 (its default; ⟦experts⟧ has those of "
        "transformers 4), with as many tokens for each of the {}; what router and dispatch keep is "
        "counted, their time is not measured",
        code.experts));
  }
  if (code.window_layers > 0) {
    out.push_back(fmt::format(
        "sequences longer than the window of {} tokens have attention with a mask in {} layers, "
        "timed as if every token was looked at",
        code.window, code.window_layers));
  }
  if (code.vision.present()) {
    const VisionTower& tower = code.vision;
    out.push_back(fmt::format(
        "the vision tower takes {} image{} of {} patches a sequence, {} tokens of its text; what "
        "its "
        "layers keep is counted, the work around them (pooling, merging, padding) is left out",
        tower.images, tower.images == 1 ? "" : "s", tower.patches,
        tower.images * tower.image_tokens));
  }
  if (code.masked) {
    out.emplace_back("attention has a mask at any length, as in a batch with images");
  }
  return out;
}

ModelSpec ReadPlannedModel(const ModelSource& from, const JsonNode& config,
                           std::string_view model_type, std::optional<int64_t> image_tokens,
                           std::vector<std::string>* notes) {
  const std::string& source = from.file;
  PlannedConfig read = ReadPlannedConfig(config, model_type, image_tokens, source);
  std::optional<std::vector<NamedShape>> headers;
  if (!from.folder.empty() && !read.code.config_alone) headers = ReadWeightHeaders(from.folder);
  if (!headers && read.tensors.empty()) {
    ThrowUsage(
        "{}: model_type: \"{}\" is not known, and without its weights' headers its shapes are not "
        "either; use {}, or get the safetensors beside it",
        source, PrintableText(model_type, 60), PlannedTypes());
  }
  const bool known = !read.tensors.empty();
  Table table;
  if (headers) {
    table = Sort(*headers, read, source);
    if (known) CheckAgainstConfig(table, Sort(read.tensors, read, source), source);
  } else {
    table = Sort(read.tensors, read, source);
    read.code.approximated.push_back(
        read.code.config_alone
            ? fmt::format("shapes are those of {} in transformers 5.24.0, of the language model "
                          "alone, with layers that are alike: what only some have is spread over "
                          "all; tensors beside config.json are not read",
                          model_type)
            : fmt::format("no weights lie beside config.json: shapes are those of {} in "
                          "transformers 5.24.0",
                          model_type));
  }
  if (!known) SetCodeByParts(table, model_type, source, &read);
  // Tensors that have no part in a layer's work, or in a tower's.
  uint64_t unknown = Elements(table.rest);
  for (const NamedShape& tensor : table.layer) {
    if (PartOf(tensor.name) != kUnknownPart) continue;
    unknown += static_cast<uint64_t>(tensor.elements() * read.spec.layers);
  }
  read.code.unknown_elements = unknown;
  if (unknown > 0) {
    read.code.approximated.push_back(fmt::format(
        "{} parameters of parts that are not known are counted as parameters alone, without "
        "activations or work",
        FormatCount(unknown)));
  }
  ModelSpec spec = read.spec;
  spec.vocab = spec.padded_vocab = Rows(table.embedding.front());
  spec.name = from.name;
  spec.family = FamilyOf(model_type, read, table);
  if (!headers && !from.folder.empty() && !read.code.config_alone)
    NoteIndex(from.folder, spec.ParamCount(), notes);
  ValidateModelSpec(spec, source);
  return spec;
}

}  // namespace zeroplan
