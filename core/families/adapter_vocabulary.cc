// Reads what an adapter's files say of the token embedding and the head: modules_to_save,
// ensure_weight_tying, trainable_token_indices, and embeddings that PEFT saves unasked
// (save_embedding_layers).
#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/strings.h"
#include "core/families/adapter_config.h"
#include "core/families/weight_headers.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/param_table.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenIndices = "trainable_token_indices";
constexpr const char* kSavedModules = "modules_to_save";

bool ListNames(std::string_view list, std::string_view module) {
  const std::vector<std::string_view> names = SplitList(list);
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return IsNamed(module, name); });
}

void AddToList(std::string_view name, std::string& list) {
  list += (list.empty() ? "" : ",") + std::string(name);
}

std::string WithoutModule(std::string_view list, std::string_view module) {
  std::string left;
  for (const std::string_view name : SplitList(list)) {
    if (!IsNamed(module, name)) AddToList(name, left);
  }
  return left;
}

// The same list in both; the adapter may name each.
struct TokenLists {
  std::optional<std::vector<int64_t>> embedding, head;
};

std::vector<int64_t> TokenList(JsonSection& config, const JsonNode& node, int64_t vocab) {
  const std::string allowed = fmt::format("tokens from 0 to {}, each once", vocab - 1);
  if (!node.is_array() || node.elements.empty()) config.FailValue(kTokenIndices, allowed);
  std::vector<int64_t> tokens;
  std::set<int64_t> seen;
  for (const JsonNode& element : node.elements) {
    const bool number = element.kind == JsonNode::Kind::kScalar && element.scalar.is_number();
    const double value = number ? element.scalar.number() : -1;
    const auto token = value >= 0 && value < static_cast<double>(vocab)
                           ? static_cast<int64_t>(value)
                           : int64_t{-1};
    if (token < 0 || static_cast<double>(token) != value || !seen.insert(token).second) {
      config.FailValue(kTokenIndices, allowed);
    }
    tokens.push_back(token);
  }
  return tokens;
}

TokenLists ReadTokenLists(JsonSection& config, const VocabularyModules& modules, int64_t vocab) {
  TokenLists lists;
  const JsonNode* node = config.Value(kTokenIndices);
  if (node == nullptr) return lists;
  if (!node->is_object()) {
    lists.embedding = TokenList(config, *node, vocab);
    return lists;
  }
  for (const auto& [name, tokens] : node->members) {
    auto& list = IsNamed(modules.embedding, name) ? lists.embedding : lists.head;
    if (&list == &lists.head && !IsNamed(modules.head, name)) {
      config.Fail(kTokenIndices, "{} is neither the embedding {} nor the head {}; these can be",
                  PrintableText(name, 120), modules.embedding, modules.head);
    }
    list = TokenList(config, tokens, vocab);
  }
  return lists;
}

// Rows of what the file has for a module; 0: it has nothing.
struct SavedRows {
  int64_t embedding = 0, head = 0;
  bool by_zeroplan = false;
};

SavedRows RowsIn(const fs::path& folder, const VocabularyModules& modules) {
  SavedRows rows;
  std::error_code ignored;
  if (!fs::exists(folder / kAdapterWeightsFile, ignored)) return rows;
  std::map<std::string, std::string> metadata;
  for (const NamedShape& tensor : ReadWeightHeader(folder / kAdapterWeightsFile, &metadata)) {
    std::string_view name = tensor.name;
    if (name.starts_with(kAdapterPrefix))
      name.remove_prefix(std::string_view(kAdapterPrefix).size());
    for (const auto& [module, held] :
         {std::pair(&modules.embedding, &rows.embedding), std::pair(&modules.head, &rows.head)}) {
      if (name == *module + ".weight" || name == *module + kTokensBase) {
        *held = tensor.shape.empty() ? 0 : tensor.shape.front();
      }
    }
  }
  rows.by_zeroplan = metadata.contains(kBaseDigestKey);
  return rows;
}

// The vocabulary is what the adapter's own rows are of.
void TakeRows(const std::string& file, const VocabularyModules& modules, const SavedRows& rows,
              ModelSpec& spec) {
  const int64_t held = std::max(rows.embedding, rows.head);
  if (held == 0 || (rows.embedding > 0 && rows.head > 0 && rows.embedding != rows.head)) {
    if (held == 0) return;
    ThrowUsage("{}: has {} rows of {} and {} of {}; a model has as many of both", file,
               rows.embedding, modules.embedding, rows.head, modules.head);
  }
  if (held == spec.vocab) return;
  if (!spec.tied_head && (rows.embedding == 0 || rows.head == 0)) {
    const bool no_head = rows.head == 0;
    ThrowUsage(
        "{}: has {} rows of {}, the model {} tokens, and none of {}; save both with the adapter "
        "(PEFT's save_pretrained(FOLDER, save_embedding_layers=True))",
        file, held, no_head ? modules.embedding : modules.head, spec.vocab,
        no_head ? modules.head : modules.embedding);
  }
  spec.vocab = held;
  spec.padded_vocab = PadVocab(held);
}

// A part of the file that training leaves as it is: read from there, and saved again.
void Carry(std::string_view module, ModelSpec& spec) {
  if (ListNames(spec.lora_saved, module)) return;
  AddToList(module, spec.lora_saved);
  AddToList(std::string(module) + ".weight", spec.frozen);
}

}  // namespace

VocabularyModules VocabularyModulesOf(const ModelSpec& spec) {
  VocabularyModules modules;
  const ParamRows rows = spec.family->Params(BaseModel(spec));
  for (const ParamRow& row : rows.before) {
    const bool of_tokens = !row.is_vector && row.unpadded_rows == spec.vocab;
    if (!of_tokens || !modules.embedding.empty()) continue;
    modules.embedding = ModuleOf(row.name);
    if (*row.twin != '\0') modules.head = ModuleOf(row.twin);
  }
  for (const ParamRow& row : rows.after) {
    if (row.use == ParamUse::kHead && !row.is_vector) modules.head = ModuleOf(row.name);
  }
  return modules;
}

void CarryVocabulary(ModelSpec& spec) {
  const VocabularyModules modules = VocabularyModulesOf(spec);
  Carry(modules.embedding, spec);
  if (!spec.tied_head) Carry(modules.head, spec);
}

bool IsCarried(const ModelSpec& spec, std::string_view module) {
  return ListNames(spec.frozen, std::string(module) + ".weight");
}

void TakeVocabulary(JsonSection& config, const fs::path& folder, ModelSpec& spec) {
  const VocabularyModules modules = VocabularyModulesOf(spec);
  if (modules.embedding.empty() || modules.head.empty()) return;
  const std::string& embedding = modules.embedding;
  const std::string& head = modules.head;
  const SavedRows rows = RowsIn(folder, modules);
  TakeRows((folder / kAdapterWeightsFile).string(), modules, rows, spec);
  const TokenLists tokens = ReadTokenLists(config, modules, spec.vocab);
  const std::optional<bool> ensures = config.Bool("ensure_weight_tying");
  const bool saves_embedding = ListNames(spec.lora_saved, embedding);
  const bool saves_head = ListNames(spec.lora_saved, head);
  if ((tokens.embedding && saves_embedding) || (tokens.head && saves_head) ||
      (spec.tied_head && (tokens.embedding || tokens.head) && (saves_embedding || saves_head))) {
    config.Fail(kTokenIndices, "has rows of what {} trains whole; leave one of the two out",
                kSavedModules);
  }
  if (tokens.embedding) spec.lora_tokens = WriteTokens(*tokens.embedding);
  if (spec.tied_head) {
    const bool any = saves_embedding || saves_head;
    if (saves_embedding && !saves_head && rows.head == 0 && rows.by_zeroplan && !ensures) {
      config.Fail(kSavedModules,
                  "{} was trained as the head, too, by a zeroplan that did not say so; add "
                  "\"{}\" to the list, and \"ensure_weight_tying\": true",
                  embedding, head);
    }
    // PEFT knows a tied matrix by these two names alone.
    const bool ties =
        ensures.value_or(false) && any && (saves_head || IsNamed(embedding, "embed_tokens"));
    const bool same_tokens =
        !tokens.head || (tokens.embedding && *tokens.embedding == *tokens.head);
    if (ensures.value_or(false) && tokens.embedding && !same_tokens) {
      config.Fail(kTokenIndices,
                  "has other tokens for {} than for {}, and ensure_weight_tying "
                  "ties the two; name the same",
                  embedding, head);
    }
    if (ties) {
      spec.lora_saved = WithoutModule(spec.lora_saved, head);
      if (!ListNames(spec.lora_saved, embedding)) AddToList(embedding, spec.lora_saved);
      return;
    }
    if (!any && same_tokens) {  // one matrix still
      if (rows.embedding > 0 || rows.head > 0) Carry(embedding, spec);
      return;
    }
    spec.tied_head = false;
  }
  if (tokens.head) spec.lora_head_tokens = WriteTokens(*tokens.head);
  if (!saves_embedding && rows.embedding > 0) Carry(embedding, spec);
  if (!saves_head && rows.head > 0) Carry(head, spec);
}

}  // namespace zeroplan
