// Every command in a terminal of 80 and of 100 columns: no line passes its edge, no word is broken,
// nothing floods it, and nothing that others named reaches it as it is.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/cli/screen.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

std::string Environment(const Workspace& work) {
  return "ZEROPLAN_NO_DETECT=1 PAGER=cat ZEROPLAN_CACHE_DIR=" + work.path("cache");
}

TerminalRun Show(const Workspace& work, const std::string& arguments, size_t columns,
                 const std::string& environment = "") {
  return RunInTerminal("env " + Environment(work) + " " + environment + " " +
                           BinaryPath("zeroplan") + " " + arguments,
                       columns);
}

// What is written the same in every run and at every width: no numbers, no rules of a table, no
// drawn rows, no backslash behind which a command goes on.
bool IsWord(const std::string& text) {
  bool letter = false;
  for (const char c : text) {
    if (c >= '0' && c <= '9') return false;
    letter = letter || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }
  return letter && text.find_first_not_of("FBUgrhdcs.-|") != std::string::npos;
}

std::set<std::string> WordsOf(const std::string& text) {
  std::set<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    if (IsWord(word)) words.insert(word);
  }
  return words;
}

// Whether it stands in `wide` between two of a word's '/' and ',': where one that no line holds may
// be broken.
bool IsPart(const std::string& word, const std::string& wide) {
  const auto border = [](char c) { return c == '/' || c == ',' || c == ' ' || c == '\n'; };
  for (size_t at = 0; (at = wide.find(word, at)) != std::string::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || border(wide[at - 1])) && (border(word.back()) || border(wide[end])))
      return true;
  }
  return false;
}

// Words that `narrow` has and `wide` has not: parts of broken ones.
std::string Broken(const std::vector<std::string>& narrow, const std::string& wide) {
  std::set<std::string> known = WordsOf(wide);
  known.merge(
      WordsOf("Left out for want of room: a wider terminal, -o FILE and --format csv json have "
              "all. terminal have it."));
  // Units of what is measured, which two runs may find larger or smaller.
  known.merge(WordsOf("us ms min KB MB GB TB KB/s MB/s GB/s"));
  std::string broken;
  for (const std::string& line : narrow) {
    for (const std::string& word : WordsOf(line)) {
      // In a list of what was left out.
      const std::string listed = word.substr(0, word.find_last_not_of(",;:") + 1);
      if (!IsWord(listed)) continue;
      if (!known.contains(word) && !known.contains(listed) && !IsPart(word, wide)) {
        broken += word + " in \"" + line + "\"\n";
      }
    }
  }
  return broken;
}

// The most lines that `text` takes at that width: none needs to be emptier than half.
size_t MostLines(const std::string& text, size_t columns) {
  size_t lines = 3;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines += 1 + line.size() / (columns / 2);
  return lines;
}

// `arguments`: "{}" in them is where files may be written, another at each run.
void CheckFits(const Workspace& work, const std::string& arguments, int exit_code = 0) {
  static int run = 0;
  const auto with_folder = [&](std::string text) {
    const std::string folder = work.path("r" + std::to_string(run++));
    for (size_t at; (at = text.find("{}")) != std::string::npos;) text.replace(at, 2, folder);
    return text;
  };
  CAPTURE(arguments);
  const RunResult piped = RunZeroplan(with_folder(arguments), Environment(work));
  CAPTURE(piped.err);
  REQUIRE(piped.exit_code == exit_code);
  CHECK(piped.out.find('\x1b') == std::string::npos);
  CHECK(piped.err.find('\x1b') == std::string::npos);
  const std::string all = piped.out + "\n" + piped.err;
  for (const size_t columns : {80u, 100u}) {
    CAPTURE(columns);
    const TerminalRun shown = Show(work, with_folder(arguments), columns);
    CHECK(shown.exit_code == exit_code);
    std::string overflows;
    for (const std::string& line : shown.screen.overflows()) overflows += line + "\n";
    CHECK(overflows == "");
    CHECK(shown.screen.unknown() == "");
    CHECK(Broken(shown.screen.lines(), all) == "");
    CHECK(shown.screen.lines().size() <= MostLines(all, columns));  // progress makes none
  }
}

TEST_CASE("help fits a terminal") {
  const Workspace work;
  for (const char* command : {"",
                              "estimate",
                              "plan",
                              "explain",
                              "model",
                              "model list",
                              "model show",
                              "hw",
                              "hw list",
                              "hw show",
                              "hw measure",
                              "hw check",
                              "config",
                              "config check",
                              "train",
                              "generate",
                              "data",
                              "data tokenize",
                              "data show",
                              "checkpoint",
                              "checkpoint verify",
                              "checkpoint list",
                              "doctor"}) {
    CheckFits(work, std::string(command) + " --help");
  }
}

TEST_CASE("long help goes through the pager") {
  const Workspace work;
  const TerminalRun all = Show(work, "plan --help", 80);
  CHECK(all.exit_code == 0);
  const TerminalRun paged = Show(work, "plan --help", 80, "PAGER='head -n 3'");
  CHECK(paged.exit_code == 0);
  REQUIRE(paged.screen.lines().size() == 4);  // the last is empty
  CHECK(paged.screen.lines()[0] == all.screen.lines()[0]);
  // One that is not there, and help that fits the screen.
  const TerminalRun none = Show(work, "plan --help 2>/dev/null", 80, "PAGER=no-such-pager");
  CHECK(none.screen.lines().size() == all.screen.lines().size());
  const TerminalRun few = Show(work, "model list --help", 80, "PAGER='head -n 1'");
  CHECK(few.screen.lines().size() > 2);
}

TEST_CASE("-h is forty lines, --help all") {
  const Workspace work;
  for (const char* command : {"plan", "estimate", "train", "why", "doctor", "generate", "hw", ""}) {
    CAPTURE(command);
    CheckFits(work, std::string(command) + " -h");
    const TerminalRun shown = Show(work, std::string(command) + " -h", 80);
    CHECK(shown.screen.lines().size() <= 41);  // the last is the prompt's
    std::string text;
    for (const std::string& line : shown.screen.lines()) text += line + '\n';
    CHECK(Has(text, "  zeroplan " + std::string(command)));  // an example, of that command
    CHECK(Has(text, "--help"));
  }
}

TEST_CASE("what plans fits a terminal") {
  const Workspace work;
  const std::string small = " --model gpt2 --gpus 2 --seq-len 256 ";
  for (const std::string& arguments : std::vector<std::string>{
           "--version", "doctor", "model list", "model show gpt2", "model show llama3.1-8b",
           "hw list", "hw show hgx-h200",
           "config check " + SourcePath("examples/byte_gpt/ds_config.json"), "estimate" + small,
           "estimate --params 10B --gpus 16 --tokens 300B --gpu-hour-price 2.5",
           "estimate --params 10B --gpus 16 --stage 3 --offload-optimizer none,cpu,nvme "
           "--offload-param none,cpu,nvme",
           "estimate" + small + "--stage 2 --offload-optimizer cpu --checkpointing full",
           "estimate" + small + "--runtime deepspeed",
           "estimate" + small + "--runtime fsdp2 --stage 3 --checkpointing none",
           "plan" + small + "--micro-batch 4 --global-batch 16 --explain",
           "plan" + small + "--micro-batch 4 --global-batch 16 --runtime deepspeed --quick",
           "plan" + small + "--stage 2 --micro-batch 2 --quick --plan-out {}.json"}) {
    CheckFits(work, arguments);
  }
  const std::string plan = work.path("plan.json");
  REQUIRE(RunZeroplan("plan" + small +
                      "--stage 3 --micro-batch 2 --grad-accum 2 --quick "
                      "--offload-optimizer cpu --plan-out " +
                      plan)
              .exit_code == 0);
  CheckFits(work, "explain " + plan);
}

TEST_CASE("usual questions are answered on one screen, the next command last") {
  const Workspace work;
  constexpr size_t kRows = 24;
  struct Usual {
    const char* words;
    const char* answer;
    const char* next;  // how the command begins that comes next
  };
  for (const Usual& usual : std::vector<Usual>{
           {"plan qwen2.5-1.5b --hw 4090", "Chosen: stage ", "zeroplan plan qwen2.5-1.5b"},
           {"plan qwen2.5-1.5b --hw 4090 --method lora", "Chosen: stage ",
            "zeroplan plan qwen2.5-1.5b"},
           {"plan llama3.1-8b --hw 8xh100", "Chosen: stage ", "zeroplan plan llama3.1-8b"},
           {"plan --params 7B --gpus 64 --hw dgx-a100-80gb --tokens 100B",
            "Training on 100B tokens", "zeroplan plan --params 7B"},
           {"plan llama3.1-8b --hw 4090 --method all", "Answer: LoRA",
            "zeroplan plan llama3.1-8b --hw 4090 --method lora"},
           {"plan gpt2-xl --hw 4090,l40s,t4 --tokens 100M --objective cost",
            "Cheapest: ", "zeroplan plan gpt2-xl"},
           {"plan qwen3-8b --hw 4xa100 --runtime deepspeed",
            "Chosen for DeepSpeed: ", "zeroplan plan qwen3-8b"},
           {"estimate --params 10B --gpus 16", "fits", "zeroplan plan --params 10B --gpus 16"},
           {"estimate llama3.1-8b --hw 4090 --method qlora", "full",
            "zeroplan plan llama3.1-8b --hw 4090 --method qlora"}}) {
    CAPTURE(std::string(usual.words));
    const TerminalRun run = Show(work, std::string(usual.words) + " 2>/dev/null", 80);
    CHECK(run.exit_code == 0);
    CHECK(run.screen.overflows().empty());
    std::vector<std::string> lines = run.screen.lines();
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    CHECK(lines.size() < kRows);  // one is the prompt's
    if (usual.words == std::string("plan qwen2.5-1.5b --hw 4090 --method lora")) {
      CHECK(lines.size() <= 12);
    }
    std::string screen;
    for (const std::string& line : lines) screen += line + '\n';
    CAPTURE(screen);
    CHECK(Has(screen, usual.answer));
    CHECK(Has(screen, "\nDoubt: "));
    CHECK(Has(WordsIn(screen), "would change it: --explain Next: "));
    // As a shell reads it.
    std::string next = screen.substr(screen.find("\nNext: ") + 7);
    for (size_t at; (at = next.find("\\\n")) != std::string::npos;) next.erase(at, 2);
    CHECK(Has(WordsIn(next), usual.next));
    if (next.find("--plan-out") != std::string::npos || next.find("--out") != std::string::npos) {
      continue;
    }
    const RunResult again =
        RunZeroplan(next.substr(std::string("zeroplan ").size()), Environment(work));
    CAPTURE(again.err);
    CHECK(again.exit_code == 0);
  }
}

TEST_CASE("messages fit a terminal") {
  const Workspace work;
  CheckFits(work, "estimate --model gpt2-xxl", 2);
  CheckFits(work, "estimate --model gpt2 --hw dgx-a100", 2);
  CheckFits(work, "plan --params 100B --gpu-memory 1GB --stage 0 --offload-optimizer none", 3);
  CheckFits(work, "train --model gpt2 --data x --dtype fp32 --grad-accum-dtype bf16", 2);
}

TEST_CASE("what runs fits a terminal, its progress one line") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  const std::string tokens = work.path("tokens.bin");
  const std::string tokenize = "data tokenize " + SourcePath("LICENSE") + " --tokenizer " + model;
  REQUIRE(RunZeroplan(tokenize + " -o " + tokens).exit_code == 0);
  CheckFits(work, tokenize + " -o {}.bin");
  CheckFits(work, "data show " + tokens + " --count 400 --tokenizer " + model);
  const std::string train = "train --threads 1 --seq-len 32 --lr 3e-3 --steps 40 --data " + tokens +
                            " --fresh-weights --model " + model + " --save ";
  const std::string out = work.path("out");
  REQUIRE(RunZeroplan(train + out, Environment(work)).exit_code == 0);
  CheckFits(work, "checkpoint verify " + out);
  CheckFits(work, "checkpoint list " + out);
  CheckFits(work, "generate " + out + " --prompt 'Permission is' --tokens 60 --temperature 0");

  for (const size_t columns : {80u, 100u, 40u}) {
    CAPTURE(columns);
    const TerminalRun shown = Show(work, train + work.path("o" + std::to_string(columns)), columns);
    CAPTURE(shown.text);
    CHECK(shown.exit_code == 0);
    CHECK(shown.screen.overflows().empty());
    // The bar was drawn and is gone; some twenty lines of steps stay.
    CHECK(Has(shown.text, "step 40/40"));
    size_t bars = 0;
    size_t steps = 0;
    for (const std::string& line : shown.screen.lines()) {
      steps += line.starts_with("step ") && Has(line, "/40  loss ");
      bars += line.starts_with("[");
    }
    CHECK(bars == 0);
    CHECK(steps == 21);
    CHECK(Has(shown.text, "saving step 40"));
  }
  // Without it, lines now and then, as in a file.
  const TerminalRun plain = Show(work, train + work.path("plain") + " --no-progress", 100);
  CHECK(plain.exit_code == 0);
  CHECK(plain.text.find('\x1b') == std::string::npos);
  CHECK(Has(plain.text, "step 2/40"));
  CHECK(plain.screen.overflows().empty());
}

TEST_CASE(
    "a terminal gets colours and control sequences where it takes them, and nothing else does") {
  const Workspace work;
  const std::string small = "estimate --model gpt2 --seq-len 256";
  CHECK(Has(Show(work, small, 100).text, "\x1b[32m"));
  const std::string wiped = Show(work, small, 100, "NO_COLOR=1").text;
  CHECK(Lacks(wiped, "\x1b[32m"));
  CHECK(Show(work, small, 100, "TERM=dumb").text.find('\x1b') == std::string::npos);
  CHECK(Show(work, small + " --no-progress", 100, "NO_COLOR=1").text.find('\x1b') ==
        std::string::npos);
  const RunResult piped = RunZeroplan(small);
  CHECK((piped.out + piped.err).find('\x1b') == std::string::npos);
}

TEST_CASE("data on a terminal stays as it is") {
  const Workspace work;
  std::string shown = Show(work, "hw show hgx-h200 --format json", 80).text;
  std::erase(shown, '\r');
  CHECK(shown == RunZeroplan("hw show hgx-h200 --format json").out);
}

TEST_CASE("a file gets the same from a terminal as from a pipe") {
  const Workspace work;
  const std::string small = "estimate --model gpt2 --seq-len 256 -o ";
  CHECK(Show(work, small + work.path("a"), 60).exit_code == 0);
  CHECK(RunZeroplan(small + work.path("b")).exit_code == 0);
  CHECK(ReadWhole(work.path("a")) == ReadWhole(work.path("b")));
}

TEST_CASE("names from outside are never echoed raw") {
  const Workspace work;
  const std::string evil =
      "a\x1b]0;title\x07\x9b"
      "31m\xff\xe2\x80\xae\r.json";
  const std::string file = work.path(evil);
  std::ofstream(file) << "{\"model_type\": \"gpt2\x1b[2J\", \"\x1b[31mkey\": 1}";
  for (const std::string& arguments : std::vector<std::string>{
           "estimate --model '" + file + "'", "config check '" + file + "'",
           "hw show '" + file + "'", "explain '" + file + "'", "estimate --model '" + evil + "'",
           "train --model gpt2 --data '" + evil + "'", "checkpoint verify '" + evil + "'"}) {
    CAPTURE(arguments);
    const RunResult piped = RunZeroplan(arguments);
    CHECK(piped.exit_code == 2);
    const std::string said = piped.out + piped.err;
    CAPTURE(said);
    CHECK(Has(said, wording::kTitleXffJson));
    for (const char c : said) CHECK((c == '\n' || (c >= 0x20 && c < 0x7f)));
    const TerminalRun shown = Show(work, arguments, 80);
    CHECK(shown.screen.unknown() == "");
    CHECK(Lacks(shown.text, "]0;title\x07"));
  }
  // A name that a report shows, not a message.
  fs::rename(file, work.path("m\x1b[31m"));
  fs::create_directory(work.path("\x1b[31mred"));
  testing::WriteGpt2Config(work.path("\x1b[31mred/config.json"));
  const RunResult report =
      RunZeroplan("estimate --model '" + work.path("\x1b[31mred") + "' --stage 0");
  CHECK(report.exit_code == 0);
  CHECK(Has(report.out, "\\x1b[31mred"));
  CHECK(report.out.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace zeroplan
