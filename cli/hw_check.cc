// zeroplan hw check: what a profile predicts beside what runs took.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/command_files.h"
#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "planner/plan/plan_file.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runs/prediction_table.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan train --plan plan.json --data corpus.bin --backend cuda --metrics run.jsonl
  zeroplan hw check run.jsonl --plan plan.json --hw ./mine.json
  zeroplan hw check runs/*.jsonl --hw ./mine.json > table.md)";

const OutputKind kTable = {"a table of 'zeroplan hw check'", {"ms a step", "| run: GPUs x model"}};

enum class TableFormat : uint8_t { kText, kMarkdown };

struct CheckCommand {
  std::vector<std::string> metrics;
  Given<TableFormat> format;
  std::string hardware, model, plan, output;
};

void RunCheck(const CheckCommand& command) {
  if (!command.plan.empty() && command.metrics.size() != 1) {
    ThrowUsage("--plan: is of one run, not of {}; give one metrics file", command.metrics.size());
  }
  Assumptions assumptions;
  const HardwareProfile hardware =
      ResolveHardware(HardwareFields{.profile = command.hardware, .find = FindThisMachine}, {},
                      assumptions, MeasureHost::kYes);
  for (const std::string& note : assumptions.notes) LogInfo("{}", note);
  std::vector<Comparison> rows;
  for (const std::string& file : command.metrics) {
    const std::string text = ReadTextFile(file);
    if (file.ends_with(".csv") && !text.starts_with('{')) {
      ThrowUsage(
          "{}: CSV has steps alone, without what ran; give what 'train --metrics FILE.jsonl' "
          "wrote",
          file);
    }
    const MeasuredRun run = ReadMetrics(text, file);
    if (command.plan.empty()) {
      std::optional<ModelSpec> model;
      if (!command.model.empty()) {
        model = LoadModel(command.model);
      } else if (!run.program) {
        model = LoadModel(run.model);
      }
      rows.push_back(Compare(run, model, hardware));
      continue;
    }
    const PlanFile plan = ReadPlan(ReadTextFile(command.plan), command.plan);
    if (plan.setup.batch.world_size != run.setup.batch.world_size) {
      ThrowUsage("--plan: {} is for {} GPUs, {} ran on {}", command.plan,
                 plan.setup.batch.world_size, file, run.setup.batch.world_size);
    }
    rows.push_back(CompareProgram(run, CheckedProgram(plan), hardware));
  }
  const bool on_terminal = command.output.empty() && TerminalColumns(STDOUT_FILENO) > 0;
  if (command.format.value_or(on_terminal ? TableFormat::kText : TableFormat::kMarkdown) ==
      TableFormat::kMarkdown) {
    WriteOutput(command.output, Escaped(PredictionTable(rows, hardware)));
    return;
  }
  LayOutFor(command.output);
  WriteReport(command.output, PredictionText(rows, hardware, PageColumns()));
}

}  // namespace

void RegisterHardwareCheck(Command& hardware) {
  auto options = std::make_shared<CheckCommand>();
  Command command = hardware.Add("check", "What a profile predicts beside what runs took");
  command.Required("metrics", "FILE.jsonl", "Files that 'zeroplan train --metrics' wrote",
                   options->metrics);
  command.Text({"Hardware", "--hw", "NAME|FILE",
                "Hardware profile that predicts (default: this machine's GPUs, else the built-in "
                "one)"},
               options->hardware, ProfileNames);
  const char* run = "What ran";
  command.Text({run,
                "--model",
                "NAME|PATH",
                "Model that ran (default: the built-in one of that name)",
                {"--plan"}},
               options->model, KnownModels);
  command.Text(
      {run, "--plan", "PLAN", "Plan that ran, where it had settings that metrics do not hold"},
      options->plan);
  command.Value({"Output", "--format", "text|markdown",
                 "text for people, as wide as the terminal; markdown with all columns, for "
                 "documents (default: text on a terminal, markdown into a file or a pipe)"},
                options->format, WordIn<TableFormat>({"text", "markdown"}));
  command.Text({.group = "Output",
                .name = "-o,--out",
                .type = "FILE",
                .help = "File for the table (default: stdout)",
                .path = PathRole::Writes(kTable)},
               options->output);
  command.Footer(kFooter);
  command.Run([options] { RunCheck(*options); });
}

}  // namespace zeroplan
