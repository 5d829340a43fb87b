// zeroplan doctor: what this machine has and lacks for planning and training.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "cli/common/output.h"
#include "cli/doctor/doctor_report.h"
#include "cli/doctor/facts.h"
#include "cli/programs/app.h"
#include "cli/run/train/shared_options.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "planner/plan/plan_file.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan doctor
  zeroplan doctor --backend cuda --gpus 2 && zeroplan train --gpus 2 ...
  zeroplan doctor --dir /scratch --format json
  zeroplan doctor --plan plan.json
Each line says ok, costs (it works, with a loss), missing, or not known; then what follows from it and
what mends it. It takes a few seconds at most, needs no GPU and no root, and changes nothing; a file of up
to 268 MB is written to DIR and removed.
Exit codes: 0 training is possible here, as asked for by --backend, --gpus and --dir; 4 it is not; 2 bad
usage.)";

struct DoctorCommand {
  std::string dir, plan;
  Given<BackendChoice> backend;
  Given<int> gpus;
  Given<OutputFormat> format;
};

// What was asked for and is not possible; "" if all is.
std::string Impossible(const DoctorCommand& command, const MachineFacts& facts) {
  const Readiness ready = ReadinessOf(facts);
  const bool cuda_wanted = command.gpus || command.backend == BackendChoice::kCuda;
  if (!ready.cpu()) return "training is not possible here: " + ready.why_not_cpu;
  if (cuda_wanted && !ready.cuda()) {
    return fmt::format("{}: training on GPUs is not possible here: {}",
                       command.gpus ? "--gpus " + command.gpus.text : "--backend cuda",
                       ready.why_not_cuda);
  }
  if (command.gpus && *command.gpus > ready.gpus) {
    return fmt::format("--gpus: {} is more than the {} GPU{} that CUDA can use here", *command.gpus,
                       ready.gpus, ready.gpus == 1 ? "" : "s");
  }
  const bool refused = facts.disk.state == DiskFacts::State::kRefused ||
                       facts.disk.state == DiskFacts::State::kFailed;
  if (!command.dir.empty() && refused) {
    return facts.disk.why.starts_with("--dir") ? facts.disk.why : "--dir: " + facts.disk.why;
  }
  return "";
}

PinnedPlan PinnedOf(const PlanFile& plan) {
  return {PrintableText(plan.source, 300), plan.arena_bytes[static_cast<size_t>(Space::kPinned)],
          std::min(plan.cluster.gpus, plan.cluster.gpus_per_node),
          plan.lower.backend == Backend::kCuda};
}

void RunDoctor(const DoctorCommand& command) {
  if (command.gpus && command.backend == BackendChoice::kCpu) {
    ThrowUsage("--gpus: {} has no meaning with --backend cpu; leave one out", command.gpus.text);
  }
  std::optional<PinnedPlan> plan;
  if (!command.plan.empty()) plan = PinnedOf(ReadPlan(ReadTextFile(command.plan), command.plan));
  const LongWork work("Looking at this machine", /*at_once=*/true);
  MachineFacts facts = QueryMachine(command.dir.empty() ? "." : command.dir);
  facts.plan = std::move(plan);
  const bool json = command.format == OutputFormat::kJson;
  if (json) {
    WriteOutput("", DoctorJson(facts));
  } else {
    WriteReport("", DoctorText(facts));
  }
  const std::string impossible = Impossible(command, facts);
  if (!impossible.empty()) throw Error(ExitCode::kRuntime, impossible);
}

}  // namespace

void RegisterDoctor(Command& app) {
  auto options = std::make_shared<DoctorCommand>();
  Command command =
      app.Add("doctor", "What this machine has and lacks for training, and what that costs");
  const char* asked = "What must be possible, else the exit code is 4";
  command.Value({asked, "--backend", "auto|cpu|cuda", "Training on it (default: auto, on any)"},
                options->backend, WordIn<BackendChoice>({"cpu", "cuda", "auto"}));
  command.Value({asked, "--gpus", "COUNT", "Training on so many GPUs"}, options->gpus,
                WholeIn<int>(1, kMaxGpus));
  command.Text({asked, "--dir", "DIR",
                "Saving and swapping there: the folder whose disk is looked at (default: the "
                "present one, which need not be writable)"},
               options->dir);
  command.Text(
      {"What it is for", "--plan", "PLAN",
       "A plan (plan --plan-out): whether the host memory that it pins is there and can be "
       "locked"},
      options->plan);
  AddFormatOption(command, "schema zeroplan.doctor/1", options->format);
  command.Progress("Output");
  command.Footer(kFooter);
  command.Run([options] { RunDoctor(*options); });
}

}  // namespace zeroplan
