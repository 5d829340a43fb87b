#include "cli/plan/plan_methods.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/long_work.h"
#include "core/model/lora.h"
#include "planner/request/methods.h"

namespace zeroplan {

bool HasWeights(const ModelFields& fields) {
  const std::filesystem::path folder = FolderOfModel(fields);
  std::error_code ignored;
  return !folder.empty() &&
         (std::filesystem::exists(folder / "model.safetensors", ignored) ||
          std::filesystem::exists(folder / "model.safetensors.index.json", ignored));
}

bool LacksWeights(const ModelFields& fields, const PlanAnswer& answer) {
  if (fields.params || fields.model.ends_with(".json") || HasWeights(fields)) return false;
  if (HasAdapters(answer.plan.model)) return true;
  const std::optional<DataFacts>& data = answer.report.goal.data;
  return FolderOfModel(fields).empty() && data && data->packing != Packing::kStream;
}

void PrintComparison(PlanOptions options, Assumptions assumptions) {
  LongWork work("Comparing");
  options.brief = options.on_screen();
  const MethodComparison comparison = CompareMethods(
      options, assumptions, [&](const std::string& what) { work.Show([&] { return what; }); });
  const bool colour = StdoutTakesColour();
  const std::string first = assumptions.first.empty() ? "" : Paragraph(assumptions.first, 2);
  if (options.as_json()) {
    WriteOutput("", MethodsJson(comparison));
  } else if (options.on_screen()) {
    ScreenNotes notes{Taken(assumptions), comparison.doubts, ""};
    if (comparison.answer.method) {
      const MethodChoice& best = comparison.methods[*comparison.answer.method];
      notes.next =
          OwnCommand({"--method"}, {"--method", std::string(TuningMethodName(best.method))});
    }
    WriteReport("", first + MethodsScreen(comparison, notes, PageColumns(), colour), colour);
  } else {
    WriteReport(
        "",
        first + MethodsText(comparison, PageColumns(), colour) + '\n' + AssumedText(assumptions),
        colour);
  }
  if (!comparison.answer.method) {
    const bool proven = comparison.answer.possible.empty();
    throw Error(ExitCode::kNothingFits,
                std::string(proven ? "nothing fits" : "nothing was found that fits") +
                    " by any of these methods; above stands what would");
  }
}

}  // namespace zeroplan
