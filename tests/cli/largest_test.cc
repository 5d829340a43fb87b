// plan --largest, as a user runs it: what it finds fits, and the next does not.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/cli/run_binary.h"

namespace zeroplan {
namespace {

// The value behind `mark` in `text`; "" if it is not there.
std::string ValueBehind(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return text.substr(begin, text.find_first_of(" ;", begin) - begin);
}

TEST_CASE("plan --largest: what it finds fits, the next step does not") {
  const std::string machine = " --gpu-memory 4GB --host-memory 8GB --stage 0,1 ";
  const struct {
    std::string option, rest;
    std::string what;
  } cases[] = {
      {"--params", machine, ""},
      {"--params", machine + "--seq-len 2048 --checkpointing none", "model"},
      {"--seq-len", machine + "--params 100M --checkpointing none", "seq-len"},
      {"--micro-batch", machine + "--model gpt2 --seq-len 128 --checkpointing none", "micro-batch"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.option);
    const RunResult run = RunZeroplan("plan --largest " + c.what + c.rest);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const std::string text = Unwrapped(run.out);
    CAPTURE(text);
    const std::string fits = ValueBehind(text, "Largest: " + c.option + " ");
    const std::string next = ValueBehind(text, " fits; " + c.option + " ");
    CAPTURE(fits);
    CAPTURE(next);
    CHECK(text.find(" does not: closest is stage ") != std::string::npos);
    CHECK(RunZeroplan("plan " + c.option + " " + fits + c.rest).exit_code == 0);
    CHECK(RunZeroplan("plan " + c.option + " " + next + c.rest).exit_code == 3);
    // Behind it, the plan of what was found.
    CHECK(text.find("Chosen: stage ") != std::string::npos);
  }
}

TEST_CASE("plan --largest: where the model ends, and where nothing fits") {
  const RunResult all = RunZeroplan("plan --model gpt2 --largest seq-len --stage 0");
  CHECK(all.exit_code == 0);
  CHECK(Unwrapped(all.out).find("Largest: --seq-len 1024 fits; the model has no more positions.") !=
        std::string::npos);
  const RunResult none = RunZeroplan("plan --largest --gpu-memory 700MB");
  CHECK(none.exit_code == 3);
  CHECK(none.err.find("nothing fits, not even --params 1.00M: closest is ") != std::string::npos);
  CHECK(none.err.find("GPU memory short by ") != std::string::npos);
}

TEST_CASE("plan --largest: what leaves nothing to find is named") {
  const struct {
    const char* arguments;
    std::vector<const char*> said;
  } cases[] = {
      {"--largest --model gpt2", {"--largest", "--model gpt2 is given", "--largest seq-len"}},
      {"--largest --params 1B", {"--params 1B is given"}},
      {"--largest seq-len", {"--largest: seq-len needs a model"}},
      {"--largest seq-len --model gpt2 --seq-len 64", {"--seq-len 64", "leave one"}},
      {"--largest micro-batch --model gpt2 --micro-batch 4", {"--micro-batch 4", "leave one"}},
      {"--largest micro-batch --model gpt2 --global-batch 64", {"--global-batch 64"}},
      {"--largest width", {"--largest: width", "seq-len"}},
      {"--largest --plan-out /no/such/d.json", {"--plan-out", "no folder"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = RunZeroplan(std::string("plan ") + c.arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    for (const char* word : c.said) CHECK(run.err.find(word) != std::string::npos);
  }
}

}  // namespace
}  // namespace zeroplan
