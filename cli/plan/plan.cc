// zeroplan plan: searches the choices, says why, writes what DeepSpeed or train take.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/command.h"
#include "cli/common/command_files.h"
#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "cli/plan/plan_config.h"
#include "cli/plan/plan_machines.h"
#include "cli/plan/plan_methods.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/model_spec.h"
#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"
#include "machine/detect.h"
#include "planner/estimate/choices.h"
#include "planner/explain/explain.h"
#include "planner/formats/launch_files.h"
#include "planner/page/plan_page.h"
#include "planner/plan/plan_file.h"
#include "planner/plan/plan_table.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"
#include "planner/request/data_fields.h"
#include "planner/request/methods.h"
#include "planner/request/parse.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {
namespace {

constexpr const char* kPlanFooter = R"(Examples:
  zeroplan plan --model gpt2-10b --gpu-memory 32GB
  zeroplan plan --params 5B --hw dgx-a100-40gb --gpus 16 --global-batch 256
  zeroplan plan --model gpt3-6.7b --gpus 8 --runtime deepspeed --compile layers --out ds_config.json
  zeroplan plan --model llama3.1-8b --gpus 8 --seq-len 4096 --for accelerate --out run.yaml
  zeroplan plan --model gpt3-6.7b --gpus 8 --plan-out plan.json
  zeroplan plan --model gpt2-xl --gpus 8 --stage 3 --explain
  zeroplan plan --largest --gpus 8 --hw dgx-a100-80gb
  zeroplan plan --params 7B --gpus 8 --largest seq-len
  zeroplan plan --model gpt3-6.7b --gpus 64 --tokens 300B --gpu-hour-price 2.5
  zeroplan plan --model llama3.1-8b --hw rtx4090,l40s,dgx-h100 --gpus 1,2,4,8 --tokens 100M
  zeroplan plan llama3.1-8b --hw dgx-h100 --tokens 1B --interruptions 2/day --notice 2min
  zeroplan plan --model models/smollm2 --gpus 1 --data chats.jsonl --epochs 3
What an option leaves open is searched; what it sets stays. Exit code 3 if nothing fits: the message
names the smallest change that would.)";

std::string Headline(const Plan& plan) {
  const bool programs = plan.runtime->facts().trains_here;
  return Paragraph(fmt::format("{}{}: {}, sequence {}, {}{}", plan.model.name,
                               programs ? "" : fmt::format(" under {}", plan.runtime->version()),
                               plan.model.CountsText(), plan.setup.batch.seq_len,
                               PrecisionText(plan.setup),
                               programs ? "" : fmt::format(", {}", RecipeText(plan.recipe))),
                   2) +
         Paragraph(ClusterLine(plan.cluster), 2);
}

std::string StatsLine(const Plan& plan, double seconds) {
  const SearchStats& stats = plan.stats;
  if (!plan.runtime->has_programs()) {
    return Paragraph(
        fmt::format("Searched {} choices in {}: {} cut because smaller ones of their kind do not "
                    "fit, {} because they cannot be better than what fits, {} judged; {} steps "
                    "were played.",
                    stats.candidates, FormatSeconds(seconds), stats.cut_by_memory,
                    stats.cut_by_score, stats.judged, stats.lowered),
        2);
  }
  const std::string left =
      stats.left > 0 ? fmt::format(", {} left when its budget was spent", stats.left) : "";
  return Paragraph(
      fmt::format("Searched {} choice{} in {}: {} cut by a bound on memory, {} by a bound on "
                  "their score, {} judged by their program{}; {} program{} lowered.",
                  stats.candidates, stats.candidates == 1 ? "" : "s", FormatSeconds(seconds),
                  stats.cut_by_memory, stats.cut_by_score, stats.judged, left, stats.lowered,
                  stats.lowered == 1 ? "" : "s"),
      2);
}

// A paragraph of advice; on a terminal that shows colours what it is about stands out.
std::string Painted(const AdviceLine& line, const Paints& paints) {
  std::string text = Paragraph(line.text, 2);
  const size_t end = std::min(text.find(": "), text.find(". "));
  if (paints.bold.empty() || end > text.find('\n') || end == std::string::npos) return text;
  const std::string_view paint = line.kind == AdviceKind::kChosen ? paints.green : "";
  return fmt::format("{}{}{}{}{}", paints.bold, paint, text.substr(0, end + 1), paints.reset,
                     text.substr(end + 1));
}

// The command that goes on from the answer: it trains the plan, or writes what would.
std::string NextCommand(const PlanOptions& options, const PlanAnswer& answer, bool trained) {
  const Runtime& runtime = *answer.plan.runtime;
  if (!options.deepspeed_file.empty()) return "";  // --out prints the command that starts it
  if (!runtime.facts().trains_here || !trained) {
    return runtime.reads_deepspeed_config() ? OwnCommand({}, {"--out", "ds_config.json"}) : "";
  }
  if (options.plan_file.empty()) return OwnCommand({}, {"--plan-out", "plan.json"});
  std::vector<std::string> words = {"zeroplan", "train", "--plan", options.plan_file, "--data"};
  const std::vector<std::string>& data = options.common.goal.data.paths;
  words.insert(words.end(), data.begin(), data.end());
  if (data.empty()) words.emplace_back("DATA");
  if (LacksWeights(options.common.model, answer)) {
    words.insert(words.end(), {"--model", "FOLDER_OF_ITS_WEIGHTS"});
  }
  words.insert(words.end(), {"--save", "out"});
  return ShellCommand(words);
}

// The origin of a derived model's shape.
std::string ShapeText(const ModelFields& model) {
  if (!model.params || !model.family.empty()) return "";
  return " (GPT-2's shape; --family llama --seq-len 4096 for a Llama's)";
}

// The facts about the run's data, and its length and price: all of them, or a line of each.
std::vector<std::string> RunParagraphs(const PlanAnswer& answer, bool brief) {
  const RunGoal& goal = answer.report.goal;
  const Plan& plan = answer.plan;
  const BatchSpec& batch = plan.setup.batch;
  const TimeEstimate& time = plan.choice.time;
  std::vector<std::string> paragraphs;
  if (goal.data && brief) {
    paragraphs = {DataScreen(*goal.data, *time.tokens_per_second)};
  } else if (goal.data) {
    paragraphs = DataParagraphs(goal, batch, plan.model);
  }
  if (!goal.tokens) return paragraphs;
  paragraphs.push_back((brief ? RunCostLine : RunCostText)(goal, batch, *time.total_seconds));
  return paragraphs;
}

// Searches and prints the answer, then what would change it, each as soon as it is known.
PlanAnswer Answer(const PlanOptions& options, ResolvedPlan& request, ChoiceSearch& searcher,
                  LongWork& progress, const std::string& largest, const std::string& first,
                  SearchResult& found) {
  const bool as_text = options.explain && !options.as_json();
  AnswerListener listener;
  const bool colour = StdoutTakesColour();
  const Paints paints(colour);
  listener.chosen = [&](const Plan& plan, const SearchResult& result,
                        const std::vector<AdviceLine>& before, bool again) {
    found = result;
    std::string lines;
    for (const AdviceLine& line : before) lines += Painted(line, paints);
    std::string head =
        again ? '\n' +
                    Paragraph(
                        "While looking for what would change the answer, a better one was "
                        "found. What stands above is replaced by this:",
                        2) +
                    lines
              : (first.empty() ? "" : Paragraph(first, 2)) + lines + Headline(plan) + '\n';
    if (!again && !largest.empty()) head += Paragraph(largest, 2);
    head += StageTable(plan, result, request.hardware(), PageColumns(), colour) + '\n';
    if (as_text) WriteReport("", head, true);
    progress.Doing("Looking for what would change the answer");
  };
  listener.advice = [&](const AdviceLine& line) {
    if (as_text) WriteReport("", Painted(line, paints), true);
  };
  PlanAnswer answer = FindAnswer(request, searcher, listener);
  if (as_text) {
    for (const std::string& part : RunParagraphs(answer, /*brief=*/false)) {
      WriteReport("", Paragraph(part, 2), true);
    }
  }
  return answer;
}

std::string Find(PlanRequest& request) {
  LongWork work("Looking for the largest that fits");
  return FindLargest(request, [&](const std::string& step) { work.Show([&] { return step; }); })
      .text;
}

// What a step program alone can show.
void RefuseForOthers(const PlanOptions& options, const Runtime& runtime) {
  if (runtime.has_programs() || options.trace_file.empty()) return;
  ThrowUsage(
      "--trace: shows a step of zeroplan's own executor, not of {}; leave it out, or use "
      "--plan-out "
      "and 'zeroplan explain'",
      runtime.name());
}

// Of a plan's file: what others named as it came, fields in zeroplan's own words as options.
std::string PlanText(Plan plan) {
  for (std::string& line : plan.advice) line = NameFields(line);
  return WritePlan(plan);
}

// Of a choice for another program: what zeroplan's own executor would reach; its plan too, where
// --plan-out wants it.
std::optional<ExecutorBest> AskExecutor(const PlanOptions& options, bool other_code) {
  PlanRequest asked = options;
  asked.common.runtime = {};
  ClearSettings(asked.common.settings, SettingGroup::kRecipe);
  asked.for_config = false;
  Assumptions unused;
  std::optional<ResolvedPlan> resolved;
  try {
    resolved.emplace(asked, unused);
  } catch (const Error&) {
    // The config has what DeepSpeed alone does; or the model's settings what its code alone has,
    // such as adapters of experts.
    if (!options.plan_file.empty()) throw;
    if (!asked.common.config.given() && !other_code) throw;
    return std::nullopt;
  }
  const ResolvedPlan& request = *resolved;
  SearchInputs inputs = request.inputs();
  inputs.effort = options.effort.value_or(1);
  LongWork work("Searching for zeroplan's own executor");
  inputs.progress = [&](uint64_t programs) {
    work.Show([&] { return fmt::format("{} programs lowered", programs); });
  };
  Searcher searcher(std::move(inputs));
  const SearchResult result = searcher.Run();
  if (!result.best) {
    if (options.plan_file.empty()) return std::nullopt;
    throw Error(ExitCode::kNothingFits,
                fmt::format("--plan-out {}: nothing fits zeroplan's own executor; leave it out, or "
                            "use --runtime zeroplan to see what would",
                            options.plan_file));
  }
  Plan plan = MakePlan(searcher, result);
  plan.origin = OriginOf(asked.common, request.hardware());
  if (!options.plan_file.empty()) {
    for (const AdviceLine& line : Advise(searcher, result, request.hardware(), {}, true).lines) {
      plan.advice.push_back(line.text);
    }
    WriteData(options.plan_file, PlanText(plan));
    LogInfo(
        "--plan-out {}: the best plan of zeroplan's own executor, for 'train --plan' and "
        "'explain'; not what was chosen for another program",
        options.plan_file);
  }
  return ExecutorBest{plan.setup, *plan.choice.time.total_seconds,
                      *plan.choice.time.tokens_per_second, result.gap};
}

std::string ExecutorText(const Plan& plan, const std::optional<ExecutorBest>& executor) {
  if (!executor)
    return "zeroplan's own executor: nothing of what was asked for runs and fits there.";
  const double factor = executor->tokens_per_second / *plan.choice.time.tokens_per_second;
  return fmt::format(
      "zeroplan's own executor would reach {} tokens/s with its own best plan ({}, {}{}), by its "
      "own prediction: {:.2f} times as many.",
      FormatRate(executor->tokens_per_second), SetupLabel(executor->setup),
      BatchText(executor->setup.batch),
      executor->gap > 0 ? fmt::format("; not proven: within {} %", FormatPercent(executor->gap))
                        : "",
      factor);
}

// What --report, --plan-out and --out ask for.
void WriteFiles(const PlanOptions& options, const ResolvedPlan& request,
                const ChoiceSearch& searcher, const Assumptions& assumptions,
                const PlanAnswer& answer) {
  const Plan& plan = answer.plan;
  const bool programs = plan.runtime->facts().trains_here;
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  if (programs && !options.plan_file.empty()) WriteData(options.plan_file, PlanText(plan));
  if (!options.report_file.empty()) {
    std::optional<ScarcestLink> link;
    if (at.cluster.gpus > 1) link = ScarcestLinkOf(at.cluster, request.hardware());
    WriteOutput(options.report_file,
                RenderPage(PlanPage(
                    {plan, answer.report, searcher.Judged(), link, *at.costs, request.hardware(),
                     request.asked().common.hardware.profile, options.quick},
                    ReportOrigin(assumptions))));
  }
  if (options.deepspeed_file.empty()) return;
  if (IsLaunchFormat(options.format())) {
    WriteLaunch(options, answer);
  } else if (programs) {
    WriteDeepSpeed(options, answer);
  } else {
    WriteConfigFile(SourceOf(options, answer), options.as_json());
  }
}

// The first option that goes with one method alone; "" where none is given.
std::string OnlyOfOne(const PlanOptions& options) {
  if (!options.deepspeed_file.empty()) return "--out";
  if (!options.plan_file.empty()) return "--plan-out";
  if (!options.trace_file.empty()) return "--trace";
  if (!options.report_file.empty()) return "--report";
  return OnlyOfOneMethod(options);
}

// Whether methods are compared: where several are given, and where nothing is said of them and
// there are weights to go on from. Programs that read a plan's JSON are not given another's.
bool Compares(PlanOptions& options, Assumptions& assumptions) {
  const std::string only = OnlyOfOne(options);
  if (options.compared) {
    if (!only.empty()) {
      ThrowUsage(
          "{}: goes with one method, not with ⟦method⟧ {}; leave it out, or use ⟦method⟧ full",
          only, options.compared.text);
    }
    return true;
  }
  const ModelFields& model = options.common.model;
  if (!only.empty() || options.as_json() || model.method || model.lora.given() ||
      !options.common.runtime.of().facts().trains_here || !HasWeights(model) ||
      !TakesAdapters(model, options.common.runtime.of())) {
    return false;
  }
  options.compared.emplace({TuningMethod::kFull, TuningMethod::kLora});
  const bool fp8 = options.asks_fp8();
  if (!fp8) options.compared->push_back(TuningMethod::kQlora);
  assumptions.assumed.emplace_back(fp8 ? "⟦method⟧ full,lora" : "⟦method⟧ all");
  return true;
}

void FindAndWrite(PlanOptions options) {
  const Runtime& runtime = options.common.runtime.of();
  RefuseForOthers(options, runtime);
  const bool brief = options.on_screen();
  // A screen without advice needs no search for advice.
  if (brief && options.report_file.empty()) options.quick = true;
  options.brief = brief;
  const auto start = std::chrono::steady_clock::now();
  CheckFilesBeside(options, runtime);
  const bool launches = IsLaunchFormat(options.format());
  options.for_config = !options.deepspeed_file.empty() && !launches;
  Assumptions assumptions;
  const std::string largest = options.largest ? Find(options) : "";
  ResolvedPlan request(options, assumptions);
  // What is wrong with it is found before anything is searched.
  ResolveGoal(request.asked().common.goal, request.inputs().base.batch, request.hardware().gpu);
  if (launches) {
    const Cluster& cluster = request.inputs().clusters.back().cluster;
    CheckLaunch(options.format(), cluster.shape(), cluster.gpu_name);
  }
  LongWork progress("Searching");
  SearchInputs inputs = request.inputs();
  inputs.effort = options.effort.value_or(1);
  inputs.progress = [&](uint64_t looked_at) {
    progress.Show([&] {
      return fmt::format("{} {}", looked_at,
                         runtime.has_programs() ? "programs lowered" : "steps played");
    });
  };
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
  SearchResult found;
  PlanAnswer answer =
      Answer(options, request, *searcher, progress, largest, assumptions.first, found);
  Plan& plan = answer.plan;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::string text;
  const ModelFamily& family = *plan.model.family;
  const bool trained = FamilyNamed(family.name()) != nullptr;
  if (!trained && !options.plan_file.empty()) {
    ThrowUsage("--plan-out: zeroplan does not train models of type {}; leave it out",
               family.name());
  }
  if (!runtime.facts().trains_here && trained && (!options.quick || !options.plan_file.empty())) {
    answer.report.executor = AskExecutor(options, family.planned() != nullptr);
    text = Paragraph(ExecutorText(plan, answer.report.executor), 2);
  }
  const std::string beside = text;
  text += '\n' + StatsLine(plan, seconds.count());
  FinishAnswer(request, *searcher, assumptions, answer);
  text += AssumedText(assumptions);
  const SearchCluster& at = searcher->ClusterOf(CandidateOf(plan.setup));
  if (runtime.has_programs() && (options.explain || !options.trace_file.empty())) {
    const Program program = Lower(plan.model, plan.setup, plan.lower);
    if (options.explain)
      text += '\n' + Explain(program, plan.choice, at.cluster, *at.costs, PageColumns());
    if (!options.trace_file.empty()) {
      WritePredictedTrace(program, *at.costs, options.trace_file);
    }
  }
  if (runtime.facts().trains_here &&
      (!options.plan_file.empty() || !options.deepspeed_file.empty() || options.as_json())) {
    if (const std::string swaps = SetSwapFolder(plan.setup); !swaps.empty()) LogInfo("{}", swaps);
  }
  if (options.as_json()) {
    if (!runtime.facts().trains_here) answer.report.config = ConfigText(SourceOf(options, answer));
    WriteOutput("", WritePlanReport(plan, answer.report));
  } else if (brief) {
    ScreenParts parts;
    parts.first = assumptions.first;
    parts.shape = ShapeText(options.common.model);
    parts.brim = BrimText(*searcher, plan.choice);
    parts.run = RunParagraphs(answer, /*brief=*/true);
    parts.notes = {Taken(assumptions), Doubts(request, *searcher, plan, found.gap),
                   NextCommand(options, answer, trained)};
    WriteReport("",
                (largest.empty() ? "" : Paragraph(largest, 2)) +
                    PlanScreen(plan, found, request.inputs(), request.hardware(), parts,
                               PageColumns(), StdoutTakesColour()) +
                    beside,
                true);
  } else {
    WriteReport("", text);
  }
  WriteFiles(options, request, *searcher, assumptions, answer);
}

void RunPlan(PlanOptions options) {
  if (const std::string note = PlanForOthers(options.common); !note.empty()) LogInfo("{}", note);
  CheckData(options);
  if (options.machines.given()) {
    PrintMachines(options);
    return;
  }
  const bool says_runtime = options.common.runtime.runtime.has_value();
  ApplyConfigFor(options);
  if (Assumptions assumptions; Compares(options, assumptions)) {
    PrintComparison(options, std::move(assumptions));
    return;
  }
  const bool deepspeed = &options.common.runtime.of() == &DeepSpeedRuntime();
  const std::string& out = options.deepspeed_file;
  if (deepspeed && !says_runtime) {
    LogInfo(
        "--out {}: planned for DeepSpeed, as --runtime is not given; --plan-out writes the plan of "
        "zeroplan's own executor",
        out);
    RefuseAllowForConfig(options);
  }
  try {
    FindAndWrite(options);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kNothingFits) {
      const std::string adapters = AdaptersInstead(options);
      std::string next;
      if (!adapters.empty() && options.on_screen()) {
        const bool quantized = adapters.find("QLoRA") != std::string::npos;
        if (std::string command = OwnCommand({}, {"--method", quantized ? "qlora" : "lora"});
            !command.empty()) {
          next = "\nNext: " + command;
        }
      }
      throw Error(error.code(), error.what() + adapters + next);
    }
    // What DeepSpeed's model refuses still can be written.
    if (error.code() != ExitCode::kUsage || !deepspeed || out.empty()) throw;
    throw Error(ExitCode::kUsage, error.what() + OwnConfigInstead(options));
  }
}

}  // namespace

void RegisterPlan(Command& app, DataReader read) {
  auto options = std::make_shared<PlanOptions>();
  options->common.goal.data.read = std::move(read);
  Command command =
      app.Add("plan", "The best stage, offload, recompute and batch, and why the others lose");
  command.Footer(kPlanFooter);
  options->common.hardware.find = FindThisMachine;
  AddPlanFields(command, *options);
  const char* group = "Output";
  command.Text({.group = group,
                .name = "-o,--out",
                .type = "FILE",
                .help = "Write the config of the choice for --runtime (default: deepspeed). With "
                        "--runtime zeroplan it is a DeepSpeed config of zeroplan's own choice",
                .path = PathRole::Writes(kConfig)},
               options->deepspeed_file);
  AddConfigForOption(command, *options);
  command.Text({.group = group,
                .name = "--plan-out",
                .type = "FILE",
                .help = "Write the whole plan, for 'train --plan' and 'explain'",
                .path = PathRole::Writes(kPlanOut)},
               options->plan_file);
  command.Text({.group = group,
                .name = "--trace",
                .type = "FILE",
                .help = "Write the predicted step as a Chrome trace",
                .path = PathRole::Writes(kTrace)},
               options->trace_file);
  AddReportOption(command, group, "the answer, what it was chosen from and where it changes",
                  options->report_file);
  AddFormatOption(command, "schema zeroplan.plan/1", options->output_format);
  command.Progress(group);
  command.Flag(group, "--explain",
               "Also print the reasons, what would change the answer, all that is assumed, and the "
               "step: phases, peaks and what makes them, streams over time",
               options->explain);
  command.Run([options] { RunPlan(*options); });
}

}  // namespace zeroplan
