#include "tests/planner/runtimes/published_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "planner/request/fields.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

// Takes the fields of a request, and fills in those that a row names.
class RowFields : public FieldSink {
 public:
  void Take(AddedField field) override { fields_.push_back(std::move(field)); }

  void Read(const nlohmann::json& request) {
    for (const auto& [key, value] : request.items()) {
      const std::string marked = "⟦" + key + "⟧";
      const auto found = std::find_if(fields_.begin(), fields_.end(), [&](const AddedField& field) {
        return field.info.name == marked;
      });
      if (found == fields_.end()) ThrowUsage("request.{}: is no field of an estimate", key);
      if (value == false) continue;
      found->name = key;
      found->given = true;
      const bool alone = value == true && found->info.alone != nullptr;
      found->text = value.is_string() ? value.get<std::string>() : alone ? "" : value.dump();
    }
    ReadFields(fields_);
  }

 private:
  std::deque<AddedField> fields_;
};

// Writes what a row has in full, for a field that takes a file.
void ToFile(nlohmann::json* request, const char* key, const std::string& path) {
  if (!request->contains(key) || !(*request)[key].is_object()) return;
  std::ofstream(path) << (*request)[key].dump();
  (*request)[key] = path;
}

// A profile of the source tree by its path there.
void FindProfileOfTree(nlohmann::json* request) {
  const auto hw = request->find("hw");
  if (hw == request->end() || !hw->is_string()) return;
  const std::string name = *hw;
  if (name.find('/') != std::string::npos && name.front() != '/') *hw = SourcePath(name);
}

PublishedRow RowOf(nlohmann::json json) {
  PublishedRow row;
  row.id = json.at("id");
  row.framework = json.at("framework");
  row.trust = json.at("trust");
  const std::string outcome = json.at("outcome");
  row.ran = outcome == "ran";
  if (!row.ran && outcome != "out of memory") {
    ThrowUsage("outcome: {} is not allowed; use ran or out of memory", outcome);
  }
  row.attention_speed = json.value("attention_speed", 1.0);
  row.leave_out = json.value("leave_out", std::map<std::string, std::string>{});
  nlohmann::json& request = json.at("request");
  const TempDir folder;
  if (json.contains("config")) {
    request["config"] = json.at("config");
  } else {
    for (const char* key : {"offload_optimizer", "offload_param"}) {
      if (!request.contains(key)) request[key] = "none";
    }
  }
  FindProfileOfTree(&request);
  for (const char* key : {"model", "hw", "config"}) {
    ToFile(&request, key, folder.path(std::string(key) + ".json"));
  }
  Request asked;
  RowFields fields;
  AddEstimateFields(fields, asked);
  fields.Read(request);
  const AskedSettings& batch = asked.settings;
  row.seq_len = batch.seq_len.value();
  try {
    Assumptions assumptions;
    assumptions.logged = true;
    row.resolved = std::make_shared<ResolvedEstimate>(asked, assumptions);
    row.notes = assumptions.notes;
  } catch (const Error& error) {
    row.refused = error.what();
  }
  row.gpu = LoadProfile(asked.hardware.profile).gpu.name;
  row.gpu = row.gpu.substr(row.gpu.find(' ') + 1);
  int64_t sequences = batch.micro_batch.value_or(1) * batch.grad_accum.value_or(1);
  if (row.resolved) {
    const EstimateInputs& inputs = row.resolved->inputs();
    if (inputs.setups.size() != 1) ThrowUsage("request: names {} choices", inputs.setups.size());
    const BatchSpec& of = inputs.setups.front().batch;
    sequences = of.micro_batch * of.grad_accum;
  }
  const nlohmann::json measured = json.value("measured", nlohmann::json::object());
  for (const auto& [key, value] : measured.items()) {
    if (key == "tokens_per_second_of_gpu") {
      row.step_seconds = static_cast<double>(sequences * row.seq_len) / value.get<double>();
    } else if (key == "step_seconds") {
      row.step_seconds = value;
    } else if (key == "allocated_gib") {
      row.allocated_gib = value;
    } else if (key == "reserved_gib") {
      row.reserved_gib = value;
    } else if (key == "device_gib") {
      row.device_gib = value;
    } else {
      ThrowUsage("measured.{}: is not known", key);
    }
  }
  return row;
}

void Scale(std::optional<Figure>* figure, double by) {
  if (*figure) (*figure)->value *= by;
}

// The machine with attention kernels as fast as those of the run.
HardwareProfile MachineOfRow(const PublishedRow& row) {
  HardwareProfile hardware = *row.resolved->inputs().hardware;
  Scale(&hardware.gpu.attention_forward, row.attention_speed);
  Scale(&hardware.gpu.attention_backward, row.attention_speed);
  if (hardware.gpu.attention) {
    for (AttentionRate& rate : hardware.gpu.attention->rows) {
      rate.forward_flops_per_second *= row.attention_speed;
      rate.backward_flops_per_second *= row.attention_speed;
    }
  }
  return hardware;
}

}  // namespace

std::vector<PublishedRow> LoadPublishedRuns(const std::string& file) {
  std::ifstream in(SourcePath(file));
  ZEROPLAN_CHECK(in.good(), "{}", file);
  std::vector<PublishedRow> rows;
  int line = 0;
  for (std::string text; std::getline(in, text);) {
    ++line;
    nlohmann::json json = nlohmann::json::parse(text);
    if (json.contains("about")) continue;
    try {
      rows.push_back(RowOf(std::move(json)));
    } catch (const std::exception& error) {
      ThrowUsage("{}:{}: {}", file, line, error.what());
    }
  }
  return rows;
}

std::optional<ChoiceEstimate> Predict(const PublishedRow& row, std::string* why) {
  *why = row.refused;
  if (!row.resolved) return std::nullopt;
  const HardwareProfile hardware = MachineOfRow(row);
  EstimateInputs inputs = row.resolved->inputs();
  inputs.hardware = &hardware;
  inputs.costs = nullptr;
  try {
    return EstimateChoices(inputs).choices.front();
  } catch (const Error& error) {
    *why = error.what();
    return std::nullopt;
  }
}

}  // namespace zeroplan
