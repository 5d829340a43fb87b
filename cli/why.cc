// zeroplan why: the log of another program's run beside what is predicted of it.
#include "planner/why/why.h"

#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command_files.h"
#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/long_work.h"

namespace zeroplan {
namespace {

constexpr const char* kWhyFooter = R"(Examples:
  zeroplan why train.log
  zeroplan why train.log --model llama3.1-8b --seq-len 4096 --checkpointing full
  zeroplan why - --runtime deepspeed --gpus 8 --config ds_config.json < traceback.txt
  zeroplan why slurm-1234.out --hw dgx-a100-80gb --format json
  zeroplan why train.log --hw dgx-h100 --add runs.jsonl
Reads logs of DeepSpeed, transformers' Trainer, accelerate, torchrun, torchtitan, torchtune and plain
PyTorch; keep stderr in them (2>&1). Options win over what the log says. What neither says is asked
for: then the exit code is 2, after what the log alone tells. docs/why.md has what is read.)";

const OutputKind kRuns = {"a file of runs, each a line of JSON",
                          {"\"outcome\":", "\"outcome\" :", "\"about\":"}};

struct WhyOptions : WhyRequest {
  Given<OutputFormat> format;
  bool explain = false;
};

void RunWhy(const WhyOptions& options) {
  const StopSignalsBlocked blocked;  // what it keeps of the log in a temporary folder goes first
  const LongWork work("Reading the log", /*at_once=*/true);
  const WhyAnswer answer = FindWhy(options);
  if (options.format == OutputFormat::kJson) {
    WriteOutput("", WhyJson(answer));
  } else if (options.explain) {
    WriteReport("", NameFields(WhyText(answer, PageColumns())));
  } else {
    std::string next;
    if (!answer.changes.empty()) {
      // Options of the change replace those that were given.
      std::vector<std::string> words;
      std::istringstream options_of(NameFields(answer.changes.front().options));
      for (std::string word; options_of >> word;) words.push_back(word);
      std::vector<std::string_view> replaced = {"--add", "--id"};
      for (const std::string& word : words) {
        if (word.starts_with("--")) replaced.emplace_back(word);
      }
      next = OwnCommand(replaced, words);
    }
    const bool colour = StdoutTakesColour();
    WriteReport("", NameFields(WhyScreen(answer, next, PageColumns(), colour)), colour);
  }
  if (const std::string why = WhyIncomplete(answer); !why.empty()) ThrowUsage("{}", why);
}

}  // namespace

void RegisterWhy(Command& app) {
  auto options = std::make_shared<WhyOptions>();
  Command command = app.Add("why", "Why a run of DeepSpeed, Trainer or PyTorch died or was slow");
  command.Footer(kWhyFooter);
  command.Required("log", "FILE", "The run's log, or - for stdin, such as a pasted traceback",
                   options->log);
  AddWhyFields(command, *options);
  command.Text({.group = "Output",
                .name = "--add",
                .type = "FILE",
                .help = "Also add the run as a row to FILE, which measured runs are compared from "
                        "(docs/why.md)",
                .path = PathRole::Writes(kRuns)},
               options->add);
  command.Text({"Output", "--id", "NAME", "Name of that row (default: the log's)"}, options->id);
  AddFormatOption(command, "schema zeroplan.why/1", options->format);
  command.Flag("Output", "--explain",
               "Also print what is predicted beside the log, every change, what the log says and "
               "all that is assumed",
               options->explain);
  command.Progress("Output");
  command.Run([options] { RunWhy(*options); });
}

}  // namespace zeroplan
