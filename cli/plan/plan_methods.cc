#include "cli/plan/plan_methods.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/long_work.h"
#include "planner/request/methods.h"

namespace zeroplan {

bool HasWeights(const ModelFields& fields) {
  const std::filesystem::path folder = FolderOfModel(fields);
  std::error_code ignored;
  return !folder.empty() &&
         (std::filesystem::exists(folder / "model.safetensors", ignored) ||
          std::filesystem::exists(folder / "model.safetensors.index.json", ignored));
}

void PrintComparison(const PlanRequest& request, Assumptions assumptions, bool json) {
  LongWork work("Comparing");
  const MethodComparison comparison = CompareMethods(
      request, assumptions, [&](const std::string& what) { work.Show([&] { return what; }); });
  if (json) {
    WriteOutput("", MethodsJson(comparison));
  } else {
    const bool colour = StdoutTakesColour();
    WriteReport("",
                (assumptions.first.empty() ? "" : Paragraph(assumptions.first, 2)) +
                    MethodsText(comparison, PageColumns(), colour) + '\n' +
                    AssumedText(assumptions),
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
