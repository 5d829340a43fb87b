// Manual pages and completions: written from the commands, read by the programs that people read
// them with. Where one of those is not installed, its test says so and ends.
#include "cli/manual/manual.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "cli/common/command.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

bool Installed(const std::string& program) {
  const bool there = system(("command -v " + program + " >/dev/null").c_str()) == 0;
  if (!there) MESSAGE("not tested: there is no " << program << " here (apt-get install it)");
  return there;
}

std::set<std::string> LineSet(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.insert(line.substr(0, line.find('\t')));
  }
  return lines;
}

// A folder with all pages in man1/ and the scripts as they are installed.
class Written {
 public:
  Written() {
    const std::vector<std::string> commands = {"man --write-to " + folder + "/man1",
                                               "completion bash -o " + folder + "/zeroplan",
                                               "completion zsh -o " + folder + "/_zeroplan",
                                               "completion fish -o " + folder + "/zeroplan.fish"};
    for (const std::string& command : commands) {
      const RunResult run = RunZeroplan(command);
      REQUIRE_MESSAGE(run.exit_code == 0, run.err);
    }
  }

  const TempDir root;
  const std::string& folder = root.path();
};

std::string Output(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
  pclose(pipe);
  return out;
}

// Names of options and commands that a help text shows, at the begin of its lines.
std::set<std::string> ShownInHelp(const std::string& help) {
  std::set<std::string> names;
  std::istringstream in(help);
  bool commands = false;
  for (std::string line; std::getline(in, line);) {
    if (line == "Examples:" || line == "Example:") break;
    if (!line.starts_with("  ")) commands = line == "Subcommands:";
    if (!line.starts_with("  -") && !(commands && line.starts_with("  ") && line[2] != ' '))
      continue;
    const std::string word = line.substr(2, line.find(' ', 2) - 2);
    names.insert(word.substr(word.rfind(',') + 1));
  }
  return names;
}

TEST_CASE("manual: a page for each command, with what its help shows") {
  const Written written;
  size_t options = 0;
  for (const auto& entry : fs::directory_iterator(written.folder + "/man1")) {
    const std::string name = entry.path().stem().string();
    CAPTURE(name);
    const std::string page = ReadWhole(entry.path());
    std::string command = name == "zeroplan" ? "" : name.substr(std::string("zeroplan-").size());
    std::replace(command.begin(), command.end(), '-', ' ');
    const RunResult help = RunZeroplan(command + " --help");
    REQUIRE(help.exit_code == 0);
    for (const std::string& shown : ShownInHelp(help.out)) {
      CAPTURE(shown);
      std::string escaped;
      for (const char c : shown) escaped += c == '-' ? "\\-" : std::string(1, c);
      const std::string bold =
          shown.starts_with('-') ? "\\fB" + escaped + "\\fR" : escaped + "\\fR";
      CHECK(Has(page, bold));
      ++options;
    }
    CHECK(Has(page, wording::kShExitStatusDone));
  }
  CHECK(options > 150);  // an empty scan would pass everything
  for (const char* page : {"zeroplan", "zeroplan-train", "zeroplan-hw-measure"}) {
    CHECK(fs::exists(written.folder + "/man1/" + page + ".1"));
  }
  CHECK_FALSE(fs::exists(written.folder + "/man1/zeroplan-man.1"));  // hidden
}

TEST_CASE("manual: a page is printed by name, one that is not there is refused") {
  const RunResult page = RunZeroplan("man hw list");
  CHECK(page.exit_code == 0);
  CHECK(Has(page.out, wording::kThZeroplanHwList));
  const RunResult none = RunZeroplan("man hw lists");
  CHECK(none.exit_code == 2);
  CHECK(Has(none.err, wording::kThereIsNoCommandZeroplan));
  CHECK(RunZeroplan("completion csh").exit_code == 2);
}

TEST_CASE("manual: readers of pages find nothing to complain about") {
  const Written written;
  if (Installed("mandoc")) {
    CHECK(Output("mandoc -T lint " + written.folder + "/man1/*.1") == "");
  }
  if (Installed("groff")) {
    CHECK(Output("groff -man -ww -z -T utf8 " + written.folder + "/man1/*.1") == "");
  }
  if (Installed("man")) {
    const std::string shown =
        Output("MANWIDTH=80 LC_ALL=C.UTF-8 man -l " + written.folder + "/man1/zeroplan-plan.1");
    CHECK(Has(shown, wording::kZeroplanPlanOptions));
    CHECK(Has(shown, wording::kNoneCpuNvmeAll));
  }
}

TEST_CASE("manual: text stays what it is") {
  CommandDescription program;
  program.name = "zeroplan";
  program.help = "Does it.";
  program.options = {{.group = "Options",
                      .names = {"--odd"},
                      .type = "FILE",
                      .help = ".TH is no request, 'nor' this; C:\\new -x ~/a `b`"}};
  const std::string page = ManPage({&program}, "");
  CHECK(Has(page, wording::kThIsNoRequestAqnor));
  // In each shell's own quotes.
  program.options[0].help = "it's a \\ $(touch x) [1]: two";
  CHECK(Has(Completion(program, Shell::kZsh), R"('--odd:it'\''s a \ $(touch x) [1]: two')"));
  CHECK(Has(Completion(program, Shell::kFish), R"(-d 'it\'s a \\ $(touch x) [1]: two')"));
}

TEST_CASE("completion: what is offered for a value is read off its type") {
  const auto offers = [](const char* type) {
    return OffersOf({.group = "", .names = {"--x"}, .type = type, .help = ""});
  };
  CHECK(offers("0|1|all").words == std::vector<std::string>{"0", "1", "all"});
  CHECK(offers("").none());
  CHECK(offers("COUNT").none());
  CHECK(offers("NAME|FILE").files);
  CHECK_FALSE(offers("NAME|FILE").folders);
  CHECK(offers("NAME|FILE|DIR").folders);
  CHECK(offers("FILE.jsonl").files);
  CHECK((offers("PATH").files && offers("PATH").folders));
  CHECK((offers("DIR").folders && !offers("DIR").files));
  const OptionDescription named = {
      .group = "", .names = {"--x"}, .type = "NAME", .help = "", .known = [] {
        return std::vector<std::string>{"a"};
      }};
  CHECK(OffersOf(named).words == std::vector<std::string>{"a"});
}

struct Offered {
  std::string line;                // the cursor is at its end
  std::vector<std::string> words;  // among what is offered
  std::vector<std::string> never;
};

const std::vector<Offered>& OfferedAnywhere() {
  static const auto* lines = new std::vector<Offered>{
      {"zeroplan ", {"plan", "train", "hw", "completion"}, {"man", "gpt2"}},
      {"zeroplan pl", {"plan"}, {"train"}},
      {"zeroplan plan --st", {"--stage"}, {"--model"}},
      {"zeroplan plan --stage ", {"0", "1", "2", "3", "all"}, {"--model"}},
      {"zeroplan plan --runtime ", {"zeroplan", "deepspeed", "fsdp2"}, {}},
      {"zeroplan plan --for ", {"deepspeed", "hf-trainer", "accelerate", "torchtitan"}, {}},
      {"zeroplan estimate --model gpt2-", {"gpt2-xl", "gpt2-medium"}, {"llama3.1-8b", "gpt2"}},
      {"zeroplan estimate --hw hgx-", {"hgx-h200"}, {"rtx4090"}},
      {"zeroplan plan --network eth-2", {"eth-25"}, {"eth-100"}},
      {"zeroplan plan --params 1B --family ", {"gpt2", "llama", "qwen3"}, {}},
      {"zeroplan hw ", {"list", "show", "measure", "check"}, {"plan"}},
      {"zeroplan hw show hgx-h20", {"hgx-h200"}, {}},
      {"zeroplan hw measure --only p", {"power", "pcie"}, {"host"}},
      {"zeroplan model show qwen3-8", {"qwen3-8b"}, {}},
      {"zeroplan train --backend ", {"cpu", "cuda", "auto"}, {}},
      {"zeroplan train --data corpus.b", {"corpus.bin"}, {"chats.jsonl"}},
      {"zeroplan train --data corpus.bin c", {"chats.jsonl", "corpus.bin"}, {}},
      {"zeroplan train --data corpus.bin --fin", {"--final-weights"}, {"chats.jsonl"}},
      {"zeroplan train --gpus ", {}, {"corpus.bin", "--data", "plan"}},
      {"zeroplan explain c", {"chats.jsonl", "corpus.bin"}, {}},
      {"zeroplan completion ", {"bash", "zsh", "fish"}, {}},
      {"zeroplan plan --largest s", {"seq-len"}, {"model"}}};
  return *lines;
}

// `offered(line)`: what a shell offers, in a folder with corpus.bin, chats.jsonl and weights/.
template <typename Run>
void CheckShell(const Written& written, const Run& offered) {
  fs::create_directories(written.folder + "/here/weights");
  std::ofstream(written.folder + "/here/corpus.bin") << "x";
  std::ofstream(written.folder + "/here/chats.jsonl") << "x";
  const auto check = [&](const Offered& expected) {
    CAPTURE(expected.line);
    const std::string said = offered("cd " + written.folder + "/here; ", expected.line);
    CAPTURE(said);
    const std::set<std::string> words = LineSet(said);
    for (const std::string& word : expected.words) {
      // Some shells end a folder with a slash.
      CHECK_MESSAGE((words.count(word) || words.count(word + "/")), word);
    }
    for (const std::string& word : expected.never) CHECK_MESSAGE(!words.count(word), word);
  };
  for (const Offered& expected : OfferedAnywhere()) check(expected);
  check({"zeroplan generate w", {"weights"}, {}});
  check({"zeroplan train --save ", {"weights"}, {"corpus.bin"}});
}

TEST_CASE("completion: bash") {
  if (!Installed("bash")) return;
  const Written written;
  CheckShell(written, [&](const std::string& there, const std::string& line) {
    // The words of the line, the last one empty behind a space.
    const std::string last = line.ends_with(' ') ? " ''" : "";
    return Output(there + "bash " + SourcePath("tests/fixtures/completions/complete.bash") + " " +
                  written.folder + "/zeroplan " + line + last);
  });
  // readline makes three words of --model=gpt2-x.
  const std::string equals =
      Output("bash " + SourcePath("tests/fixtures/completions/complete.bash") + " " +
             written.folder + "/zeroplan zeroplan plan --model = gpt2-x");
  CHECK(LineSet(equals) == std::set<std::string>{"gpt2-xl"});
}

TEST_CASE("completion: zsh") {
  if (!Installed("zsh")) return;
  const Written written;
  const auto offered = [&](const std::string& there, const std::string& line) {
    return Output(there + "zsh -f " + SourcePath("tests/fixtures/completions/complete.zsh") + " " +
                  written.folder + " '" + line + "'");
  };
  CheckShell(written, offered);
  CHECK(LineSet(offered("", "zeroplan plan --model=gpt2-x")) == std::set<std::string>{"gpt2-xl"});
}

TEST_CASE("completion: fish") {
  if (!Installed("fish")) return;
  const Written written;
  const auto offered = [&](const std::string& there, const std::string& line) {
    return Output(there + "fish --no-config -c 'source " + written.folder +
                  "/zeroplan.fish; complete -C \"" + line + "\"'");
  };
  CheckShell(written, offered);
  CHECK(LineSet(offered("", "zeroplan plan --model=gpt2-x")) ==
        std::set<std::string>{"--model=gpt2-xl"});
}

}  // namespace
}  // namespace zeroplan
