// One list of other programs' options: what files are written with is what logs are read by.
#include "planner/program_options.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

#include "planner/request/fields.h"
#include "planner/request/request.h"
#include "planner/why/run_log.h"

namespace zeroplan {
namespace {

// The field's text by its name, and how it is read.
class FieldsByName : public FieldSink {
 public:
  void Take(AddedField field) override { fields.emplace(field.info.name, std::move(field)); }
  std::map<std::string, AddedField> fields;
};

std::string FactOf(const std::string& command, std::string_view field) {
  const RunLog log = ParseLog(command + "\n", "train.log");
  const LogFact* fact = log.Fact(field);
  return fact == nullptr ? "" : fact->text;
}

TEST_CASE("program options: a name stands once, and named values belong to named options") {
  std::set<std::string_view> names;
  for (const ProgramOption& option : kProgramOptions) {
    CAPTURE(option.name);
    CHECK(names.insert(option.name).second);
    CHECK((option.kind == ValueKind::kSwitch) == !option.on.empty());
  }
  for (const OptionValue& row : kOptionValues) {
    CAPTURE(row.name);
    const ProgramOption* option = FindOption(row.name);
    REQUIRE(option != nullptr);
    CHECK(option->kind == ValueKind::kNamed);
    CHECK(TextOfOption(row.name, ValueForText(row.name, row.text)) == row.text);
  }
}

TEST_CASE("program options: what they mean is a field, which takes the text") {
  Request request;
  FieldsByName known;
  AddRunFields(known, request);
  const auto takes = [&](std::string_view field, std::string_view text) {
    const auto found = known.fields.find(std::string(field));
    REQUIRE_MESSAGE(found != known.fields.end(), std::string(field));
    if (!text.empty()) CHECK_NOTHROW(found->second.take(std::string(text), field));
  };
  for (const ProgramOption& option : kProgramOptions) {
    if (option.field == kEvalBatchFact) continue;
    CAPTURE(option.name);
    takes(option.field, option.on);
    takes(option.field, option.off);
  }
  for (const OptionValue& row : kOptionValues) {
    CAPTURE(row.name);
    takes(FindOption(row.name)->field, row.text);
  }
}

TEST_CASE("program options: torchtitan's command line is read") {
  const auto fact = [](std::string_view field) {
    return FactOf(
        "torchrun --nproc_per_node 8 -m torchtitan.train --training.local_batch_size 2 "
        "--training.seq_len=4096 --training.enable_cpu_offload true "
        "--parallelism.fsdp_reshard_after_forward never --activation_checkpoint.mode full "
        "--optimizer.implementation foreach --compile.enable true",
        field);
  };
  CHECK(fact("⟦gpus⟧") == "8");
  CHECK(fact("⟦micro_batch⟧") == "2");
  CHECK(fact("⟦seq_len⟧") == "4096");
  CHECK(fact("⟦offload_param⟧") == "cpu");
  CHECK(fact("⟦stage⟧") == "2");
  CHECK(fact("⟦checkpointing⟧") == "full");
  CHECK(fact("⟦optim⟧") == "adamw_torch");
  CHECK(fact("⟦compile⟧") == "all");
}

TEST_CASE("program options: what a program is given means the field's text again") {
  for (const ProgramOption& option : kProgramOptions) {
    if (option.program == OtherProgram::kOther || option.field == "⟦runtime⟧") continue;
    std::string value = "2", text = "2";
    if (option.kind == ValueKind::kSwitch) {
      value = "true";
      text = option.on;
    } else if (option.kind == ValueKind::kNamed) {
      for (const OptionValue& row : kOptionValues) {
        if (row.name == option.name) text = row.text;
      }
      value = ValueForText(option.name, text);
    }
    const std::string command = fmt::format("torchrun train.py --{} {}", option.name, value);
    CHECK_MESSAGE(FactOf(command, option.field) == text, command);
  }
}

}  // namespace
}  // namespace zeroplan
