// zeroplan config check: what a DeepSpeed config comes to.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/json_departures.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/effective_values.h"
#include "core/config/foreign_config.h"
#include "core/program/bucket_sizes.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/schemas/schemas.h"

namespace zeroplan {
namespace {

struct CheckOptions {
  Request common;
  std::string file;
  bool strict = false;
  Given<ConfigFor> reads_for;
};

// `model`: set where the options give one.
ReadContext Context(const CheckOptions& options, std::optional<ModelSpec>* model) {
  const Request& common = options.common;
  Assumptions assumptions;  // shown by none of the values below
  int64_t seq_len = ReadContext().seq_len, layers = 0;
  if (common.model.given()) {
    *model = ResolveModel(common.model, common.settings.seq_len, assumptions);
    layers = (*model)->layers;
    seq_len = ResolveSeqLen(common, **model, assumptions);
  } else if (common.settings.seq_len) {
    seq_len = *common.settings.seq_len;
  } else if (common.settings.global_batch_tokens) {
    ThrowUsage("--global-batch-tokens: {} needs a sequence length; add --seq-len or --model",
               common.settings.global_batch_tokens.text);
  }
  ReadContext context =
      ConfigContext(common.settings, ResolveHardware(common.hardware, common.cluster, assumptions),
                    common.cluster.gpus.value_or(1), seq_len);
  context.strict = options.strict;
  context.reads_for = options.reads_for.value_or(ConfigFor::kBoth);
  context.layers = layers;
  return context;
}

std::string Rows(const std::vector<EffectiveValue>& values) {
  size_t key = 3, value = 5;
  for (const EffectiveValue& row : values) {
    key = std::max(key, row.key.size());
    value = std::max(value, row.value.size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  from\n", "key", key, "value", value);
  for (const EffectiveValue& row : values) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", row.key, key, row.value, value, row.origin);
  }
  return text;
}

// The most bytes of a pipe: as many as of a file.
std::string ReadStdin() {
  std::string text;
  char part[4096];
  while (const size_t count = std::fread(part, 1, sizeof part, stdin)) {
    text.append(part, count);
    if (text.size() > kMostConfigBytes) {
      ThrowUsage("stdin: is larger than {} MiB; is it a config?", kMostConfigBytes >> 20);
    }
  }
  if (std::ferror(stdin) != 0) ThrowRuntime("stdin: cannot be read");
  return text;
}

// The keys that transformers' Trainer and accelerate fill in, of which the table has what zeroplan
// takes; "" for none.
std::string AutoNote(const JsonNode& root, const std::string& file) {
  std::vector<std::string> keys = AutoKeys(root);
  std::erase_if(keys, [](const std::string& key) { return !IsFilledIn(key); });
  if (keys.empty()) return "";
  constexpr size_t kShown = 4;
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, keys.size()));
  const std::string more =
      keys.size() > kShown ? fmt::format(" and {} more", keys.size() - kShown) : "";
  return fmt::format(
      "{}: \"auto\" of {}{}: transformers' Trainer or accelerate fills it in from its own "
      "settings; "
      "the values below are those that zeroplan takes",
      file, fmt::join(keys.begin(), end, ", "), more);
}

void Check(const CheckOptions& options) {
  const bool piped = options.file == "-";
  const std::string text = piped ? ReadStdin() : ReadTextFile(options.file);
  const std::string file = piped ? "stdin" : options.file;
  RefuseForeignConfig(text, file);
  const JsonDepartures departures = FindJsonDepartures(text, file);
  if (!departures.broken.empty()) ThrowUsage("{}; add it", departures.broken);
  std::optional<ModelSpec> model;
  const ReadContext context = Context(options, &model);
  ReadResult result = ReadDeepSpeedConfig(text, file, context);
  if (options.strict && !departures.hjson.empty()) {
    ThrowUsage("{} is no JSON; write JSON, or leave --strict out", departures.hjson);
  }
  if (model) {
    const std::string warning = LiveLimitWarning(result.setup, *model);
    if (!warning.empty()) result.warnings.push_back(fmt::format("{}: {}", file, warning));
    const std::string dies =
        context.reads_for == ConfigFor::kZeroplan ? "" : ParamBufferProblem(*model, result.setup);
    if (!dies.empty() && context.reads_for == ConfigFor::kDeepSpeed)
      ThrowUsage("{}: {}", file, dies);
    if (!dies.empty()) result.warnings.push_back(fmt::format("{}: {}", file, dies));
  }
  if (!departures.hjson.empty()) {
    result.notes.insert(
        result.notes.begin(),
        departures.hjson +
            " is no JSON but Hjson, which DeepSpeed and zeroplan read; transformers "
            "and accelerate read JSON alone");
  }
  const JsonNode root = ParseJsonText(text, file);
  if (context.reads_for != ConfigFor::kDeepSpeed) {
    if (const std::string note = AutoNote(root, file); !note.empty()) result.notes.push_back(note);
  }
  std::string out;
  for (const std::string& line : result.warnings) out += "warning: " + line + "\n";
  for (const std::string& line : result.notes) out += "note: " + line + "\n";
  if (!out.empty()) out += "\n";
  out += Rows(EffectiveValues(result.setup, root));
  out += fmt::format("\n{}: no errors{}, {} warning{}, {} GPU{}\n", file,
                     options.reads_for ? " for " + options.reads_for.text : "",
                     result.warnings.size(), result.warnings.size() == 1 ? "" : "s",
                     context.world_size, context.world_size == 1 ? "" : "s");
  WriteReport("", out);
}

std::string (*ParseSchemaKind(const std::string& text, std::string_view option))() {
  const std::pair<std::string_view, std::string (*)()> kinds[] = {{"config", ConfigSchema},
                                                                  {"profile", ProfileSchema},
                                                                  {"plan", PlanSchema},
                                                                  {"metrics", MetricsSchema}};
  for (const auto& [name, schema] : kinds) {
    if (text == name) return schema;
  }
  ThrowUsage("{}: {} is not allowed; use config, profile, plan or metrics", option, text);
}

const OutputKind kSchema = {"a schema that zeroplan wrote", {"urn:zeroplan:schema:"}};

void AddSchemaCommand(Command& group) {
  struct Options {
    std::string kind, output;
  };
  Command schema = group.Add("schema", "JSON Schema of a kind of file, for editors");
  auto options = std::make_shared<Options>();
  schema.Required(
      "kind", "config|profile|plan|metrics",
      "config (DeepSpeed's), profile (hardware), plan (--plan-out) or metrics (a line of "
      "train --metrics)",
      options->kind);
  schema.Text({.group = kNoGroup,
               .name = "-o,--out",
               .type = "FILE",
               .help = "File for it (default: stdout)",
               .path = PathRole::Writes(kSchema)},
              options->output);
  schema.Footer("Example:\n  zeroplan config schema config -o ds_config.schema.json");
  schema.Run([options] { WriteOutput(options->output, ParseSchemaKind(options->kind, "kind")()); });
}

}  // namespace

void RegisterConfig(Command& app) {
  Command group = app.AddGroup("config", "DeepSpeed configs");
  group.Footer(
      "Examples:\n  zeroplan config check ds_config.json --gpus 8 --model gpt2-xl\n  jq .deepspeed "
      "run.json | zeroplan config check -");
  Command check = group.Add("check", "Errors, warnings and effective values of a DeepSpeed config");
  auto options = std::make_shared<CheckOptions>();
  Request& common = options->common;
  check.Required("file", "FILE", "The config; - reads it from stdin", options->file);
  check.Flag(kNoGroup, "--strict",
             "Treat unknown keys of the top level as errors, and what is Hjson but no JSON",
             options->strict);
  check.Value(
      {kNoGroup, "--for", "deepspeed|zeroplan",
       "Whose config it is to be. deepspeed: keys and values that DeepSpeed accepts, whether "
       "or not zeroplan does them. zeroplan: what its executor honours, with a warning for "
       "each key that has no effect in it (default: both; what DeepSpeed alone refuses is a "
       "warning)"},
      options->reads_for, [](const std::string& word, std::string_view name) {
        return WordIn<int>({"deepspeed", "zeroplan"})(word, name) == 0 ? ConfigFor::kDeepSpeed
                                                                       : ConfigFor::kZeroplan;
      });
  AddModelFields(check, common.model);
  check.Value({"Hardware", "--gpus", "COUNT", "GPUs in all, for the batch arithmetic (default 1)"},
              common.cluster.gpus, WholeIn<int>(1, kMaxGpus));
  check.Text({"Hardware", "--hw", "NAME|FILE",
              "Hardware profile, for precision \"auto\" (see 'zeroplan hw list')"},
             common.hardware.profile, ProfileNames);
  AddSettings(check, common.settings, SettingGroup::kBatch, OptionsOf::kEstimate);
  check.Run([options] { Check(*options); });
  AddSchemaCommand(group);
}

}  // namespace zeroplan
