// Plan files: reading throws Error or gives a plan within its limits. Where that is small enough to
// lower, its program is refused as another one, or what a run keeps of it reads back.
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "planner/plan/plan_file.h"
#include "tests/fuzz/need.h"

namespace zeroplan {
namespace {

bool IsSmall(const PlanFile& plan) {
  const ModelSpec& model = plan.model;
  const BatchSpec& batch = plan.setup.batch;
  return model.layers <= 3 && model.hidden <= 256 && model.ffn <= 1024 && model.vocab <= 4096 &&
         model.padded_vocab <= 4096 && batch.world_size <= 8 && batch.micro_batch <= 64 &&
         batch.seq_len <= 256;
}

void Read(std::string_view text) {
  std::optional<PlanFile> plan;
  try {
    plan = ReadPlan(text, "input");
  } catch (const Error& error) {
    Need(error.code() == ExitCode::kUsage && !std::string_view(error.what()).empty());
    return;
  }
  ValidateModelSpec(plan->model, "read");  // an Error here is not caught
  ValidateSetup(plan->setup, "read");
  Need(!plan->step_seconds || std::isfinite(*plan->step_seconds));
  Need(plan->setup.batch.world_size == plan->cluster.gpus);
  if (!IsSmall(*plan)) return;
  std::optional<Program> program;
  try {
    program = CheckedProgram(*plan);
  } catch (const Error& error) {
    Need(error.code() == ExitCode::kUsage);
    return;
  }
  const ProgramRecord record =
      ReadProgramRecord(WriteProgramRecord(*program, plan->lower), "program", 1, "written");
  Need(record.fingerprint == plan->fingerprint && record.setup == plan->setup);
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zeroplan::Read({reinterpret_cast<const char*>(data), size});
  return 0;
}
