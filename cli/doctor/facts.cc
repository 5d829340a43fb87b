#include "cli/doctor/facts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>
#include <vector>

#include "cli/common/executor_commands.h"
#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "machine/detect.h"

namespace zeroplan {

namespace {

constexpr double kExecutorSeconds = 5;  // loading the libraries and starting the driver
constexpr double kDiskSeconds = 3;      // in all
constexpr double kDriverSeconds = 5;
constexpr double kPinSeconds = 2;  // of page-locking itself, within kExecutorSeconds

constexpr double kDiskPassSeconds = 0.5;
constexpr uint64_t kDiskStep = uint64_t{32} << 20;
constexpr uint64_t kDiskBytes = 8 * kDiskStep;

}  // namespace

double DoctorLimit(double seconds) {
  const char* said = std::getenv("ZEROPLAN_DOCTOR_SECONDS");
  const double given = said == nullptr ? 0 : std::atof(said);
  return given > 0 ? given : seconds;
}

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "";
  const size_t begin = text.find_last_of('\n', end);
  const size_t from = begin == std::string::npos ? 0 : begin + 1;
  return PrintableText(std::string_view(text).substr(from, end + 1 - from), 300);
}

namespace {

ChildResult RunExecutor(const std::string& path, std::vector<std::string> arguments) {
  return RunLimited(DoctorLimit(kExecutorSeconds), [&]() -> int {
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    execv(path.c_str(), words.data());
    std::fputs(std::strerror(errno), stderr);
    return 127;
  });
}

// Where a GPU is there to lock memory for.
std::optional<PinnedFacts> QueryPinned(const ExecutorFacts& executor,
                                       const std::optional<PinnedPlan>& plan) {
  if (executor.libraries.gpus == 0 || (plan && (!plan->on_gpus || plan->rank_bytes == 0))) {
    return std::nullopt;
  }
  const ChildResult child =
      RunExecutor(executor.path,
                  {kExecutorProgram, kTryPinnedMemory,
                   std::to_string(plan ? plan->host_bytes() : 0), fmt::format("{}", kPinSeconds)});
  if (!child.in_time || child.exit_code != 0) return std::nullopt;
  return PinnedFromJson(child.out);
}

}  // namespace

ExecutorFacts QueryExecutor() {
  ExecutorFacts facts;
  facts.path = ExecutorPath();
  if (access(facts.path.c_str(), F_OK) != 0) return facts;
  const ChildResult child = RunExecutor(facts.path, {kExecutorProgram, kPrintLibraries});
  if (!child.in_time) {
    facts.state = ExecutorFacts::State::kSilent;
    facts.why = fmt::format("it did not answer within {:.0f} s", DoctorLimit(kExecutorSeconds));
    return facts;
  }
  if (const auto libraries = LibrariesFromJson(child.out); libraries && child.exit_code == 0) {
    facts.state = ExecutorFacts::State::kAnswers;
    facts.libraries = *libraries;
    return facts;
  }
  facts.state = ExecutorFacts::State::kFails;
  facts.why = LastLine(child.err);
  if (facts.why.empty() && child.signal != 0) {
    facts.why = fmt::format("it ended by signal {} ({})", child.signal, strsignal(child.signal));
  }
  if (facts.why.empty()) facts.why = fmt::format("it ended with exit code {}", child.exit_code);
  return facts;
}

namespace {

constexpr const char* kMeasured = "measured";
constexpr const char* kInMemory = "in_memory";
constexpr const char* kRefused = "refused";
constexpr const char* kFailed = "failed";

// In the child: one of those words, the free bytes, and the rates if it is the first; why it is one
// of the last two goes to stderr.
int LookAtDisk(const std::string& folder) {
  const auto free_bytes = static_cast<uint64_t>(DiskFreeBytes(folder));
  std::optional<DiskRates> rates;
  try {
    // Half of what is free at most. In a folder that is none, or not to be written to, free_bytes
    // is 0 or says nothing: MeasureDisk finds the reason.
    const uint64_t bytes = std::min(kDiskBytes, free_bytes / 2 / kDiskStep * kDiskStep);
    if (bytes == 0 && access(folder.c_str(), W_OK | X_OK) == 0 &&
        std::filesystem::is_directory(folder)) {
      ThrowUsage("--dir: {} has {} free, too little to save to; name a folder with more", folder,
                 FormatBytes(free_bytes));
    }
    rates = MeasureDisk({.folder = folder,
                         .bytes = std::max(bytes, kDiskStep),
                         .seconds = kDiskPassSeconds,
                         .option = "--dir"});
  } catch (const Error& error) {
    fmt::print("{} {}\n", error.code() == ExitCode::kUsage ? kRefused : kFailed, free_bytes);
    fmt::print(stderr, "{}", error.what());
    return 0;
  }
  if (!rates && access(folder.c_str(), W_OK | X_OK) != 0) {  // in memory: nothing was written
    const std::string why = std::strerror(errno);
    fmt::print("{} {}\n", kRefused, free_bytes);
    fmt::print(stderr,
               "--dir: {} may not be written ({}); name a folder that this user may write to",
               folder, why);
    return 0;
  }
  if (!rates) {
    fmt::print("{} {}\n", kInMemory, free_bytes);
    return 0;
  }
  fmt::print("{} {} {} {} {} {:d} {}\n", kMeasured, free_bytes, rates->write, rates->read,
             rates->bytes, rates->direct, rates->threads);
  return 0;
}

DiskFacts QueryDisk(const std::string& folder) {
  DiskFacts facts;
  std::error_code unknown;
  const auto whole = std::filesystem::absolute(folder, unknown).lexically_normal();
  facts.folder = PrintableText(unknown ? folder : whole.string(), 300);
  const ChildResult child =
      RunLimited(DoctorLimit(kDiskSeconds), [&] { return LookAtDisk(folder); });
  if (!child.in_time) {
    facts.why = fmt::format("writing and reading a file took more than {:.0f} s",
                            DoctorLimit(kDiskSeconds));
    return facts;
  }
  std::istringstream out(child.out);
  std::string word;
  out >> word >> facts.free_bytes;
  facts.why = LastLine(child.err);
  facts.state = word == kInMemory  ? DiskFacts::State::kInMemory
                : word == kRefused ? DiskFacts::State::kRefused
                                   : DiskFacts::State::kFailed;
  if (word != kMeasured) return facts;
  DiskRates rates;
  if (!(out >> rates.write >> rates.read >> rates.bytes >> rates.direct >> rates.threads)) {
    return facts;
  }
  facts.rates = rates;
  facts.state = DiskFacts::State::kMeasured;
  return facts;
}

ProfileFacts QueryProfile() {
  ProfileFacts facts;
  const std::vector<DetectedGpu> gpus = QueryGpus();
  if (gpus.empty()) return facts;
  facts.file = KeptProfileFile(gpus.size());
  const KeptProfile kept = ReadKeptProfile(facts.file, IdentityOf(gpus));
  facts.when = kept.when;
  facts.note = kept.note;
  facts.state = kept.profile        ? ProfileFacts::State::kUsed
                : kept.note.empty() ? ProfileFacts::State::kAbsent
                                    : ProfileFacts::State::kStale;
  const DetectedMachine machine = MatchMachine(gpus, QueryHost());
  if (machine.profile) facts.built_in = machine.profile->name;
  facts.gpu_note = machine.note;
  return facts;
}

}  // namespace

void AskDriver(MachineFacts& facts) {
  const ChildResult child = RunLimited(DoctorLimit(kDriverSeconds), [] {
    fmt::print("{}\n", DriverAsJson({QueryGpuStates(), QueryProfile()}));
    return 0;
  });
  if (auto driver = DriverFromJson(child.out); driver && child.in_time && child.exit_code == 0) {
    facts.gpus = std::move(driver->gpus);
    facts.profile = std::move(driver->profile);
    return;
  }
  if (!child.in_time) {
    facts.driver_failed =
        fmt::format("it did not answer within {:.0f} s", DoctorLimit(kDriverSeconds));
  } else if (child.signal != 0) {
    facts.driver_failed =
        fmt::format("asking it ended by signal {} ({})", child.signal, strsignal(child.signal));
  } else {
    facts.driver_failed = "asking it failed: " + LastLine(child.err);
  }
}

MachineFacts QueryMachine(const std::string& folder, std::optional<PinnedPlan> plan) {
  MachineFacts facts;
  facts.plan = std::move(plan);
  // First what runs in processes of its own.
  facts.executor = QueryExecutor();
  facts.pinned = QueryPinned(facts.executor, facts.plan);
  facts.disk = QueryDisk(folder);
  AskDriver(facts);
  facts.host = QueryHostState();
  return facts;
}

namespace {

using Json = nlohmann::ordered_json;

template <typename T, typename Facts>
concept Of = std::is_same_v<std::remove_const_t<T>, Facts>;

// Calls `field` with each name and the part behind it.
void Each(auto&) {}
void Each(auto& field, const char* name, auto& part, auto&... more) {
  field(name, part);
  Each(field, more...);
}

// One list of the fields of each, for both ways.
void ForEachField(Of<LibraryFacts> auto& facts, auto field) {
  Each(field, "version", facts.version, "cuda", facts.cuda, "architectures", facts.architectures,
       "runtime", facts.runtime, "driver", facts.driver, "gpus", facts.gpus, "failure",
       facts.failure, "why", facts.why, "cublaslt", facts.cublaslt, "why_no_cublaslt",
       facts.why_no_cublaslt, "nccl", facts.nccl, "nccl_at_build", facts.nccl_at_build,
       "why_no_nccl", facts.why_no_nccl, "cudnn", facts.cudnn, "cudnn_at_build",
       facts.cudnn_at_build, "why_no_cudnn", facts.why_no_cudnn);
}

void ForEachField(Of<PinnedFacts> auto& facts, auto field) {
  Each(field, "asked_bytes", facts.asked_bytes, "locked_bytes", facts.locked_bytes, "refusal",
       facts.refusal);
}

void ForEachField(Of<GpuProcess> auto& process, auto field) {
  Each(field, "pid", process.pid, "bytes", process.bytes);
}

void ForEachField(Of<GpuState> auto& gpu, auto field) {
  Each(field, "index", gpu.index, "visible", gpu.visible, "name", gpu.name, "bus", gpu.bus,
       "memory_bytes", gpu.memory_bytes, "used_bytes", gpu.used_bytes, "compute_major",
       gpu.compute_major, "compute_minor", gpu.compute_minor, "ecc", gpu.ecc, "mig", gpu.mig,
       "limit_watts", gpu.limit_watts, "default_limit_watts", gpu.default_limit_watts,
       "pcie_generation", gpu.pcie_generation, "most_pcie_generation", gpu.most_pcie_generation,
       "pcie_width", gpu.pcie_width, "most_pcie_width", gpu.most_pcie_width, "performance_state",
       gpu.performance_state, "compute_mode", gpu.compute_mode, "processes", gpu.processes, "links",
       gpu.links, "active_links", gpu.active_links, "numa_node", gpu.numa_node);
}

void ForEachField(Of<GpuPair> auto& pair, auto field) {
  Each(field, "a", pair.a, "b", pair.b, "peer", pair.peer, "why_not", pair.why_not, "nvlink",
       pair.nvlink);
}

void ForEachField(Of<GpuStates> auto& states, auto field) {
  Each(field, "is_off", states.is_off, "library", states.library, "answers", states.answers, "why",
       states.why, "driver", states.driver, "cuda", states.cuda, "gpus", states.gpus, "pairs",
       states.pairs);
}

void ForEachField(Of<ProfileFacts> auto& profile, auto field) {
  Each(field, "state", profile.state, "file", profile.file, "when", profile.when, "note",
       profile.note, "built_in", profile.built_in, "gpu_note", profile.gpu_note);
}

void ForEachField(Of<DriverFacts> auto& driver, auto field) {
  Each(field, "gpus", driver.gpus, "profile", driver.profile);
}

template <typename T>
Json Written(const T& value);
template <typename T>
Json Written(const std::vector<T>& values);

template <typename T>
Json Written(const std::optional<T>& value) {
  return value ? Written(*value) : Json(nullptr);
}
template <typename T>
Json Written(const std::vector<T>& values) {
  Json json = Json::array();
  for (const T& value : values) json.push_back(Written(value));
  return json;
}
template <typename T>
Json Written(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {
    Json json = Json::object();
    ForEachField(value, [&](const char* name, const auto& part) { json[name] = Written(part); });
    return json;
  }
}

template <typename T>
void Read(const Json& json, T& value);
template <typename T>
void Read(const Json& json, std::vector<T>& values);

template <typename T>
void Read(const Json& json, std::optional<T>& value) {
  if (!json.is_null()) Read(json, value.emplace());
}
template <typename T>
void Read(const Json& json, std::vector<T>& values) {
  for (const Json& one : json) Read(one, values.emplace_back());
}
template <typename T>
void Read(const Json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(json.get<int>());
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    json.get_to(value);
  } else {
    ForEachField(value, [&](const char* name, auto& part) { Read(json.at(name), part); });
  }
}

template <typename Facts>
std::string AsJson(const Facts& facts) {
  return Written(facts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Facts>
std::optional<Facts> FromJson(const std::string& output) {
  const size_t end = output.find_last_not_of(" \r\n");
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = output.find_last_of('\n', end) + 1;  // npos + 1 is 0
  try {
    Facts facts;
    Read(Json::parse(output.substr(begin, end + 1 - begin)), facts);
    return facts;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string LibrariesAsJson(const LibraryFacts& facts) { return AsJson(facts); }
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output) {
  return FromJson<LibraryFacts>(output);
}
std::string PinnedAsJson(const PinnedFacts& facts) { return AsJson(facts); }
std::optional<PinnedFacts> PinnedFromJson(const std::string& output) {
  return FromJson<PinnedFacts>(output);
}
std::string DriverAsJson(const DriverFacts& facts) { return AsJson(facts); }
std::optional<DriverFacts> DriverFromJson(const std::string& output) {
  return FromJson<DriverFacts>(output);
}

}  // namespace zeroplan
