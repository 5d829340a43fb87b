// The options' names and help of zeroplan train.
#include <CLI/CLI.hpp>

#include "cli/common/common_options.h"
#include "cli/train/train_command.h"

namespace zeroplan {

void AddTrainOptions(CLI::App& command, TrainCommand& options) {
  command
      .add_option("--data", options.data,
                  "Text files or folders (bytes are tokens), or token files (.bin, .u16)")
      ->type_name("PATH")
      ->required()
      ->group("Data");
  command
      .add_flag("--no-shuffle", options.no_shuffle,
                "Take samples in the stream's order; no validation part")
      ->group("Data");
  auto add = [&](const char* group, const char* name, std::string& value, const char* type,
                 const char* help) { AddOption(command, group, name, value, type, help); };
  add("Plan", "--plan", options.plan, "FILE",
      "What 'zeroplan plan --plan-out' wrote: model, ranks, batch and choice are the plan's, and "
      "the program is the planned one or nothing runs");
  const char* run = "Run";
  add(run, "--backend", options.backend, "cpu|cuda|auto",
      "Where it runs: ranks as threads on the CPU, or a process for each on a GPU (default auto: "
      "cuda where this build has it and the driver shows a GPU, else cpu)");
  add(run, "--hw", options.common.hardware, "NAME|FILE",
      "Hardware profile that a GPU's memory and time are predicted with (default: this machine's)");
  add(run, "--gpu-memory", options.common.gpu_memory, "BYTES",
      "Memory of one GPU that the run may use, such as 32GB: where more is predicted, nothing "
      "starts (default: the GPU's)");
  add(run, "--steps", options.steps, "COUNT",
      "Optimizer steps, those before a resume included (default 100)");
  add(run, "--lr", options.lr, "RATE",
      "Constant learning rate (default 1e-3; --config or --plan decides otherwise)");
  add(run, "--seed", options.seed, "NUMBER", "Of weights and data order (default 1)");
  add(run, "--threads", options.threads, "COUNT",
      "CPU threads a rank (default: cores / ranks of this host)");
  add(run, "--nvme-path", options.nvme_path, "DIR",
      "Folder of the swap file where something is offloaded to nvme");
  add(run, "--init-from", options.init_from, "DIR",
      "Start from Hugging Face weights in this folder");
  add(run, "--save", options.save, "DIR",
      "Keep checkpoints here and, at the end, config.json and model.safetensors");
  add(run, "--save-every", options.save_every, "STEPS",
      "Also save every so many steps (default: at the end only)");
  command
      .add_flag("--deterministic", options.deterministic,
                BreakHelp("On a GPU: the same results from run to run, a little slower; the CPU "
                          "always does"))
      ->group(run);
  command
      .add_flag("--resume", options.resume,
                "Continue from the latest checkpoint in --save, if there is one")
      ->group(run);
  const char* seen = "What you see";
  add(seen, "--validate-every", options.validate_every, "STEPS",
      "Validation loss every so many steps (default: at the end)");
  add(seen, "--metrics", options.metrics, "FILE.jsonl", "Write one JSON object a step");
  add(seen, "--trace", options.trace, "FILE.json",
      "Write a Chrome trace of the run (chrome://tracing); keep runs short");
}

}  // namespace zeroplan
