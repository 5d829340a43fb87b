// The fields of settings, made from the rows of settings.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"

namespace zeroplan {

namespace {

std::vector<std::string_view> DecidersOf(DecidedBy decided_by) {
  switch (decided_by) {
    case DecidedBy::kNothing:
      return {};
    case DecidedBy::kPlan:
      return {"⟦plan⟧"};
    case DecidedBy::kPlanOrConfig:
      return {"⟦plan⟧", "⟦config⟧"};
  }
  return {};
}

std::string HelpOf(const SettingRow& row, OptionsOf of) {
  std::string otherwise = row.otherwise.Of(of);
  if (otherwise.empty() && row.words != nullptr) {
    otherwise = fmt::format("{}", fmt::join(row.words(), ", "));
  }
  return fmt::format(fmt::runtime(row.help.Of(of)), otherwise);
}

FieldInfo InfoOf(const SettingRow& row, OptionsOf of) {
  std::string type = row.type.Of(of);
  if (type.empty()) type = AnyOf(row.option_words != nullptr ? row.option_words(of) : row.words());
  return {SettingGroupName(row.group), FieldName(row), std::move(type), HelpOf(row, of),
          DecidersOf(row.decided_by)};
}

struct Flag {};
constexpr Flag kFlag;

template <typename T, typename Parse>
void Add(FieldSink& sink, const SettingRow& row, OptionsOf of, Given<T>& field, Parse parse) {
  sink.Value(InfoOf(row, of), field, parse);
}
void Add(FieldSink& sink, const SettingRow& row, OptionsOf of, bool& field, Flag) {
  sink.Flag(SettingGroupName(row.group), FieldName(row), HelpOf(row, of), field);
}

// Only a search accepts several numbers.
std::function<std::vector<int>(const std::string&, std::string_view)> SequenceRanksIn(
    OptionsOf of) {
  if (of == OptionsOf::kPlan) return ParseSequenceRanks;
  return [](const std::string& text, std::string_view option) {
    return std::vector{static_cast<int>(ParseWhole(text, option, 1, kMaxGpus))};
  };
}

}  // namespace

void AddSettings(FieldSink& sink, AskedSettings& asked, SettingGroup group, OptionsOf of) {
#define SETTING(id, Type, parse, ...) \
  if (setting::id.group == group) Add(sink, setting::id, of, asked.id, parse);
#define OPTION(...) SETTING(__VA_ARGS__)
#define RECORD(id, ...)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
}

namespace {

template <typename T, typename Parse>
Taken Take(const std::string& text, const std::string& where, Given<T>& field, Parse parse) {
  const T value = parse(text, where);
  if (field) return *field == value ? Taken::kSame : Taken::kGivenOtherwise;
  field.emplace(value);
  field.text = text;
  return Taken::kTaken;
}
Taken Take(const std::string& text, const std::string&, bool& field, Flag) {
  if (field || text != "true") return Taken::kSame;
  field = true;
  return Taken::kTaken;
}

}  // namespace

Taken TakeSetting(const SettingRow& row, const std::string& text, const std::string& where,
                  AskedSettings& asked) {
  constexpr OptionsOf of = OptionsOf::kEstimate;
#define SETTING(id, Type, parse, ...) \
  if (row.name == setting::id.name) return Take(text, where, asked.id, parse);
#define OPTION(...) SETTING(__VA_ARGS__)
#define RECORD(id, ...)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
  ZEROPLAN_CHECK(false, "no option sets {}", row.name);
  return Taken::kSame;
}

std::map<std::string_view, SettingValue> AskedValues(const AskedSettings& asked) {
  std::map<std::string_view, SettingValue> values;
  ForEachSetting(asked, [&]<typename T>(const SettingRow& row, const T& field) {
    if (row.set == nullptr || !IsGiven(field)) return;
    if constexpr (std::is_same_v<T, bool>) {
      values.emplace(row.name, true);
    } else if constexpr (std::is_arithmetic_v<typename T::value_type>) {
      values.emplace(row.name, ValueOf(*field));
    } else {
      values.emplace(row.name, field.text);  // a word
    }
  });
  return values;
}

void SetAsked(const AskedSettings& asked, TrainSetup& setup) {
  for (const auto& [name, value] : AskedValues(asked)) FindSetting(name)->set(setup, value);
}

void AddDeterministicField(FieldSink& sink, AskedSettings& asked) {
  Add(sink, setting::deterministic, OptionsOf::kTrain, asked.deterministic, kFlag);
}

void AddChoiceFields(FieldSink& sink, Request& request, OptionsOf of) {
  AddSettings(sink, request.settings, SettingGroup::kZero, of);
  FieldInfo config = {SettingGroupName(SettingGroup::kZero), "⟦config⟧", "FILE",
                      of == OptionsOf::kPlan
                          ? "A DeepSpeed JSON config, or - for stdin: what it sets stays, what it "
                            "leaves to \"auto\" is searched"
                          : "A DeepSpeed JSON config, or - for stdin: exactly this choice, instead "
                            "of the options above"};
  config.decided_by = DecidersOf(DecidedBy::kPlan);
  sink.Take({config, "", [&request](const std::string& text, std::string_view) {
               request.config = ConfigDocument::FromFile(text);
             }});
}

void CheckRecomputeFields(const Request& request) {
  const AskedSettings& fields = request.settings;
  const Given<Checkpointing>& kind = fields.checkpointing;
  const auto is = [&](Checkpointing of) { return kind == of; };
  const bool whole =
      is(Checkpointing::kFull) || is(Checkpointing::kAll) || is(Checkpointing::kSearched);
  if (fields.checkpoint_every && kind && !whole) {
    ThrowUsage("⟦checkpoint_every⟧: {} has no effect with ⟦checkpointing⟧ {}; leave one out",
               fields.checkpoint_every.text, kind.text);
  }
  const bool one_kind =
      kind ? !is(Checkpointing::kNone) && !is(Checkpointing::kAll) && !is(Checkpointing::kSearched)
           : fields.checkpoint_every.has_value();
  if (fields.checkpoint_layers && !one_kind) {
    ThrowUsage(
        "⟦checkpoint_layers⟧: {} is not allowed with{} ⟦checkpointing⟧{}; use selective, products "
        "or full, which is of these layers then",
        fields.checkpoint_layers.text, kind ? "" : "out", kind ? " " + kind.text : "");
  }
  const Given<RecomputeKind>& above = fields.checkpointing_above;
  if (above && !fields.checkpoint_layers) {
    ThrowUsage(
        "⟦checkpointing_above⟧: {} has no effect without ⟦checkpoint_layers⟧, above which it is; "
        "add that, or leave it out",
        above.text);
  }
  if (above == RecomputeKind::kSelective && is(Checkpointing::kSelective)) {
    ThrowUsage(
        "⟦checkpointing_above⟧: selective is not allowed with ⟦checkpointing⟧ selective: all "
        "layers are; leave ⟦checkpoint_layers⟧ and ⟦checkpointing_above⟧ out");
  }
  const Runtime& runtime = request.runtime.of();
  if (fields.offload_activation_layers && !runtime.facts().offloads_by_layer) {
    ThrowUsage(
        "⟦offload_activation_layers⟧: {} is not allowed with ⟦runtime⟧ {}, which moves those of "
        "all layers or of none; use ⟦offload_activations⟧ alone, or ⟦runtime⟧ zeroplan",
        fields.offload_activation_layers.text, runtime.key());
  }
}

RecomputeConfig WithRecomputeFields(RecomputeConfig recompute, const Request& request,
                                    int64_t layers) {
  const AskedSettings& fields = request.settings;
  recompute.layers = fields.checkpoint_layers.value_or(0);
  recompute.above = fields.checkpointing_above.value_or(RecomputeKind::kNone);
  const bool offloads = request.settings.offload_activations || fields.offload_activation_layers;
  // For another runtime the offload is a part of the recipe.
  if (offloads && request.runtime.of().facts().offloads_by_layer) {
    recompute.offload = {OffloadDevice::kCpu, fields.offload_activation_layers.value_or(0)};
  }
  return OfModel(recompute, layers);
}

}  // namespace zeroplan
