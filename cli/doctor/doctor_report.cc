#include "cli/doctor/doctor_report.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/version.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

template <typename Value>
Json OrNull(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
// 0 stands for what is not known.
template <typename Number>
Json KnownOrNull(Number number) {
  return number == 0 ? Json(nullptr) : Json(number);
}

Json ExecutorJson(const ExecutorFacts& executor) {
  Json json = {{"path", executor.path},
               {"answers", executor.state == ExecutorFacts::State::kAnswers},
               {"why_not", OrNull(executor.why)}};
  const LibraryFacts& libraries = executor.libraries;
  json["version"] = OrNull(libraries.version);
  json["cuda"] = libraries.cuda;
  json["architectures"] = OrNull(libraries.architectures);
  json["cuda_runtime"] = KnownOrNull(libraries.runtime);
  json["cuda_driver"] = KnownOrNull(libraries.driver);
  json["cuda_gpus"] = libraries.gpus;
  json["nccl"] = KnownOrNull(libraries.nccl);
  json["nccl_at_build"] = KnownOrNull(libraries.nccl_at_build);
  json["cudnn"] = KnownOrNull(libraries.cudnn);
  json["cudnn_at_build"] = KnownOrNull(libraries.cudnn_at_build);
  return json;
}

Json GpuJson(const GpuState& gpu) {
  Json processes = nullptr;
  if (gpu.processes) {
    processes = Json::array();
    for (const GpuProcess& process : *gpu.processes) {
      processes.push_back({{"pid", process.pid}, {"bytes", OrNull(process.bytes)}});
    }
  }
  constexpr const char* kModes[] = {"default", "exclusive_thread", "prohibited",
                                    "exclusive_process"};
  Json capability = nullptr;
  if (gpu.compute_major && gpu.compute_minor) {
    capability = fmt::format("{}.{}", *gpu.compute_major, *gpu.compute_minor);
  }
  return {{"index", gpu.index},
          {"visible", gpu.visible},
          {"name", gpu.name},
          {"bus", OrNull(gpu.bus)},
          {"memory_bytes", gpu.memory_bytes},
          {"used_bytes", OrNull(gpu.used_bytes)},
          {"compute_capability", capability},
          {"ecc", OrNull(gpu.ecc)},
          {"mig", OrNull(gpu.mig)},
          {"power_limit_watts", OrNull(gpu.limit_watts)},
          {"default_power_limit_watts", OrNull(gpu.default_limit_watts)},
          {"pcie_generation", OrNull(gpu.pcie_generation)},
          {"most_pcie_generation", OrNull(gpu.most_pcie_generation)},
          {"pcie_width", OrNull(gpu.pcie_width)},
          {"most_pcie_width", OrNull(gpu.most_pcie_width)},
          {"performance_state", OrNull(gpu.performance_state)},
          {"compute_mode",
           gpu.compute_mode ? Json(kModes[static_cast<size_t>(*gpu.compute_mode)]) : Json(nullptr)},
          {"processes", std::move(processes)},
          {"nvlinks", gpu.links},
          {"active_nvlinks", gpu.active_links},
          {"numa_node", OrNull(gpu.numa_node)}};
}

Json HostJson(const HostState& host) {
  Json nodes = Json::array();
  for (const NumaNode& node : host.nodes) {
    nodes.push_back({{"node", node.id},
                     {"processors", node.processors},
                     {"memory_bytes", KnownOrNull(node.memory_bytes)},
                     {"used", node.used}});
  }
  const bool limited =
      host.locked_limit && *host.locked_limit != std::numeric_limits<uint64_t>::max();
  return {{"processors", KnownOrNull(host.online)},
          {"allowed_processors", KnownOrNull(host.allowed)},
          {"processor_quota", host.quota ? Json(host.quota->processors) : Json(nullptr)},
          {"numa_nodes", std::move(nodes)},
          {"memory_bytes", KnownOrNull(host.memory_bytes)},
          {"available_bytes", KnownOrNull(host.available_bytes)},
          {"group_limit_bytes", host.group ? Json(host.group->limit_bytes) : Json(nullptr)},
          {"group_available_bytes", host.group ? Json(host.group->available_bytes) : Json(nullptr)},
          {"transparent_huge_pages", OrNull(host.transparent_huge_pages)},
          {"huge_pages", host.huge_pages},
          {"free_huge_pages", host.free_huge_pages},
          {"huge_page_bytes", KnownOrNull(host.huge_page_bytes)},
          {"locked_limit_bytes", limited ? Json(*host.locked_limit) : Json(nullptr)},
          {"may_pass_locked_limit", host.may_pass_locked_limit},
          {"shared_memory_bytes", OrNull(host.shared_bytes)},
          {"shared_memory_free_bytes", OrNull(host.shared_free_bytes)},
          {"nvidia_devices", host.nvidia_devices}};
}

Json DiskJson(const DiskFacts& disk) {
  const auto& rates = disk.rates;
  return {{"folder", disk.folder},
          {"free_bytes", KnownOrNull(disk.free_bytes)},
          {"in_memory", disk.state == DiskFacts::State::kInMemory},
          {"write_bytes_per_second", rates ? Json(std::llround(rates->write)) : Json(nullptr)},
          {"read_bytes_per_second", rates ? Json(std::llround(rates->read)) : Json(nullptr)},
          {"o_direct", rates ? Json(rates->direct) : Json(nullptr)}};
}

Json ProfileJson(const ProfileFacts& profile) {
  using State = ProfileFacts::State;
  const char* state = profile.state == State::kUsed     ? "used"
                      : profile.state == State::kStale  ? "stale"
                      : profile.state == State::kAbsent ? "absent"
                                                        : "no_gpus";
  return {{"state", state},
          {"file", OrNull(profile.file)},
          {"measured", OrNull(profile.when)},
          {"built_in", OrNull(profile.built_in)}};
}

}  // namespace

std::string ReadinessText(const Readiness& ready) {
  if (ready.cuda()) {
    return fmt::format("Training is possible here on {} GPU{}, and on the CPU backend.", ready.gpus,
                       ready.gpus == 1 ? "" : "s");
  }
  if (ready.cpu()) {
    return fmt::format("Training is possible here on the CPU backend alone: {}.",
                       ready.why_not_cuda);
  }
  return fmt::format("Training is not possible here: {}. Planning is.", ready.why_not_cpu);
}

std::string DoctorText(const MachineFacts& facts) {
  constexpr size_t kIndent = 12;
  std::string text = Wrap(ReadinessText(ReadinessOf(facts)), 2);
  for (const FindingGroup& group : AllFindings(facts)) {
    text += fmt::format("\n{}\n", group.title);
    for (const Finding& finding : group.findings) {
      const char* state =
          finding.state == CheckState::kUnknown ? "not known" : CheckStateName(finding.state);
      std::string name = finding.check;
      for (char& c : name) c = c == '_' ? ' ' : c;
      text += Wrap(fmt::format("  {:<9} {}: {}", state, name, finding.fact), kIndent);
      const std::string more(kIndent, ' ');
      if (!finding.cost.empty()) text += Wrap(more + "so: " + finding.cost, kIndent + 4);
      if (!finding.fix.empty()) text += Wrap(more + "fix: " + finding.fix, kIndent + 5);
    }
  }
  return text;
}

std::string DoctorJson(const MachineFacts& facts) {
  const Readiness ready = ReadinessOf(facts);
  Json checks = Json::array();
  for (const FindingGroup& group : AllFindings(facts)) {
    for (const Finding& finding : group.findings) {
      checks.push_back({{"check", finding.check},
                        {"state", CheckStateName(finding.state)},
                        {"fact", finding.fact},
                        {"cost", OrNull(finding.cost)},
                        {"fix", OrNull(finding.fix)}});
    }
  }
  Json gpus = Json::array();
  for (const GpuState& gpu : facts.gpus.gpus) gpus.push_back(GpuJson(gpu));
  const Json json = {{"schema", "zeroplan.doctor/1"},
                     {"zeroplan", kVersion},
                     {"training",
                      {{"cpu", ready.cpu()},
                       {"cuda", ready.cuda()},
                       {"gpus", ready.gpus},
                       {"why_not_cpu", OrNull(ready.why_not_cpu)},
                       {"why_not_cuda", OrNull(ready.why_not_cuda)}}},
                     {"checks", std::move(checks)},
                     {"executor", ExecutorJson(facts.executor)},
                     {"driver", OrNull(facts.gpus.driver)},
                     {"gpus", std::move(gpus)},
                     {"host", HostJson(facts.host)},
                     {"disk", DiskJson(facts.disk)},
                     {"profile", ProfileJson(facts.profile)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace zeroplan
