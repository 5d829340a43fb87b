#include "planner/plan/choice_json.h"

namespace zeroplan {

nlohmann::ordered_json GpuBytesJson(const Footprint& footprint) {
  nlohmann::ordered_json json;
  for (const NamedBytes& part : GpuClasses(footprint)) json[std::string(part.name)] = part.bytes;
  json["total"] = footprint.gpu_total();
  return json;
}

nlohmann::ordered_json HostBytesJson(const Footprint& footprint) {
  const HostBytes& host = footprint.host;
  return {{"pinned", host.pinned}, {"pageable", host.pageable}, {"total", host.total()}};
}

nlohmann::ordered_json StepSecondsJson(const TimeEstimate& time) {
  return {{"compute", Nullable(time.compute_seconds)},
          {"exposed_comm", Nullable(time.exposed_comm_seconds)},
          {"exposed_offload", Nullable(time.exposed_offload_seconds)},
          {"optimizer", Nullable(time.optimizer_seconds)},
          {"total", Nullable(time.total_seconds)}};
}

nlohmann::ordered_json StepFiguresJson(const ChoiceEstimate& choice) {
  return {{"nvme_bytes", choice.footprint.nvme_bytes},
          {"comm_bytes_per_step", choice.traffic.collective_bytes},
          {"pcie_bytes_per_step", choice.traffic.pcie_bytes()},
          {"step_seconds", StepSecondsJson(choice.time)},
          {"tokens_per_second", Nullable(choice.time.tokens_per_second)},
          {"mfu", Nullable(choice.time.mfu)}};
}

}  // namespace zeroplan
