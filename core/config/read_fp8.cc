// Reads "_zeroplan.fp8": matmuls in FP8. DeepSpeed's JSON has no key for them.
#include <array>
#include <optional>
#include <string_view>

#include "core/config/reader_state.h"

namespace zeroplan {

namespace {

struct Fp8Key {
  const char* key;
  const char* option;
};
constexpr Fp8Key kEnabled{"enabled", "⟦matmul_dtype⟧"}, kRecipe{"recipe", "⟦fp8_recipe⟧"},
    kGradients{"gradients", "⟦fp8_gradients⟧"};

void ReportFp8Conflict(const JsonSection& section, const Fp8Key& of, std::string_view said,
                       std::string_view asked, std::string_view fix) {
  section.Report(of.key, "{} contradicts {} {}; use {} {} or change the config", said, of.option,
                 asked, of.option, fix);
}

// The value that the section sets, else the option's. Two values that differ are a problem.
template <typename T, size_t kCount>
T ReadFp8Word(JsonSection* section, const Fp8Key& of, const WordTable<T, kCount>& table,
              const std::optional<T>& asked) {
  const std::optional<T> said = section->Word(of.key, table);
  if (!said) return asked.value_or(table.front().value);
  const std::string_view word = WordFor(table, *said);
  if (asked && *asked != *said) {
    ReportFp8Conflict(*section, of, word, WordFor(table, *asked), word);
  }
  return *said;
}

}  // namespace

void ReadOwnFp8(ReaderState* state, JsonSection* own, bool deepspeed) {
  const ReadContext& context = state->context;
  const Dtype dtype = state->result.setup.precision.dtype;
  Fp8Config& out = state->result.setup.precision.fp8;
  JsonSection& section = state->Open(own, "fp8");
  const std::optional<bool> enabled = section.Bool(kEnabled.key);
  section.Key(kEnabled.key).required = true;
  const std::string_view names[] = {DtypeName(dtype), "fp8"};
  if (enabled && context.fp8 && *enabled != *context.fp8) {
    ReportFp8Conflict(section, kEnabled, *enabled ? "true" : "false", names[*context.fp8],
                      names[*enabled]);
  } else if (section.present() && section.Raw(kEnabled.key) == nullptr) {
    section.Report(kEnabled.key, "is not given; use true or false");
  }
  out.enabled = enabled.value_or(context.fp8.value_or(false));
  out.recipe = ReadFp8Word(&section, kRecipe, kWords<Fp8Recipe>, context.fp8_recipe);
  out.gradients = ReadFp8Word(&section, kGradients, kFp8GradientWords, context.fp8_gradients);
  out.fast_gradients = section.Bool("fast_gradients").value_or(out.fast_gradients);
  out.least_side = section.Int("least_side").value_or(0);
  if (!out.enabled) {
    const auto without = [state](const char* option, std::string_view value) {
      state->AddProblem(0, fmt::format("{}: {} has no effect without ⟦matmul_dtype⟧ fp8; add that, "
                                       "or leave it out",
                                       option, value));
    };
    if (context.fp8_recipe) without(kRecipe.option, Fp8RecipeName(*context.fp8_recipe));
    if (context.fp8_gradients) without(kGradients.option, DtypeName(*context.fp8_gradients));
    return;
  }
  if (deepspeed || context.of_deepspeed) {
    section.Report(kEnabled.key,
                   "true is not allowed: DeepSpeed multiplies in {} and passes over this key; use "
                   "false or remove it",
                   DtypeName(dtype));
  }
}

}  // namespace zeroplan
