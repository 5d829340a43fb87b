// zeroplan model list|show: the shapes that zeroplan knows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "core/model/param_table.h"
#include "planner/request/fields.h"

namespace zeroplan {
namespace {

std::string ListModels() {
  std::string text = fmt::format("{:<17} {:>6} {:>6} {:>6} {:>5} {:>7}  {}\n", "name", "params",
                                 "layers", "hidden", "heads", "seq len", "source");
  for (const ModelPreset& preset : ModelPresets()) {
    const ModelSpec& spec = preset.spec;
    text += fmt::format("{:<17} {:>6} {:>6} {:>6} {:>5} {:>7}  {}\n", spec.name,
                        FormatCount(spec.ParamCount()), spec.layers, spec.hidden, spec.heads,
                        spec.positions, preset.source);
  }
  return text + '\n' +
         Paragraph(
             "Names under which models of these shapes are published are taken, too, such as "
             "meta-llama/Llama-3.1-8B-Instruct; 'zeroplan model show NAME' lists them.",
             0);
}

using Json = nlohmann::ordered_json;

std::vector<std::string> PublishedNames(const ModelPreset& preset) {
  std::vector<std::string> names;
  for (const PublishedName& published : preset.published) names.emplace_back(published.name);
  return names;
}

// Keys are a contract (docs/metrics.md).
std::string ModelsJson() {
  Json models = Json::array();
  for (const ModelPreset& preset : ModelPresets()) {
    const ModelSpec& spec = preset.spec;
    models.push_back({{"name", spec.name},
                      {"family", spec.family->name()},
                      {"params", spec.ParamCount()},
                      {"layers", spec.layers},
                      {"hidden", spec.hidden},
                      {"heads", spec.heads},
                      {"vocab", spec.vocab},
                      {"seq_len", spec.positions},
                      {"published", PublishedNames(preset)},
                      {"source", preset.source}});
  }
  return Json({{"schema", "zeroplan.models/1"}, {"models", std::move(models)}}).dump(2) + '\n';
}

std::string ModelJson(const std::string& name) {
  const ModelSpec spec = LoadModel(name);
  Json tensors = Json::array();
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    Json shape = {tensor.shape[0]};
    if (!tensor.is_vector) shape.push_back(tensor.shape[1]);
    tensors.push_back({{"name", tensor.name},
                       {"shape", std::move(shape)},
                       {"elements", tensor.elements()},
                       {"decay", tensor.decay}});
  }
  return Json({{"schema", "zeroplan.model/1"},
               {"name", spec.name},
               {"family", spec.family->name()},
               {"params", spec.ParamCount()},
               {"unpadded_params", spec.UnpaddedParamCount()},
               {"active_params", spec.ActiveParamCount()},
               {"layers", spec.layers},
               {"hidden", spec.hidden},
               {"heads", spec.heads},
               {"kv_heads", spec.KvHeads()},
               {"head_size", spec.HeadSize()},
               {"ffn", spec.ffn},
               {"num_experts", spec.experts},
               {"experts_per_token", spec.experts_per_token},
               {"expert_ffn", spec.experts > 0 ? spec.ExpertFfn() : 0},
               {"shared_ffn", spec.shared_ffn},
               {"vocab", spec.vocab},
               {"padded_vocab", spec.padded_vocab},
               {"seq_len", spec.positions},
               {"tensors", std::move(tensors)}})
             .dump(2) +
         '\n';
}

std::string ShowModel(const std::string& name) {
  const NamedModel named = FindModel(name);
  const ModelSpec& spec = named.spec;
  std::string text = named.note.empty() ? "" : Paragraph(named.note, 2) + '\n';
  text += fmt::format("name        {}\nfamily      {}\nlayers      {}\nhidden      {}\n", spec.name,
                      spec.family->name(), spec.layers, spec.hidden);
  text += fmt::format("heads       {} of {}", spec.heads, spec.HeadSize());
  if (spec.KvHeads() != spec.heads) text += fmt::format(", {} of keys and values", spec.KvHeads());
  text += '\n';
  const bool padded = spec.padded_vocab != spec.vocab;
  if (ExpertLayers(spec) < spec.layers) text += fmt::format("mlp         {}\n", spec.ffn);
  text +=
      fmt::format("vocabulary  {}{}\nseq len     at most {}\n", spec.vocab,
                  padded ? fmt::format(" (padded to {})", spec.padded_vocab) : "", spec.positions);
  text += fmt::format(
      "parameters  {}{}\n\n", spec.ParamCount(),
      padded ? fmt::format(" in memory, {} without padding", spec.UnpaddedParamCount()) : "");
  if (spec.experts > 0) {
    text.pop_back();
    text += fmt::format(
        "experts     {} of width {}, {} a token{}{}\nactive      {} parameters\n\n", spec.experts,
        spec.ExpertFfn(), spec.experts_per_token,
        spec.shared_ffn > 0 ? fmt::format(", a shared one of {}", spec.shared_ffn) : "",
        spec.dense_layers.empty() ? "" : fmt::format("; layers {} have an MLP", spec.dense_layers),
        spec.ActiveParamCount());
  }
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.spec.name != spec.name || preset.published.empty()) continue;
    text.pop_back();
    text += Paragraph(fmt::format("published   {}", fmt::join(PublishedNames(preset), ", ")), 12);
    text += '\n';
  }
  text += fmt::format("{:<40} {:>14} {:>13} {:>6}\n", "tensor", "shape", "elements", "decay");
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    if (tensor.layer > 0 && tensor.layer < spec.layers) continue;  // every layer is like the first
    const std::string shape = tensor.is_vector
                                  ? fmt::format("{}", tensor.shape[0])
                                  : fmt::format("{} x {}", tensor.shape[0], tensor.shape[1]);
    text += fmt::format("{:<40} {:>14} {:>13} {:>6}\n", tensor.name, shape, tensor.elements(),
                        tensor.decay ? "yes" : "no");
  }
  if (spec.layers > 1) text += fmt::format("(layers 1 to {} as layer 0)\n", spec.layers - 1);
  return text;
}

}  // namespace

void RegisterModel(Command& app) {
  Command group = app.AddGroup("model", "The model shapes zeroplan knows");
  group.Footer("Examples:\n  zeroplan model list\n  zeroplan model show gpt2-xl");
  Command list = group.Add("list", "Presets, with where their shapes come from");
  auto list_format = std::make_shared<Given<OutputFormat>>();
  AddFormatOption(list, "schema zeroplan.models/1", *list_format);
  list.Run([list_format] {
    if (*list_format == OutputFormat::kJson) return WriteOutput("", ModelsJson());
    WriteReport("", ListModels());
  });
  Command show = group.Add("show", "Dimensions and tensors of one model");
  auto name = std::make_shared<std::string>();
  auto format = std::make_shared<Given<OutputFormat>>();
  AddFormatOption(show, "schema zeroplan.model/1, with every tensor", *format);
  show.Required("model", "NAME|FILE|DIR",
                "A preset, a published name, a Hugging Face config.json, or a folder with one",
                *name, KnownModels);
  show.Run([name, format] {
    if (*format == OutputFormat::kJson) return WriteOutput("", ModelJson(*name));
    WriteReport("", ShowModel(*name));
  });
}

}  // namespace zeroplan
