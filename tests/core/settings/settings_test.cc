// A setting is stated once, in its row: no other product file contains its name, except the files
// below.
#include "core/settings/settings.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/paths.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// The files, or folders, that may contain names of settings as literals, and why.
const std::map<std::string_view, std::string_view>& Exceptions() {
  static const std::map<std::string_view, std::string_view> exceptions = {
      {"core/config/", "hooks: keys of DeepSpeed that mean several settings"},
      {"core/settings/setup_facts.cc", "checks: what goes with what in a setup"},
      {"planner/request/", "checks: what goes with what, by the names of options"},
      {"planner/why/", "other programs' logs, whose words become settings"},
      {"planner/formats/", "other programs' files, whose keys are called alike"},
      {"planner/runtimes/deepspeed.cc", "DeepSpeed's own key \"compile\""},
      {"planner/runtimes/fsdp2.cc", "an argument of fully_shard"},
      {"cli/common/other_names.cc", "options of other programs, and what to use instead"},
      {"cli/run/train/train_command.cc", "options that train describes in words of its own"},
      {"planner/runs/metrics_reader.cc", "lines of metrics from before they held the program"},
      {"planner/plan/plan_fields.h", "a field of LowerOptions"},
      {"planner/plan/plan_writer.cc", "keys of claims and stages that are called alike"},
      {"planner/report/report_table.cc", "a heading of the memory table"},
      {"planner/report/choice_json.cc", "a key of \"data\""},
      {"planner/page/data_pictures.cc", "a heading"},
      {"planner/advice/advice.cc", "a kind of advice"},
      {"cost_models/closed_form.cc", "the name of a failed check"}};
  return exceptions;
}

// Words that hardware profiles, models and weight files use with meanings of their own.
constexpr std::string_view kOverloaded[] = {"gpus", "seq_len", "dtype"};

std::string WithoutComments(const std::string& text, bool python) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    const size_t comment = line.find(python ? "#" : "//");
    out += line.substr(0, comment) + "\n";
  }
  return out;
}

std::vector<std::string> LiteralsOf(const SettingRow& row) {
  std::string dashed(row.name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return {fmt::format("\"{}\"", row.name), fmt::format("\"⟦{}⟧\"", row.name),
          fmt::format("\"--{}\"", dashed)};
}

// Each product file from the root of the tree, without its comments.
std::map<std::string, std::string> ProductFiles() {
  std::map<std::string, std::string> files;
  const fs::path root = SourcePath("");
  for (const char* folder : {"core", "cost_models", "hwprofiles", "machine", "planner", "text",
                             "reader", "executor", "cli", "library", "python"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string kind = entry.path().extension().string();
      const bool code = kind == ".h" || kind == ".cc" || kind == ".cu" || kind == ".py";
      if (!entry.is_regular_file() || !code) continue;
      std::ifstream stream(entry.path());
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      files[fs::relative(entry.path(), root).string()] = WithoutComments(text, kind == ".py");
    }
  }
  return files;
}

// "FILE: LITERAL" of each breach.
std::vector<std::string> Breaches(const std::map<std::string, std::string>& files) {
  std::vector<std::string> found;
  for (const SettingRow* row : kSettingRows) {
    if (std::count(std::begin(kOverloaded), std::end(kOverloaded), row->name) > 0) continue;
    for (const std::string& literal : LiteralsOf(*row)) {
      for (const auto& [file, text] : files) {
        const auto& exceptions = Exceptions();
        const bool excepted =
            std::any_of(exceptions.begin(), exceptions.end(),
                        [&file = file](const auto& e) { return file.starts_with(e.first); });
        // Rows with a `set` need no hook, so only the check of setups may contain their names.
        const bool may = row->set == nullptr ? excepted : file == "core/settings/setup_facts.cc";
        if (!may && text.find(literal) != std::string::npos) found.push_back(file + ": " + literal);
      }
    }
  }
  return found;
}

TEST_CASE("settings: no product file but the rows has their names") {
  CHECK(Exceptions().size() + std::size(kOverloaded) <= 20);
  const std::vector<std::string> breaches = Breaches(ProductFiles());
  for (const std::string& breach : breaches) MESSAGE("ERROR " << breach);
  CHECK(breaches.empty());
}

TEST_CASE("settings: each exception is needed") {
  const std::map<std::string, std::string> files = ProductFiles();
  for (const auto& [place, why] : Exceptions()) {
    CAPTURE(place);
    bool needed = false;
    for (const auto& [file, text] : files) {
      if (!file.starts_with(place)) continue;
      for (const SettingRow* row : kSettingRows) {
        for (const std::string& literal : LiteralsOf(*row)) {
          needed |= text.find(literal) != std::string::npos;
        }
      }
    }
    CHECK(needed);
  }
}

TEST_CASE("settings: a name in another file is found, in each of its forms") {
  for (const char* text :
       {"Add(\"micro_batch\");", "Say(\"⟦micro_batch⟧\");", "\"--micro-batch\""}) {
    CHECK(Breaches({{"planner/new.cc", text}}).size() == 1);
  }
  CHECK(Breaches({{"core/config/new.cc", "own[\"deterministic\"]"}}).size() == 1);
  CHECK(Breaches({{"planner/request/new.cc", "\"⟦micro_batch⟧\""}}).empty());
}

TEST_CASE("settings: rows say what their option and their record need") {
  std::set<std::string_view> names;
  for (const SettingRow* row : kSettingRows) {
    CAPTURE(row->name);
    CHECK(names.insert(row->name).second);
    CHECK(FindSetting(row->name) == row);
    const bool record = row->record != RecordType::kNone;
    CHECK((row->get != nullptr) == record);
    CHECK(record != row->about.empty());
    if (!record) continue;
    // The value in the record of a default-constructed setup.
    const SettingValue value = DefaultValue(*row);
    if (std::holds_alternative<std::monostate>(value)) {
      CHECK(row->may_be_null);
    } else {
      CHECK(std::holds_alternative<bool>(value) == (row->record == RecordType::kBool));
      CHECK(std::holds_alternative<int64_t>(value) == (row->record == RecordType::kWhole));
      CHECK(std::holds_alternative<double>(value) == (row->record == RecordType::kNumber));
    }
    if (const auto* word = std::get_if<std::string>(&value); word != nullptr && row->words) {
      const std::vector<std::string> words = row->words();
      CHECK(std::count(words.begin(), words.end(), *word) == 1);
    }
    // A setup accepts each value that a config may set.
    if (row->set == nullptr) continue;
    TrainSetup setup;
    const SettingValue other = row->record == RecordType::kBool    ? SettingValue(true)
                               : row->record == RecordType::kWhole ? SettingValue(int64_t{2})
                               : row->record == RecordType::kNumber
                                   ? SettingValue(0.5)
                                   : SettingValue(row->words().back());
    row->set(setup, other);
    CHECK(row->get(setup) == other);
    CHECK(SetsOwnKey(*row, setup));
  }
}

TEST_CASE(
    "settings: the record of another program's choice has its recipe, and null for what is ours") {
  TrainSetup setup;
  setup.precision.fp8.enabled = true;
  setup.zero.optimizer_in_backward = false;
  TorchRecipe recipe;
  recipe.offload_activations = recipe.optimizer_in_backward = true;
  const SettingValue null;
  CHECK(RecordValue(setting::fp8_recipe, setup) == SettingValue("tensor"));
  CHECK(RecordValue(setting::fp8_recipe, setup, &recipe) == null);
  CHECK(RecordValue(setting::matmul_dtype, setup, &recipe) == SettingValue("fp8"));
  CHECK(RecordValue(setting::offload_activations, setup) == SettingValue("none"));
  CHECK(RecordValue(setting::offload_activations, setup, &recipe) == SettingValue("cpu"));
  CHECK(RecordValue(setting::optimizer_in_backward, setup) == SettingValue(false));
  CHECK(RecordValue(setting::optimizer_in_backward, setup, &recipe) == SettingValue(true));
}

}  // namespace
}  // namespace zeroplan
