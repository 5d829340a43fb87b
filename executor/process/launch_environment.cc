#include "executor/process/launch_environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "core/base/strings.h"
#include "executor/process/handshake.h"

namespace zeroplan {
namespace {

constexpr int kMaxRanks = 1'000'000;
constexpr int kPortsByJob = 2000;  // default ports above kDefaultPort, chosen by a job's id

class Environment {
 public:
  explicit Environment(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  // An empty value counts as none.
  std::string Text(const char* name) const {
    const char* value = lookup_(name);
    return value == nullptr ? "" : value;
  }
  bool Has(const char* name) const { return !Text(name).empty(); }

  std::optional<int> Number(const char* name, int low, int high) const {
    const std::string text = Text(name);
    if (text.empty()) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      ThrowUsage("{}: '{}' in the environment is not allowed; it has to be a number from {} to {}",
                 name, text, low, high);
    }
    return value;
  }
  // `mark` is the variable that shows the launcher.
  int Needed(const char* name, int low, int high, const char* mark, const char* launcher) const {
    const std::optional<int> value = Number(name, low, high);
    if (value) return *value;
    ThrowUsage(
        "{}: not set in the environment, but {} ({}) is; set both as {} does, or unset {} to run "
        "without a launcher",
        name, mark, Text(mark), launcher, mark);
  }

 private:
  const EnvironmentLookup& lookup_;
};

struct Names {
  const char* launcher;
  const char *rank, *world_size, *local_rank, *local_world_size;
};

// The first of the launcher's four variables that is set; nullptr if none is.
const char* Mark(const Environment& environment, const Names& names) {
  for (const char* name :
       {names.rank, names.world_size, names.local_rank, names.local_world_size}) {
    if (environment.Has(name)) return name;
  }
  return nullptr;
}

void CheckPlace(const ProcessPlace& place, const Names& names) {
  const auto refuse = [&](const char* name, int value, const char* limit_name, int limit) {
    ThrowUsage("{}: {} is not allowed with {} {}; ranks count from 0, start the run with {} again",
               name, value, limit_name, limit, names.launcher);
  };
  if (place.rank >= place.world_size) {
    refuse(names.rank, place.rank, names.world_size, place.world_size);
  }
  if (place.local_world_size > place.world_size) {
    ThrowUsage("{}: {} ranks on this host are more than {} {}; start the run with {} again",
               names.local_world_size, place.local_world_size, names.world_size, place.world_size,
               names.launcher);
  }
  if (place.local_rank >= place.local_world_size) {
    refuse(names.local_rank, place.local_rank, names.local_world_size, place.local_world_size);
  }
}

ProcessPlace FourNumbers(const Environment& environment, const Names& names, const char* mark) {
  ProcessPlace place;
  const auto needed = [&](const char* name, int low) {
    return environment.Needed(name, low, kMaxRanks, mark, names.launcher);
  };
  place.rank = needed(names.rank, 0);
  place.world_size = needed(names.world_size, 1);
  place.local_rank = needed(names.local_rank, 0);
  place.local_world_size = needed(names.local_world_size, 1);
  CheckPlace(place, names);
  return place;
}

// The same in all processes of a job; jobs that run at a time rarely share it.
int PortOfJob(const std::string& job) {
  uint64_t digits = 0;
  for (const char c : job) {
    if (c >= '0' && c <= '9') digits = digits * 10 + static_cast<uint64_t>(c - '0');
  }
  return kDefaultPort + static_cast<int>(digits % kPortsByJob);
}

std::optional<int> GivenPort(const Environment& environment) {
  const auto port = environment.Number("ZEROPLAN_PORT", 1, 65535);
  return port ? port : environment.Number("MASTER_PORT", 1, 65535);
}

int Port(const Environment& environment, const std::string& job) {
  const std::optional<int> given = GivenPort(environment);
  return given ? *given : PortOfJob(job);
}

void NeedAddress(const ProcessPlace& place, const char* name, const char* launcher) {
  if (!place.address.empty()) return;
  ThrowUsage(
      "{}: not set in the environment; {} ranks started by {} need it to find rank 0: set it to "
      "the host name or address of rank 0's host",
      name, place.world_size, launcher);
}

constexpr Names kOwn = {"zeroplan", "ZEROPLAN_RANK", "ZEROPLAN_WORLD_SIZE", "ZEROPLAN_LOCAL_RANK",
                        "ZEROPLAN_LOCAL_WORLD_SIZE"};
constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                          "SLURM_NTASKS_PER_NODE"};

ProcessPlace OwnPlace(const Environment& environment, const char* mark) {
  ProcessPlace place = FourNumbers(environment, kOwn, mark);
  if (place.world_size == 1) return place;
  place.address = environment.Text("ZEROPLAN_ADDRESS");
  NeedAddress(place, "ZEROPLAN_ADDRESS", kOwn.launcher);
  place.port = Port(environment, "");
  place.run_token = place.secret = environment.Text("ZEROPLAN_RUN_TOKEN");
  place.listen_fd =
      place.rank == 0 ? environment.Number("ZEROPLAN_LISTEN_FD", 0, 1 << 20).value_or(-1) : -1;
  return place;
}

ProcessPlace TorchrunPlace(const Environment& environment, const char* mark) {
  ProcessPlace place = FourNumbers(environment, kTorchrun, mark);
  if (place.world_size == 1) return place;
  place.address = environment.Text("MASTER_ADDR");
  NeedAddress(place, "MASTER_ADDR", kTorchrun.launcher);
  place.run_token = environment.Text("TORCHELASTIC_RUN_ID");
  place.port = Port(environment, "");
  // The agent's store listens at MASTER_PORT for as long as the run lasts.
  if (!environment.Has("ZEROPLAN_PORT") && environment.Has("MASTER_PORT") &&
      environment.Text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    place.port += place.port < 65535 ? 1 : -1;
  }
  return place;
}

// "1234.0;tcp://10.0.0.1,192.168.0.1:4567;tcp6://[fd00::2]:48653" and, as older versions write it,
// "1234.0;tcp://10.0.0.1:4567;tcp://192.168.0.1:4567" -> "10.0.0.1,192.168.0.1,fd00::2" and
// "10.0.0.1,192.168.0.1"; "" if there is no such address.
std::string HostsOfUri(std::string_view uri) {
  std::string hosts;
  for (std::string_view part : Split(uri, ';')) {
    for (const std::string_view scheme : {"tcp://", "tcp4://", "tcp6://"}) {
      if (!part.starts_with(scheme)) continue;
      part.remove_prefix(scheme.size());
      part = part.substr(0, part.rfind(':'));
      if (!part.empty()) hosts += (hosts.empty() ? "" : ",") + std::string(part);
      break;
    }
  }
  std::erase_if(hosts, [](char c) { return c == '[' || c == ']'; });
  return hosts;
}

// Daemons of one job have uris that begin with JOB.NUMBER; mpirun's own number is 0.
std::string_view NameInUri(std::string_view uri) { return uri.substr(0, uri.find(';')); }

// From "prterun-HOST-PID@JOB" (Open MPI 5), mpirun's host; "" from others.
std::string HostOfNamespace(std::string_view name) {
  constexpr std::string_view kPrefix = "prterun-";
  const size_t dash = name.rfind('-');
  if (!name.starts_with(kPrefix) || dash == std::string_view::npos || dash < kPrefix.size()) {
    return "";
  }
  return std::string(name.substr(kPrefix.size(), dash - kPrefix.size()));
}

// Where rank 0 listens, as far as Open MPI says: mpirun's host. No rank is told of rank 0's, but
// rank 0 can see that it is on another one.
std::string AddressOfMpirun(const Environment& environment, const ProcessPlace& place) {
  const std::string mpirun = environment.Text("OMPI_MCA_orte_hnp_uri");
  const std::string daemon = environment.Text("OMPI_MCA_orte_local_daemon_uri");
  const std::string host = HostOfNamespace(environment.Text("PMIX_NAMESPACE"));
  const std::string own = environment.Text("PMIX_HOSTNAME");
  const bool elsewhere = mpirun.empty() ? !own.empty() && !host.empty() && own != host
                                        : !daemon.empty() && NameInUri(daemon) != NameInUri(mpirun);
  if (place.rank == 0 && elsewhere) {
    ThrowUsage(
        "MASTER_ADDR: not set in the environment, and rank 0 is not on mpirun's host, so that the "
        "others cannot find it; give its host to all: mpirun -x MASTER_ADDR={}",
        own.empty() ? "HOST" : own);
  }
  return mpirun.empty() ? host : HostsOfUri(mpirun);
}

ProcessPlace OpenMpiPlace(const Environment& environment, const char* mark) {
  ProcessPlace place = FourNumbers(environment, kOpenMpi, mark);
  if (place.world_size == 1) return place;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (place.run_token.empty()) place.run_token = environment.Text(name);
  }
  // "3a07553f5dca58b5-21784eac1fc85294": 128 random bits, the same in all processes of a job.
  place.secret = environment.Text("OMPI_MCA_orte_precondition_transports");
  place.address = environment.Text("MASTER_ADDR");
  if (place.address.empty() && place.local_world_size == place.world_size) {
    place.address = "127.0.0.1";
  }
  if (place.address.empty()) place.address = AddressOfMpirun(environment, place);
  NeedAddress(place, "MASTER_ADDR", kOpenMpi.launcher);
  place.port = Port(environment, place.run_token);
  return place;
}

// A batch script has SLURM_PROCID and SLURM_NTASKS too, but only srun starts that many of it.
bool InSlurmStep(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID"}) {
    if (environment.Has(name)) return environment.Has("SLURM_PROCID");
  }
  return false;
}

int SlurmLocalTasks(const Environment& environment, int world_size) {
  const int node = environment.Number("SLURM_NODEID", 0, kMaxRanks).value_or(0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::string list = environment.Text(name);
    if (list.empty()) continue;
    if (const auto tasks = SlurmTasksOfNode(list, node); tasks && *tasks > 0) return *tasks;
    ThrowUsage(
        "{}: '{}' in the environment says nothing of node {}; unset it, and set {} to the "
        "tasks of a node",
        name, list, node, kSlurm.local_world_size);
  }
  if (const auto tasks = environment.Number(kSlurm.local_world_size, 1, kMaxRanks)) return *tasks;
  const auto nodes = environment.Number("SLURM_NNODES", 1, kMaxRanks);
  if (!nodes || *nodes == 1) return world_size;
  ThrowUsage(
      "{}: not set in the environment, and the run has {} nodes; use srun "
      "--ntasks-per-node=COUNT",
      kSlurm.local_world_size, *nodes);
}

ProcessPlace SlurmPlace(const Environment& environment) {
  Names names = kSlurm;
  if (environment.Has("SLURM_STEP_NUM_TASKS")) names.world_size = "SLURM_STEP_NUM_TASKS";
  ProcessPlace place;
  const auto needed = [&](const char* name, int low) {
    return environment.Needed(name, low, kMaxRanks, names.rank, names.launcher);
  };
  place.rank = needed(names.rank, 0);
  place.world_size = needed(names.world_size, 1);
  if (place.world_size == 1) return place;
  place.local_rank = needed(names.local_rank, 0);
  place.local_world_size = SlurmLocalTasks(environment, place.world_size);
  CheckPlace(place, names);
  const std::string job = environment.Text("SLURM_JOB_ID");
  const std::string step =
      environment.Text(environment.Has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID");
  if (!job.empty()) place.run_token = job + "." + step;
  place.address = environment.Text("MASTER_ADDR");
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const std::string list = environment.Text(name);
    if (!place.address.empty() || list.empty()) continue;
    place.address = FirstSlurmHost(list);
    if (place.address.empty()) {
      ThrowUsage(
          "{}: '{}' in the environment is no list of hosts; set MASTER_ADDR to rank 0's host", name,
          list);
    }
  }
  if (place.address.empty() && place.local_world_size == place.world_size) {
    place.address = "127.0.0.1";
  }
  NeedAddress(place, "MASTER_ADDR", kSlurm.launcher);
  place.port = Port(environment, job);
  return place;
}

}  // namespace

std::optional<int> PortFromEnvironment(const EnvironmentLookup& lookup) {
  return GivenPort(Environment(lookup));
}

std::optional<ProcessPlace> PlaceFromEnvironment(const EnvironmentLookup& lookup) {
  const Environment environment(lookup);
  ProcessPlace place;
  if (const char* mark = Mark(environment, kOwn)) {
    place = OwnPlace(environment, mark);
  } else if (const char* torchrun = Mark(environment, kTorchrun)) {
    place = TorchrunPlace(environment, torchrun);
  } else if (const char* mpirun = Mark(environment, kOpenMpi)) {
    place = OpenMpiPlace(environment, mpirun);
  } else if (InSlurmStep(environment)) {
    place = SlurmPlace(environment);
  }
  if (place.world_size == 1) return std::nullopt;
  if (environment.Has("ZEROPLAN_SECRET_FILE")) {
    place.secret = ReadSecretFile(environment.Text("ZEROPLAN_SECRET_FILE"));
  }
  if (place.secret.size() < kMinSecret) place.secret.clear();  // to be guessed
  return place;
}

namespace {

// Takes a number off the front of `text`.
std::optional<int> TakeNumber(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool Take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::string FirstSlurmHost(std::string_view node_list) {
  std::string host;
  for (size_t at = 0; at < node_list.size(); ++at) {
    const char c = node_list[at];
    if (c == ',') break;
    if (c == ']') return "";
    if (c != '[') {
      host += c;
      continue;
    }
    const size_t close = node_list.find(']', at);
    if (close == std::string_view::npos) return "";
    const std::string_view range = node_list.substr(at + 1, close - at - 1);
    const std::string_view first = range.substr(0, range.find_first_of(",-"));
    if (first.empty()) return "";
    host += first;  // as written: leading zeros belong to the name
    at = close;
  }
  return host;
}

std::optional<int> SlurmTasksOfNode(std::string_view tasks_per_node, int node) {
  int64_t nodes = 0;
  while (!tasks_per_node.empty()) {
    const std::optional<int> tasks = TakeNumber(tasks_per_node);
    if (!tasks) return std::nullopt;
    int repeat = 1;
    if (Take(tasks_per_node, "(x")) {
      const std::optional<int> times = TakeNumber(tasks_per_node);
      if (!times || !Take(tasks_per_node, ")")) return std::nullopt;
      repeat = *times;
    }
    nodes += repeat;
    if (node < nodes) return tasks;
    if (!tasks_per_node.empty() && !Take(tasks_per_node, ",")) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace zeroplan
