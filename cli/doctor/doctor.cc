// zeroplan doctor: what this machine has and lacks for planning and training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/hosts.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "core/base/version.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"

namespace zeroplan {

namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan doctor
  zeroplan doctor --backend cuda --gpus 2 && zeroplan train --gpus 2 ...
  zeroplan doctor --dir /scratch --format json
  zeroplan doctor --plan plan.json
  zeroplan doctor --hosts node1,node2
Each line says ok, costs (it works, with a loss), missing, or not known; then what follows from it and
what mends it. It takes a few seconds at most, needs no GPU and no root, and changes nothing; a file of up
to 268 MB is written to DIR and removed.
With --hosts it looks at the network between hosts instead, and says which NCCL_* variables to set.
Exit codes: 0 training is possible here, as asked for by --backend, --gpus and --dir, or over --hosts; 4 it
is not; 2 bad usage.)";

struct DoctorCommand {
  std::string dir, plan;
  Given<BackendChoice> backend;
  Given<int> gpus;
  Given<OutputFormat> format;
  std::string hosts, hostfile, ssh, remote_path;
  Given<std::vector<int>> ports;
  Given<int> wait;
  bool explain = false;

  bool asks_hosts() const { return !hosts.empty() || !hostfile.empty(); }
};

// What was asked for and is not possible; "" if all is.
std::string Impossible(const DoctorCommand& command, const MachineFacts& facts) {
  const Readiness ready = ReadinessOf(facts);
  const bool cuda_wanted = command.gpus || command.backend == BackendChoice::kCuda;
  if (!ready.cpu()) return "training is not possible here: " + ready.why_not_cpu;
  if (cuda_wanted && !ready.cuda()) {
    return fmt::format("{}: training on GPUs is not possible here: {}",
                       command.gpus ? "--gpus " + command.gpus.text : "--backend cuda",
                       ready.why_not_cuda);
  }
  const LibraryFacts& libraries = facts.executor.libraries;
  if (command.gpus && *command.gpus > 1 && *command.gpus <= libraries.gpus && libraries.nccl == 0) {
    return fmt::format("--gpus: {} need NCCL: {}; {}", *command.gpus, libraries.why_no_nccl,
                       InstallAdvice(CudaLibrary::kNccl, libraries.runtime));
  }
  if (command.gpus && *command.gpus > ready.gpus) {
    return fmt::format("--gpus: {} is more than the {} GPU{} that CUDA can use here", *command.gpus,
                       ready.gpus, ready.gpus == 1 ? "" : "s");
  }
  const bool refused = facts.disk.state == DiskFacts::State::kRefused ||
                       facts.disk.state == DiskFacts::State::kFailed;
  if (!command.dir.empty() && refused) {
    return facts.disk.why.starts_with("--dir") ? facts.disk.why : "--dir: " + facts.disk.why;
  }
  return "";
}

PinnedPlan PinnedOf(const PlanFile& plan) {
  return {PrintableText(plan.source, 300), plan.arena_bytes[static_cast<size_t>(Space::kPinned)],
          std::min(plan.cluster.gpus, plan.cluster.gpus_per_node),
          plan.lower.backend == Backend::kCuda};
}

constexpr const char* kDoctorSsh = "ssh -o BatchMode=yes -o ConnectTimeout=20";

std::vector<int> PortList(const std::string& text, std::string_view name) {
  std::vector<int> ports;
  if (text == "none") return ports;
  for (const std::string_view part : SplitList(text)) {
    ports.push_back(WholeIn<int>(1, 65535)(std::string(part), name));
  }
  return ports;
}

// The first thing that is in the way of a run over the hosts; "" if nothing is.
std::string ImpossibleOverHosts(const HostsFacts& facts) {
  for (const Finding& finding : HostsFindings(facts)) {
    if (finding.state == CheckState::kMissing) return "--hosts: " + finding.fact;
  }
  return "";
}

void RunDoctorOnHosts(const DoctorCommand& command) {
  for (const auto& [name, given] : {std::pair("--gpus", bool(command.gpus)),
                                    {"--backend", bool(command.backend)},
                                    {"--dir", !command.dir.empty()},
                                    {"--plan", !command.plan.empty()}}) {
    if (given) ThrowUsage("{}: has no meaning with --hosts; leave one of them out", name);
  }
  HostsQuery query;
  query.hosts = command.hosts.empty() ? HostNamesInFile(command.hostfile)
                                      : HostNames(command.hosts, "--hosts");
  std::istringstream words(command.ssh.empty() ? kDoctorSsh : command.ssh);
  for (std::string word; words >> word;) query.remote_shell.push_back(word);
  if (query.remote_shell.empty()) ThrowUsage("--ssh: names no command; use for example ssh");
  query.program = command.remote_path.empty()
                      ? std::filesystem::read_symlink("/proc/self/exe").string()
                      : command.remote_path;
  query.ports = command.ports ? *command.ports
                              : std::vector<int>(std::begin(kTriedPorts), std::end(kTriedPorts));
  if (command.wait) query.wait_seconds = *command.wait;
  const HostsFacts facts = QueryHosts(query);
  if (command.format == OutputFormat::kJson) {
    WriteOutput("", HostsJson(facts));
  } else {
    WriteReport("", HostsText(facts, command.explain));
  }
  const std::string impossible = ImpossibleOverHosts(facts);
  if (!impossible.empty()) throw Error(ExitCode::kRuntime, impossible);
}

void RunDoctor(const DoctorCommand& command) {
  if (command.asks_hosts()) return RunDoctorOnHosts(command);
  for (const auto& [name, given] : {std::pair("--ssh", !command.ssh.empty()),
                                    {"--remote-path", !command.remote_path.empty()},
                                    {"--ports", bool(command.ports)},
                                    {"--wait", bool(command.wait)}}) {
    if (given) ThrowUsage("{}: there are no --hosts to reach by it; add them", name);
  }
  if (command.gpus && command.backend == BackendChoice::kCpu) {
    ThrowUsage("--gpus: {} has no meaning with --backend cpu; leave one out", command.gpus.text);
  }
  std::optional<PinnedPlan> plan;
  if (!command.plan.empty()) plan = PinnedOf(ReadPlan(ReadTextFile(command.plan), command.plan));
  const LongWork work("Looking at this machine", /*at_once=*/true);
  const MachineFacts facts = QueryMachine(command.dir.empty() ? "." : command.dir, std::move(plan));
  const bool json = command.format == OutputFormat::kJson;
  if (json) {
    WriteOutput("", DoctorJson(facts));
  } else {
    WriteReport("", DoctorText(facts, command.explain));
  }
  const std::string impossible = Impossible(command, facts);
  if (!impossible.empty()) throw Error(ExitCode::kRuntime, impossible);
}

}  // namespace

void RegisterDoctor(Command& app) {
  auto options = std::make_shared<DoctorCommand>();
  Command command =
      app.Add("doctor", "What this machine has and lacks for training, and what that costs");
  const char* asked = "What must be possible, else the exit code is 4";
  command.Value({asked, "--backend", "auto|cpu|cuda", "Training on it (default: auto, on any)"},
                options->backend, WordIn<BackendChoice>({"cpu", "cuda", "auto"}));
  command.Value({asked, "--gpus", "COUNT", "Training on this many GPUs"}, options->gpus,
                WholeIn<int>(1, kMaxGpus));
  command.Text({asked, "--dir", "DIR",
                "Saving and swapping there: the folder whose disk is looked at (default: the "
                "present one, which need not be writable)"},
               options->dir);
  command.Text(
      {"What it is for", "--plan", "PLAN",
       "A plan (plan --plan-out): whether the host memory that it pins is there and can be "
       "locked"},
      options->plan);
  const char* hosts = "The network between hosts, in place of this machine";
  command.Text({hosts,
                "--hosts",
                "HOST,...",
                "Whether these hosts, reached by ssh, reach one another: ports, interfaces, "
                "InfiniBand, speed, versions",
                {"--hostfile"}},
               options->hosts);
  command.Text(
      {hosts, "--hostfile", "FILE", "Take the hosts from a file, the first word of each line"},
      options->hostfile);
  command.Text({hosts, "--ssh", "COMMAND",
                "Remote shell, to which host and command are added (default: ssh -o BatchMode=yes "
                "-o ConnectTimeout=20)"},
               options->ssh);
  command.Text({hosts, "--remote-path", "PROGRAM",
                "Where zeroplan lies on the hosts (default: where this one lies here)"},
               options->remote_path);
  command.Value({hosts, "--ports", "PORT,...|none",
                 "TCP ports to try besides a free one (default: 29500,29610, where ranks meet)"},
                options->ports, PortList);
  command.Value({hosts, "--wait", "SECONDS", "How long a port may take to answer (default: 3)"},
                options->wait, WholeIn<int>(1, 86'400));
  AddFormatOption(command, "schema zeroplan.doctor/1; with --hosts zeroplan.doctor-hosts/1",
                  options->format);
  command.Flag("Output", "--explain", "Also print what is in order", options->explain);
  command.Progress("Output");
  command.Footer(kFooter);
  command.Run([options] { RunDoctor(*options); });
  app.AddHidden(kHostAgentCommand, "The part of doctor --hosts on each host").Run(RunHostProbe);
}

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
  json["cublaslt"] = KnownOrNull(libraries.cublaslt);
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
          {"wsl", host.wsl},
          {"shared_memory_bytes", OrNull(host.shared_bytes)},
          {"shared_memory_free_bytes", OrNull(host.shared_free_bytes)},
          {"nvidia_devices", host.nvidia_devices}};
}

Json PinnedJson(const std::optional<PinnedFacts>& pinned) {
  if (!pinned) return nullptr;
  return {{"asked_bytes", pinned->asked_bytes},
          {"locked_bytes", pinned->locked_bytes},
          {"refusal", OrNull(pinned->refusal)}};
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

std::string FindingsText(const std::vector<FindingGroup>& groups, bool all) {
  constexpr size_t kIndent = 12;
  std::string text;
  size_t fine = 0;
  for (const FindingGroup& group : groups) {
    if (all) text += fmt::format("\n{}\n", group.title);
    for (const Finding& finding : group.findings) {
      const bool unknown = finding.state == CheckState::kUnknown && finding.cost.empty();
      if (!all && (finding.state == CheckState::kOk || unknown)) {
        ++fine;
        continue;
      }
      const char* state =
          finding.state == CheckState::kUnknown ? "not known" : CheckStateName(finding.state);
      std::string name = finding.check;
      for (char& c : name) c = c == '_' ? ' ' : c;
      text += Paragraph(fmt::format("  {:<9} {}: {}", state, name, finding.fact), kIndent);
      const std::string more(kIndent, ' ');
      if (!finding.cost.empty()) text += Paragraph(more + "so: " + finding.cost, kIndent + 4);
      if (!finding.fix.empty()) text += Paragraph(more + "fix: " + finding.fix, kIndent + 5);
    }
  }
  if (fine > 0) {
    text += fmt::format("{} check{} found nothing wrong; --explain lists them.\n", fine,
                        fine == 1 ? "" : "s");
  }
  return text;
}

std::string DoctorText(const MachineFacts& facts, bool all) {
  const Readiness ready = ReadinessOf(facts);
  std::string text = Paragraph(ReadinessText(ready), 2) + FindingsText(AllFindings(facts), all);
  if (all) return text;
  // A machine with GPUs and no profile of its own is measured first.
  const bool measures = ready.gpus > 0 && facts.profile.state != ProfileFacts::State::kUsed;
  return text + (measures ? "Next: zeroplan hw measure\n" : "Next: zeroplan plan MODEL\n");
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
                     {"pinned", PinnedJson(facts.pinned)},
                     {"disk", DiskJson(facts.disk)},
                     {"profile", ProfileJson(facts.profile)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace zeroplan
