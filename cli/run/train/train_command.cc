// The options' names and help of zeroplan train.
#include "cli/run/train/train_command.h"

#include "cli/common/command_files.h"
#include "cli/common/output.h"
#include "cli/run/train/metrics_file.h"
#include "core/base/error.h"
#include "core/base/full_screen.h"
#include "core/base/units.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

const auto ParseLearningRate = NumberWhere([](double x) { return x > 0 && x < 1e3; },
                                           "a number above 0 and below 1000, such as 3e-4");
const auto ParseAmount =
    NumberWhere([](double x) { return x >= 0 && x < 1e9; }, "a number from 0 to below 1e9");
const auto ParseShare = NumberWhere([](double x) { return x >= 0 && x <= 1; },
                                    "a share of the steps from 0 to 1, such as 0.03");
const auto ParseSpikeFactor = NumberWhere([](double x) { return x > 1 && x < 1e6; },
                                          "a number above 1 and below 1000000, such as 3");
const auto ParseTimeout = NumberWhere([](double x) { return x >= 0 && x < 1e9; },
                                      "seconds below 1e9, such as 600, or 0 for no limit");

// "auto" is kSaveAuto.
int64_t ParseSaveEvery(const std::string& text, std::string_view option) {
  if (text == "auto") return kSaveAuto;
  const bool number =
      !text.empty() && text.find_first_not_of("-+.0123456789eEkKmM") == std::string::npos;
  if (!number) {
    ThrowUsage("{}: {} is not allowed; use a number of steps, or auto", option,
               text.empty() ? "''" : text);
  }
  return ParseWhole(text, option, 1, kMaxBatch);
}

// What --plan and --config decide otherwise.
void AddRateOptions(Command& command, TrainCommand& options) {
  const char* run = "Run";
  const std::vector<std::string_view> deciders = {"--config"};
  command.Value({run, "--lr", "RATE",
                 "Learning rate (default: what --plan or --config says; else 1e-3, or 2e-5 where "
                 "the run starts from weights)",
                 deciders},
                options.lr, ParseLearningRate);
  command.Value(
      {run, "--lr-schedule", "constant|linear|cosine",
       "How the rate changes from the warm-up's end to the run's (default constant); linear and "
       "cosine fall to --min-lr",
       deciders},
      options.lr_schedule, OneOf(kWords<DecayShape>));
  command.Value(
      {run, "--warmup-ratio", "SHARE",
       "The rate rises from 0 over this share of the steps, rounded up (default 0)", deciders},
      options.warmup_ratio, ParseShare);
  command.Value({run, "--warmup-steps", "COUNT",
                 "In place of --warmup-ratio: the rate rises over "
                 "this many steps",
                 deciders},
                options.warmup_steps, WholeIn<int64_t>(0, kMaxBatch));
  command.Value(
      {run, "--min-lr", "RATE", "Rate at which linear and cosine end (default 0)", deciders},
      options.min_lr, ParseAmount);
  command.Value(
      {run, "--weight-decay", "RATE",
       "Weight decay of matrices and embeddings; biases and norms have none (default 0)", deciders},
      options.weight_decay, ParseAmount);
  command.Value({run, "--max-grad-norm", "NORM",
                 "Largest global norm of gradients; larger ones are scaled down to it (default 1; "
                 "0: no clipping)",
                 deciders},
                options.max_grad_norm, ParseAmount);
}

void AddRunOptions(Command& command, TrainCommand& options) {
  const char* run = "Run";
  const auto count = WholeIn<int64_t>(1, kMaxBatch);
  command.Value(
      {run, "--backend", "cpu|cuda|auto",
       "Where it runs: on the CPU, with ranks as threads or as a launcher's processes, or "
       "a process for each on a GPU (default auto: cuda where this build has it and the driver "
       "shows a GPU, else cpu)"},
      options.backend, WordIn<BackendChoice>({"cpu", "cuda", "auto"}));
  command.Text({run, "--hw", "NAME|FILE",
                "Hardware profile that a GPU's memory and time are predicted with (default: this "
                "machine's)"},
               options.common.hardware.profile, ProfileNames);
  command.Text({run, "--network", "NAME|RATE",
                "Network between hosts that the choice is made for, as plan's (default: the "
                "profile's)"},
               options.common.hardware.network, NetworkNames);
  command.Value({run, "--gpu-memory", "BYTES",
                 "Memory of one GPU that the run may use, such as 32GB: where more is predicted, "
                 "nothing starts (default: the GPU's)"},
                options.common.cluster.gpu_memory, ParseMemory);
  AddPinnedLimitField(command, run, options.common.cluster);
  AddReserveFields(command, run, options.common.cluster);
  command.Value(
      {run, "--steps", "COUNT", "Optimizer steps, those before a resume included (default 100)"},
      options.steps, count);
  command.Value(
      {run, "--epochs", "NUMBER",
       "In place of --steps: train on each sample this many times; fractions are allowed"},
      options.epochs, ParseEpochs);
  AddRateOptions(command, options);
  command.Value({run, "--max-bad-steps", "COUNT",
                 "Steps whose loss or gradients are not finite are skipped, at most this many in "
                 "a row; one more ends the run, which is saved (default 5; 0: the first ends it)"},
                options.max_bad_steps, WholeIn<int64_t>(0, kMaxBatch));
  command.Value({run, "--skip-loss-spike", "FACTOR",
                 "Also skip steps whose loss or gradient norm is above FACTOR times its median "
                 "over the last 5 steps (default: skip none of them)"},
                options.skip_loss_spike, ParseSpikeFactor);
  command.Value({run, "--step-timeout", "SECONDS",
                 "A step that takes longer ends the run with the name of the rank that holds it "
                 "up; 0: no limit for steps, set-up and saves (default: 20 times what steps take "
                 "or are predicted to take, at least 300)"},
                options.step_timeout, ParseTimeout);
  command.Value({run, "--seed", "NUMBER", "Seed of weights and data order (default 1)"},
                options.seed, WholeIn<uint64_t>(0, INT64_MAX));
  command.Value(
      {run, "--threads", "COUNT", "CPU threads of a rank (default: cores / ranks of this host)"},
      options.threads, WholeIn<int>(1, 1024));
  command.Text({.group = run,
                .name = "--nvme-path",
                .type = "DIR",
                .help = "Folder of the swap file where something is offloaded to nvme",
                .path = {PathRole::Use::kFill}},
               options.nvme_path);
  command.Text({run, "--init-from", "DIR",
                "Start from the weights in this Hugging Face folder (default: those in --model, "
                "where that is a folder that holds some)"},
               options.init_from);
  command.Text({run, "--adapter", "DIR",
                "Go on from the LoRA adapter in this folder, as PEFT or --save wrote it; it says "
                "rank and targets"},
               options.common.model.adapter);
  command.Flag(
      run, "--resize-embeddings",
      "Where the tokenizer in --model has more tokens than the model, give these the mean of "
      "the embeddings to start from, as transformers' resize_token_embeddings does",
      options.run.resize_embeddings);
  command.Flag(run, "--fresh-weights",
               "Start from fresh weights, though --model is a folder that holds some",
               options.fresh_weights);
}

// What is saved, how a run goes on from it, and who starts it again.
void AddSaveOptions(Command& command, TrainCommand& options) {
  const char* run = "Run";
  command.Text({.group = run,
                .name = "--save",
                .type = "DIR",
                .help = "Keep checkpoints here and, at the end, the weights as a Hugging Face "
                        "folder",
                .path = {PathRole::Use::kFill}},
               options.save);
  command.Value({run, "--save-dtype", "fp32|bf16|fp16",
                 "Precision in which the weights at the end are saved (default fp32: as trained)"},
                options.save_dtype, ParseDtype);
  command.Value({run, "--max-shard-size", "BYTES",
                 "Largest size of one file of these weights; more becomes several files (default "
                 "5GB)"},
                options.max_shard_size, ParseShardSize);
  command.Value({run, "--save-every", "STEPS|auto",
                 "Also save after every STEPS steps, or as often as is best for a run with "
                 "--interruptions, by the times that its saves take (default: at the end only)"},
                options.save_every, ParseSaveEvery);
  command.Value({run, "--interruptions", "RATE",
                 "With --save-every auto: how often the run is interrupted, all its machines "
                 "counted together, such as 0.1/h, 2/day or 1/6h (default: what --plan was asked "
                 "for)"},
                options.common.goal.interruptions, ParseRate);
  command.Value({run, "--async-save", "on|off|auto",
                 "Write these saves beside the steps, from a copy of the states in host memory: "
                 "12 bytes for each of a rank's parameters (default auto: where that fits; a plan "
                 "says whether it was counted)"},
                options.common.settings.async_save, OneOf(kWords<AsyncSave>));
  command.Value({run, "--keep", "COUNT", "How many of the newest checkpoints are kept (default 2)"},
                options.keep, WholeIn<int>(1, 1'000'000));
  command.Flag(run, "--keep-best",
               "With --validate-every: save whenever the validation loss is the lowest yet; that "
               "checkpoint is kept besides, and the file 'best' names it",
               options.run.keep_best);
  command.Value({run, "--final-weights", "last|best",
                 "Which of the run's weights --save ends with (default last); best needs "
                 "--keep-best"},
                options.best_weights, WordIn<bool>({"last", "best"}));
  command.Value({run, "--patience", "COUNT",
                 "With --validate-every: end the run after this many validations in a row without "
                 "a new lowest loss (default: never)"},
                options.patience, WholeIn<int64_t>(1, kMaxBatch));
  command.Value(
      {run, "--restarts", "COUNT",
       "Start again with --resume after a process was killed or failed while running, at most "
       "this many times (default 0); needs --save, and is not for torchrun, mpirun or srun"},
      options.restarts, WholeIn<int>(0, 1000));
  command.Value(
      {run, "--rendezvous-timeout", "SECONDS",
       "Time in which all ranks of a run of several processes have to meet (default 120)"},
      options.rendezvous_timeout, WholeIn<int>(1, 86'400));
  AddDeterministicField(command, options.common.settings);
  command.Flag(run, "--resume", "Continue from the latest checkpoint in --save, if there is one",
               options.run.resume);
  command.Flag(run, "--strict-resume",
               "With --resume: refuse if that checkpoint is damaged, rather than take an older one",
               options.run.strict_resume);
  command.List({run, "--allow-change", "data|order|seq-len",
                "Resume although this is not what the checkpoint was saved with"},
               /*required=*/false, 0, options.run.allow_change);
}

void AddViewOptions(Command& command, TrainCommand& options) {
  const char* seen = "What you see";
  command.Value({seen, "--eval-every,--validate-every", "STEPS",
                 "Validate after every STEPS steps (default: at the end)"},
                options.validate_every, WholeIn<int64_t>(1, kMaxBatch));
  command.Value({seen, "--validation-batches", "COUNT",
                 "Most micro-batches of a rank in one validation (default: all of "
                 "--validation-data, or 16 of what --data holds back)"},
                options.validation_batches, WholeIn<int64_t>(1, kMaxBatch));
  command.Progress(seen);
  command.Flag(
      seen, "--monitor",
      "Each step's line also says what the machine is doing: power, clock and PCIe traffic "
      "of rank 0's GPU, memory and processors of its host",
      options.monitor);
  command.Flag(seen, kFullScreenOption.data(),
               "Show the run over the whole terminal in place of the progress line: loss, speed, "
               "memory against the plan, GPUs and host; what the terminal showed comes back at "
               "the end",
               options.watch);
  command.Text({.group = seen,
                .name = "--metrics",
                .type = "FILE",
                .help = "Write one JSON object a step, or with the ending .csv a row of CSV a "
                        "step; with --resume add to those of the run",
                .path = PathRole::Writes(kMetricsOut)},
               options.metrics);
  command.Text({.group = seen,
                .name = "--tensorboard",
                .type = "DIR",
                .help = "Write event files for TensorBoard (tensorboard --logdir DIR)",
                .path = {PathRole::Use::kFill}},
               options.tensorboard);
  AddReportOption(command, seen,
                  "the run (loss, speed, memory, planned beside measured), when it is over,",
                  options.report);
  command.Text({.group = seen,
                .name = "--trace",
                .type = "FILE.json",
                .help = "Write a Chrome trace of the run (ui.perfetto.dev), the predicted step "
                        "beside its last one; keep runs short",
                .path = PathRole::Writes(kTrace)},
               options.trace);
}

}  // namespace

uint64_t ParseShardSize(const std::string& text, std::string_view option) {
  constexpr uint64_t kLeast = 1'000'000;
  const uint64_t bytes = ParseBytes(text, option);
  if (bytes < kLeast) {
    ThrowUsage("{}: {} is not allowed; use a size of at least 1MB, such as 5GB", option, text);
  }
  return bytes;
}

void AddTrainOptions(Command& command, TrainCommand& options) {
  options.common.hardware.find = FindThisMachine;
  AddModelFields(command, options.common.model);
  const PathRole all_below = {PathRole::Use::kReadBelow};
  command.List({.group = "Data",
                .name = "--data",
                .type = "PATH",
                .help = "Files or folders: text (by the tokenizer.json in --model; without one "
                        "bytes are tokens), records (.jsonl, .json, .csv, .tsv, .parquet, .arrow: "
                        "texts, prompts and completions, conversations, instructions), or token "
                        "files (.bin, .u16, .u32); of a folder with splits the one for training",
                .path = all_below},
               /*required=*/true, 0, options.run.data);
  command.Text({"Data", "--data-repeats", "COUNT,...",
                "How many times an epoch has each PATH of --data, in their order: 3,1 mixes the "
                "first with three times its weight; then none of --data is held back to validate "
                "with (default: each once)"},
               options.repeats);
  command.List({.group = "Data",
                .name = "--validation-data",
                .type = "PATH",
                .help = "Files to validate with, of the same kinds (default: the last 5 % of "
                        "--data, which is not trained on)",
                .path = all_below},
               /*required=*/false, 0, options.validation_data);
  AddRecordFields(command, "Data", options.records);
  command.Value(
      {"Data", "--packing", "stream|documents|off",
       "stream: windows over all tokens. documents: whole documents, several a sequence, "
       "that do not see each other. off: one document a sequence, padded (default: "
       "stream; for conversations documents, or off where that is predicted to be faster)"},
      options.common.settings.packing, OneOf(kWords<Packing>));
  command.Flag("Data", "--truncate",
               "With --packing documents or off: of a document longer than a sequence train on the "
               "first --seq-len tokens (default: on all of it, in pieces; of conversations on the "
               "first)",
               options.run.truncate);
  command.Flag("Data", "--no-shuffle",
               "Take samples in the stream's order, and hold back none for validation",
               options.no_shuffle);
  command.Text({"Plan", "--plan", "FILE",
                "Plan file of 'zeroplan plan --plan-out', which decides model, ranks, batch and "
                "choice; if the program is not the planned one, nothing runs"},
               options.plan);
  AddRunOptions(command, options);
  AddSaveOptions(command, options);
  AddViewOptions(command, options);
  command.Value({"Run", "--gpus", "COUNT",
                 "Ranks: GPUs, or threads on the CPU backend (default: the plan's or launcher's; "
                 "else this machine's GPUs, 1 on the CPU)"},
                options.common.cluster.gpus, WholeIn<int>(1, kMaxGpus));
  command.Text({"Run",
                "--hosts",
                "HOST:GPUS,...",
                "Start ranks on these hosts by ssh, such as node1:8,node2:8; all need the same "
                "folder, program and files",
                {"--hostfile"}},
               options.hosts);
  command.Text({"Run", "--hostfile", "FILE",
                "Take the hosts from a file, with a line 'node1 "
                "slots=8' for each"},
               options.hostfile);
  command.Text({"Run", "--ssh", "COMMAND",
                "Remote shell, to which host and command are added (default: ssh -o BatchMode=yes "
                "-o ConnectTimeout=20 -o ServerAliveInterval=15)"},
               options.ssh);
  AddSettings(command, options.common.settings, SettingGroup::kBatch, OptionsOf::kTrain);
  AddChoiceFields(command, options.common, OptionsOf::kTrain);
}

double InterruptionRate(const TrainCommand& command, const std::optional<PlanFile>& plan) {
  const Given<double>& given = command.common.goal.interruptions;
  const bool is_auto = command.save_every == kSaveAuto;
  if (given && !is_auto) {
    ThrowUsage(
        "--interruptions: {} has no effect without --save-every auto; add it, or leave this out",
        given.text);
  }
  if (!is_auto) return 0;
  if (given) return *given;
  if (plan && plan->interruption_rate) return *plan->interruption_rate;
  ThrowUsage(
      "--save-every: auto goes by how often the run is interrupted; add --interruptions, such as "
      "--interruptions 0.1/h{}, or give a number of steps",
      plan ? ", to train or to the plan" : "");
}

}  // namespace zeroplan
