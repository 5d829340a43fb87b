// What newcomers type: the questions that are asked most about what fits, in several wordings, and
// the options of other tools. Each is answered at once, or after one suggestion.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/cli/run_binary.h"
#include "tests/core/lowering/golden_text.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

struct Typed {
  const char* words;
  std::vector<const char*> said;
  // What the message leads to, where `words` are refused.
  const char* then = nullptr;
  std::vector<const char*> then_said = {};
  int exit_code = 0;  // expected where the words are taken
};

// All of the weights take more than a desktop's 64 GB of host memory, too.
Typed TooLarge(const char* words, const char* said = "LoRA fits (--method lora)") {
  return {.words = words, .said = {"nothing fits", said}, .exit_code = 3};
}

// Whose cache of models is this folder.
std::string OwnModels(const std::string& folder) {
  return "ZEROPLAN_NO_DETECT=1 HF_HUB_CACHE=" + folder;
}

void CheckSaid(const RunResult& run, const std::vector<const char*>& said) {
  for (const char* word : said) {
    const bool there = (run.out + run.err).find(word) != std::string::npos;
    CHECK_MESSAGE(there, word << " is not in\n" << run.out.substr(0, 1000) << run.err);
  }
}

void CheckTyped(const std::vector<Typed>& all) {
  const TempDir none;
  for (const Typed& typed : all) {
    CAPTURE(std::string(typed.words));
    const RunResult run = RunZeroplan(typed.words, OwnModels(none.path()));
    CHECK(run.exit_code == (typed.then == nullptr ? typed.exit_code : 2));
    CheckSaid(run, typed.said);
    if (typed.then == nullptr) continue;
    CHECK(run.out.empty());
    CAPTURE(std::string(typed.then));
    const RunResult again = RunZeroplan(typed.then, OwnModels(none.path()));
    CHECK(again.exit_code == typed.exit_code);
    CheckSaid(again, typed.then_said);
  }
}

TEST_CASE("newcomer: does it fit, ten questions in four wordings each") {
  CheckTyped({
      // 8B on a 4090.
      TooLarge("plan llama3.1-8b --hw 4090 --quick"),
      TooLarge("plan meta-llama/Llama-3.1-8B --hw 'RTX 4090' --quick"),
      {"plan llama3.1-8b --hw 4090 --host-memory 128GiB --quick",
       {"1 x NVIDIA GeForce RTX 4090", "Chosen: "}},
      {"plan meta-llama/Llama-3.1-8B --hw 'RTX 4090' --method lora --quick",
       {"RTX 4090", "Chosen: ", "has the shape of the preset llama3.1-8b"}},
      {"estimate Llama-3.1-8B-Instruct --hw rtx4090", {"RTX 4090", "llama3.1-8b"}},
      {"plan 8B --hw 4090",
       {"--params 8B"},
       "plan --params 8B --hw 4090 --quick",
       {"nothing fits"},
       3},
      // 7B on a 3090.
      {"estimate mistralai/Mistral-7B-v0.3 --hw 3090", {"RTX 3090", "mistral-7b-v0.3"}},
      TooLarge("plan llama-2-7b --hw 'GeForce RTX 3090' --quick"),
      {"plan mistral-7b --hw 3090",
       {"did you mean 'mistral-7b-v0.3'?"},
       "plan mistral-7b-v0.3 --hw 3090 --method lora --quick",
       {"Chosen: "}},
      {"plan qwen-7b --hw 3090",
       {"did you mean 'qwen2.5-7b'?"},
       "plan qwen2.5-7b --hw 3090 --method qlora --quick",
       {"Chosen: "}},
      // ... on two of them.
      {"plan qwen2.5-7b --hw 2x3090 --method lora --quick",
       {"2 x NVIDIA GeForce RTX 3090", "2x-rtx3090"}},
      {"plan qwen2.5-7b --gpus 2 --hw 3090 --method lora --quick",
       {"2 x rtx3090, as in 2x-rtx3090"}},
      {"estimate qwen2.5:7b --hw '2x RTX 3090'", {"2 x NVIDIA GeForce RTX 3090"}},
      {"plan qwen2.5-7b --num-gpus 2 --hw 3090",
       {"use --gpus"},
       "plan qwen2.5-7b --gpus 2 --hw 3090 --method qlora --quick",
       {"2 x NVIDIA GeForce RTX 3090"}},
      // 13B on an A100 of 40 GB.
      {"plan llama2-13b --hw a100-40gb --quick",
       {"A100 SXM 40 GB", "a100-40gb-pcie names another"}},
      {"plan meta-llama/Llama-2-13b-hf --hw 'A100 40GB' --quick", {"A100 SXM 40 GB", "llama2-13b"}},
      {"estimate --model llama2-13b --hw a100-40gb-pcie", {"A100 PCIe 40 GB"}},
      {"plan llama-13b --hw a100-40gb",
       {"did you mean 'llama2-13b'?"},
       "plan llama2-13b --hw a100-40gb --quick",
       {"Chosen: "}},
      // 70B on 8 x H100.
      {"plan llama3.1-70b --hw 8xh100 --quick", {"8 x NVIDIA H100 SXM", "as in dgx-h100"}},
      {"plan meta-llama/Llama-3.3-70B-Instruct --hw dgx-h100 --quick", {"8 x NVIDIA H100 SXM"}},
      {"plan llama3.1-70b --hw h100 --gpus 8 --quick", {"h100-80gb-sxm, as in dgx-h100"}},
      {"estimate Llama-3.1-70B --hw '8x H100 80GB'", {"8 x NVIDIA H100 SXM"}},
      // 1B on a T4.
      {"plan llama3.2-1b --hw t4 --quick", {"1 x NVIDIA T4", "fp16"}},
      {"estimate meta-llama/Llama-3.2-1B --hw 'Tesla T4'", {"NVIDIA T4", "llama3.2-1b"}},
      {"plan TinyLlama/TinyLlama-1.1B-Chat-v1.0 --hw t4 --quick", {"tinyllama-1.1b"}},
      {"plan tinyllama --hw t4", {"use tinyllama-1.1b"}, "plan tinyllama-1.1b --hw t4 --quick", {}},
      // Qwen's 7B, all of it, on two cards.
      {"plan Qwen/Qwen2.5-7B-Instruct --hw 2xa100 --quick",
       {"2 of the 8 x a100-80gb-sxm", "with its own 32768"}},
      {"plan Qwen2.5-7B-Instruct --gpus 2 --hw a100-80gb --quick", {"2 x NVIDIA A100 SXM 80 GB"}},
      {"plan unsloth/Qwen2.5-7B --gpus 2 --hw l40s --quick", {"2 of the 8 x l40s"}},
      {"plan Qwen/Qwen2.5-7B-Instruct-AWQ --hw 2xa100",
       {"quantized weights", "qwen2.5-7b"},
       "plan qwen2.5-7b --hw 2xa100 --quick",
       {"Chosen: "}},
      // 8B in 24 GB with offload.
      TooLarge("plan llama3.1-8b --hw 4090 --offload-optimizer cpu --quick", "or --host-memory "),
      {"plan llama3.1-8b --hw 4090 --cpu-offload",
       {"use --offload-optimizer cpu"},
       "plan llama3.1-8b --hw 4090 --offload-optimizer cpu --host-memory 128GiB --quick",
       {"optimizer on cpu"}},
      {"plan llama3.1-8b --gpu-memory 24GB --quick", {"24.0 GB a GPU"}},
      {"plan llama3.1-8b --vram 24GB",
       {"use --gpu-memory"},
       "plan llama3.1-8b --gpu-memory 24GB --quick",
       {"24.0 GB a GPU"}},
      // The batch that a card takes.
      {"plan gpt2-xl --hw 4090 --largest micro-batch --quick", {"Largest: --micro-batch"}},
      {"plan gpt2-xl --hw 4090 --batch-size 8",
       {"use --micro-batch"},
       "plan gpt2-xl --hw 4090 --micro-batch 8 --quick",
       {"micro-batch 8"}},
      {"plan gpt2-xl --hw 4090 --per_device_train_batch_size 4 --quick", {"micro-batch 4"}},
      {"estimate gpt2-xl --hw 4090 --per-device-batch 4 --gradient-accumulation-steps 2",
       {"micro-batch 4, 2 micro-steps"}},
      // A DeepSpeed config.
      {"plan gpt2-xl --hw 4x4090 --runtime deepspeed --quick", {"DeepSpeed"}},
      {"plan gpt2-xl --hw 4x4090 --deepspeed",
       {"--runtime deepspeed"},
       "plan gpt2-xl --hw 4x4090 --runtime deepspeed --quick",
       {"DeepSpeed"}},
      {"plan gpt2-xl --gpus 4 --hw rtx4090 --out /dev/null --quick", {"planned for DeepSpeed"}},
      {"gpt2-xl --hw 4x4090",
       {"a command comes first, such as 'zeroplan plan gpt2-xl'"},
       "plan gpt2-xl --hw 4x4090 --quick",
       {"4 x NVIDIA GeForce RTX 4090"}},
  });
}

TEST_CASE("newcomer: options of other tools") {
  const TempDir none;
  // Those that mean the same are taken.
  const std::string asked = "estimate --explain gpt2 --hw 4090 --stage 0 ";
  const std::string plain =
      RunZeroplan(asked + "--micro-batch 2 --grad-accum 3 --checkpointing full --seq-len 512").out;
  CHECK(plain.find("micro-batch 2, 3 micro-steps") != std::string::npos);
  CHECK(RunZeroplan(asked + "--train-micro-batch-size-per-gpu 2 --gradient_accumulation_steps=3 "
                            "--recompute full --max-seq-length 512 --format table")
            .out == plain);
  for (const char* same : {"--cutoff_len", "--sequence_len", "--model-max-length"}) {
    CHECK(RunZeroplan(asked + same + " 512").out == RunZeroplan(asked + "--seq-len 512").out);
  }
  const std::string shared = "estimate --explain llama3.2-1b --hw 8xh100 --seq-len 8192 --stage 3 ";
  CHECK(RunZeroplan(shared + "--sequence_parallel_size 2").out ==
        RunZeroplan(shared + "--sequence-ranks 2").out);
  const std::string adapters = "estimate --explain gpt2 --hw 4090 --stage 0 ";
  CHECK(RunZeroplan(adapters + "--lora_r 8 --target-modules c_attn --use_rslora").out ==
        RunZeroplan(adapters + "--lora-rank 8 --lora-targets c_attn --rslora").out);
  struct Option {
    const char* words;
    const char* said;
  };
  for (const Option& option : {
           Option{"plan gpt2 --bf16", "use --dtype bf16"},
           Option{"plan gpt2 --gradient-checkpointing", "use --checkpointing full"},
           Option{"plan gpt2 --gpu 4090", "--hw for which"},
           Option{"plan gpt2 --lora", "use --method lora"},
           Option{"plan gpt2 --qlora", "use --method qlora"},
           Option{"plan gpt2 --load-in-4bit", "use --method qlora: adapters over a base in NF4"},
           Option{"plan gpt2 --load-in-8bit", "there is NF4 below adapters"},
           Option{"plan gpt2 --tensor-parallel-size 2", "without tensor parallelism"},
           Option{"plan gpt2 --zero 3", "use --stage"},
           Option{"plan gpt2 --context-length 512", "use --seq-len"},
           Option{"plan gpt2 --max_length 512", "use --seq-len"},
           Option{"plan gpt2 --ulysses 2", "use --sequence-ranks"},
           Option{"plan gpt2 --context_parallel_size 2",
                  "use --sequence-ranks: zeroplan's GPUs share"},
           Option{"plan gpt2 --json", "use --format json"},
           Option{"plan gpt2 --recompute some", "--checkpointing: some is not allowed"},
           Option{"plan gpt2 --hw RTX 4090", "stand in quotes: --hw \"RTX 4090\""},
           Option{"plan gpt2 --hw RTX", "stands in quotes"},
           Option{"plan gpt2 --hw mi300x", "NVIDIA GPUs alone"},
           Option{"plan gpt2 --hw 4060", "rtx4060ti-16gb is another card"},
           Option{"plan gpt2 --hw 4xh100 --gpus 8", "--gpus: 8 are more than the 4 of --hw 4xh100"},
           Option{"plan --model gpt2 gpt2-xl", "gpt2-xl: is not allowed beside --model gpt2"},
           Option{"plan gpt2 --model gpt2-xl", "gpt2: is not allowed beside --model gpt2-xl"},
           Option{"plan gpt2 --params 1B", "--model and --params are both given"},
           Option{"train gpt2 --data x --output-dir out", "use --save DIR"},
           Option{"train gpt2 --data x --learning-rate fast", "--lr: fast is not allowed"},
           Option{"train gpt2 --data x --max-steps no", "--steps"},
           Option{"train meta-llama/Llama-3.1-8B --data x",
                  "'hf download meta-llama/Llama-3.1-8B', or add --fresh-weights"},
           Option{"generate none --max-length 5", "use --max-new-tokens"},
           Option{"train gpt2 --data x --wandb", "wandb sync DIR"},
           Option{"train gpt2 --data x --report_to wandb", "use --tensorboard DIR"},
           Option{"train gpt2 --data x --logging-steps 5", "each step has a line"},
           Option{"train gpt2 --data x --use_dora", "use --method lora"},
           Option{"train gpt2 --data x --optimizer muon", "optimizer is AdamW"},
           Option{"train gpt2 --data x --gguf", "convert_hf_to_gguf.py"},
           Option{"finetune gpt2", "use 'zeroplan train MODEL --data FILE --save DIR'"},
           Option{"chat", "use 'zeroplan generate DIR --prompt TEXT'"},
           Option{"eval out", "--validation-data FILE"},
           Option{"dpo gpt2", "not on preferences"},
           Option{"plan gpt2 --seq-len 1k", "--seq-len: 1k is 1000 or 1024? Give the number"},
           Option{"generate none --tokens no", "--max-new-tokens: 'no'"},
       }) {
    CAPTURE(option.words);
    const RunResult run = RunZeroplan(option.words, OwnModels(none.path()));
    CHECK(run.exit_code == 2);
    CHECK_MESSAGE(run.err.find(option.said) != std::string::npos, run.err);
  }
  // The same model twice is no contradiction.
  CHECK(RunZeroplan("estimate --explain gpt2 --model gpt2 --stage 0").exit_code == 0);
  // "gpu" is cuda, never cpu.
  const RunResult gpu = RunZeroplan("train gpt2 --data none.txt --backend gpu --hw none");
  CHECK(gpu.err.find("CPU backend") == std::string::npos);
}

// The options of a line that ends in " (...)": what a reader pastes behind the command.
std::string OptionsOf(const std::string& text, const std::string& begin) {
  const size_t at = text.find(begin);
  REQUIRE(at != std::string::npos);
  const size_t from = at + begin.size() - begin.substr(begin.find("--")).size();
  return text.substr(from, text.find(" (", from) - from);
}

TEST_CASE("newcomer: a model that a desktop cannot hold leads on") {
  const std::string asked = "plan llama3.1-8b --hw 4090";
  const RunResult run = RunZeroplan(asked);
  CHECK(run.exit_code == 3);
  const std::string said = WordsIn(run.err);
  for (const char* begin :
       {"smallest change that fits: --", " or --allow 8bit-states", " or --host-memory "}) {
    CAPTURE(begin);
    const std::string options = OptionsOf(said, begin);
    CAPTURE(options);
    CHECK(RunZeroplan(asked + " " + options).exit_code == 0);
  }
  CHECK(Has(said, "LoRA fits (--method lora)"));
  // The closest stage alone; all of them with --explain.
  CHECK(Has(said, " closest: stage 3"));
  CHECK(Lacks(said, " stage 1"));
  CHECK(Has(WordsIn(RunZeroplan(asked + " --explain").err), " stage 1"));
}

TEST_CASE("newcomer: the doubt names what a larger host gives, and it gives that") {
  const std::string asked = "plan qwen3-4b --hw 3060";
  const RunResult run = RunZeroplan(asked);
  REQUIRE(run.exit_code == 0);
  const std::string said = WordsIn(run.out);
  const std::string begin = "a host with 68.7 GB is assumed, with 137 GB ";
  const size_t at = said.find(begin);
  REQUIRE_MESSAGE(at != std::string::npos, said);
  std::string rest = said.substr(at + begin.size());
  const bool least = rest.starts_with("at least ");
  if (least) rest.erase(0, std::string("at least ").size());
  const double times = std::stod(rest);
  const auto rate = [](const std::string& command) {
    const RunResult json = RunZeroplan(command + " --quick --format json");
    REQUIRE(json.exit_code == 0);
    return nlohmann::json::parse(json.out)["predicted"]["tokens_per_second"].get<double>();
  };
  const double gained = rate(asked + " --host-memory 137.4GB") / rate(asked);
  CHECK(gained > times * 0.98);
  if (!least) CHECK(gained < times * 1.02);
}

TEST_CASE("newcomer: the first page fits a terminal, and its commands work") {
  const RunResult page = RunZeroplan("");
  CHECK(page.exit_code == 0);
  CHECK(page.err.empty());
  CHECK(page.out.find("no GPU found here") != std::string::npos);
  int lines = 0;
  std::vector<std::string> commands;
  for (size_t begin = 0, end; begin < page.out.size(); begin = end + 1, ++lines) {
    end = std::min(page.out.find('\n', begin), page.out.size());
    const std::string line = page.out.substr(begin, end - begin);
    CHECK(line.size() <= 80);
    const std::string command = "  zeroplan ";
    if (line.starts_with(command)) commands.push_back(line.substr(command.size()));
  }
  CHECK(lines <= 24);
  REQUIRE(commands.size() == 4);
  const TempDir work;
  for (std::string& command : commands) {
    CAPTURE(command);
    if (command.starts_with("train ")) {
      command.replace(command.find("YOUR_TEXT"), 9, work.path("none.txt"));
      const RunResult run = RunZeroplan(command);
      CHECK(run.err.find("none.txt: cannot open") != std::string::npos);
      continue;
    }
    const size_t file = command.find("ds_config.json");
    if (file != std::string::npos) command.replace(file, 14, work.path("ds_config.json"));
    CHECK(RunZeroplan(command + (command.starts_with("plan ") ? " --quick" : "")).exit_code == 0);
  }
}

// Below each "    $ zeroplan ..." of a page as many lines of what it prints as stand there, up to
// "    ...", or all of them, up to "    $". With ZEROPLAN_UPDATE_GOLDEN=1 they are written anew.
// `runs`: what commands printed so far.
void CheckScreens(const char* of_docs, int count, std::map<std::string, RunResult>& runs) {
  const TempDir none;
  const std::string file = SourcePath(of_docs);
  const std::string page = ReadWhole(file);
  REQUIRE_FALSE(page.empty());
  const std::string indent = "    ", prompt = indent + "$ zeroplan ", more = indent + "...";
  std::vector<std::string> lines;
  for (size_t begin = 0, end; begin < page.size(); begin = end + 1) {
    end = std::min(page.find('\n', begin), page.size());
    lines.push_back(page.substr(begin, end - begin));
  }
  std::string now;
  int screens = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    now += lines[i] + "\n";
    if (!lines[i].starts_with(prompt)) continue;
    ++screens;
    const std::string command = lines[i].substr(prompt.size());
    CAPTURE(command);
    const auto [at_command, is_new] = runs.try_emplace(command);
    RunResult& run = at_command->second;
    if (is_new) run = RunZeroplan(command, OwnModels(none.path()));
    const std::string& out = run.exit_code == 0 ? run.out : run.err;
    size_t at = 0;
    size_t shown = 0;
    for (++i; i < lines.size() && lines[i] != more && lines[i] != indent + "$"; ++i) ++shown;
    REQUIRE(i < lines.size());
    if (lines[i] != more) shown = out.size();
    for (; shown > 0 && at < out.size(); --shown) {
      const size_t end = std::min(out.find('\n', at), out.size());
      const std::string line = out.substr(at, end - at);
      now += line.empty() ? "\n" : indent + line + "\n";
      at = end + 1;
    }
    now += lines[i] + "\n";
  }
  CHECK(screens == count);
  testing::CheckGolden(file, now);
}

TEST_CASE("pages: screens show what is printed") {
  std::map<std::string, RunResult> runs;
  CheckScreens("docs/first-screens.md", 11, runs);
  CheckScreens("docs/first-plan.md", 2, runs);
  CheckScreens("docs/first-fine-tune.md", 1, runs);
  CheckScreens("docs/which-method.md", 10, runs);
  CheckScreens("docs/hybrid-sharding.md", 1, runs);
  CheckScreens("docs/machines.md", 1, runs);
}

// ---- docs/hybrid-sharding.md: what its table says is what `plan` chooses ----

nlohmann::json PlanOf(const std::string& model, int nodes, const std::string& more) {
  const int gpus = 8 * nodes;
  const RunResult run = RunZeroplan(
      fmt::format("plan --model {} --gpus {} --hw dgx-h100 --seq-len 4096 --global-batch {} {} "
                  "--format json",
                  model, gpus, std::max(1024, gpus), more));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return nlohmann::json::parse(run.out);
}

// "3 in 8, optimizer: 1.28".
std::string Cell(const std::string& model, int nodes, const std::string& network) {
  const std::string given = "--network " + network;
  const nlohmann::json best = PlanOf(model, nodes, given);
  const nlohmann::json alone = PlanOf(model, nodes, given + " --shard-group all");
  const nlohmann::json* choice = nullptr;
  const int stage = best.at("config").at("zero_optimization").at("stage");
  for (const nlohmann::json& of_stage : best.at("stages")) {
    if (of_stage.at("stage") == stage) choice = &of_stage.at("choice");
  }
  REQUIRE(choice != nullptr);
  const int group = choice->at("shard_group");
  if (group == 8 * nodes) return fmt::format("{}", stage);
  const auto speed = [](const nlohmann::json& plan) {
    return plan.at("predicted").at("tokens_per_second").get<double>();
  };
  const bool offloads = choice->at("offload_optimizer") != "none";
  return fmt::format("{} in {}, {}{}: {:.2f}", stage, group,
                     choice->at("across_groups").get<std::string>(), offloads ? ", offload" : "",
                     speed(best) / speed(alone));
}

// Some minutes. With ZEROPLAN_UPDATE_GOLDEN=1 the table is written anew.
TEST_CASE("pages: the table of hybrid sharding holds when typed back" * doctest::skip()) {
  const std::string file = SourcePath("docs/hybrid-sharding.md");
  const std::string page = ReadWhole(file);
  std::string now;
  int rows = 0;
  for (const std::string_view line : zeroplan::Split(page, '\n')) {
    if (!line.starts_with("| llama")) {
      now += std::string(line) + "\n";
      continue;
    }
    ++rows;
    CAPTURE(std::string(line));
    const std::vector<std::string_view> cells = zeroplan::Split(line.substr(2), '|');
    const std::string model(cells[0].substr(0, cells[0].size() - 1));
    const int nodes = std::stoi(std::string(cells[1]));
    now += fmt::format("| {} | {} |", model, nodes);
    for (const char* network : {"25Gb", "100Gb", "400Gb"}) {
      now += " " + Cell(model, nodes, network) + " |";
    }
    now += "\n";
  }
  CHECK(rows == 12);
  testing::CheckGolden(file, now);
}

}  // namespace
}  // namespace zeroplan
