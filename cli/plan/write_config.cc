#include "cli/plan/write_config.h"

#include <fmt/format.h>

#include "cli/common/output.h"
#include "cli/plan/config_for.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/config/kept_keys.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {
namespace {

WrittenConfig Formatted(const ConfigSource& source) {
  FormatRequest request = source.request;
  JsonNode came_in;
  if (request.runtime->reads_deepspeed_config() && !source.came_in.empty()) {
    came_in = ParseJsonText(ReadTextFile(source.came_in), source.came_in);
    request.incoming = &came_in;
  }
  return WriteFormat(request);
}

void WriteFor(const ConfigSource& source, bool json) {
  const WrittenConfig written = Formatted(source);
  for (const WrittenFile& file : written.files) WriteOutput(file.path, file.text);
  const std::string text = PasteText(source.request.format, written);
  if (json) {
    LogInfo("{}", text);
  } else {
    WriteOutput("", text);
  }
}

}  // namespace

ConfigSource SourceOf(const PlanOptions& options, const Plan& plan) {
  // zeroplan's own choices are written as DeepSpeed's.
  const Runtime& runtime = plan.runtime->has_programs() ? DeepSpeedRuntime() : *plan.runtime;
  ConfigSource source;
  source.request = {options.format(),
                    &runtime,
                    std::string(plan.runtime->version()),
                    plan.model,
                    plan.setup,
                    options.common.runtime.torch_compile(),
                    plan.cluster.shape(),
                    options.deepspeed_file,
                    nullptr};
  source.came_in = options.common.config;
  source.has_for = options.config_for.has_value();
  return source;
}

std::string ConfigText(const ConfigSource& source) {
  const FormatRequest& request = source.request;
  // The last of several files is DeepSpeed's.
  if (request.runtime->reads_deepspeed_config()) return Formatted(source).files.back().text;
  return NameRuntime(request.runtime->ConfigJson(request.setup, request.model.layers),
                     request.runtime_name, CompileName(request.compile));
}

void WriteConfigFile(const ConfigSource& source, bool json) {
  if (source.has_for) {
    WriteFor(source, json);
    return;
  }
  const FormatRequest& request = source.request;
  WriteOutput(request.file, ConfigText(source));
  std::string by_code;
  if (request.setup.recompute.kind == RecomputeKind::kFull) {
    by_code = "recompute of every layer (torch.utils.checkpoint)";
  }
  if (request.compile.layers) {
    by_code += fmt::format("{}torch.compile of every layer{}", by_code.empty() ? "" : ", ",
                           request.compile.loss ? " and of the loss" : "");
  }
  if (!by_code.empty()) {
    LogInfo("--out {}: the model's code for {} has to switch on itself: {}", request.file,
            request.runtime->name(), by_code);
  }
}

}  // namespace zeroplan
