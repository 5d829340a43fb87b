#include "machine/kept_profile.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "zeroplan.kept/1";
constexpr const char* kAgain = "zeroplan hw measure";

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "host";
  std::string safe = name;
  for (char& c : safe) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return safe;
}

ProfileJson ToJson(const MachineIdentity& machine) {
  ProfileJson gpus = ProfileJson::array();
  for (const DetectedGpu& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
  }
  return {{"gpus", std::move(gpus)}, {"driver", machine.driver}, {"cores", machine.cores}};
}

MachineIdentity FromJson(const ProfileJson& json) {
  MachineIdentity machine;
  for (const ProfileJson& gpu : json.at("gpus")) {
    machine.gpus.push_back(
        {gpu.at("name").get<std::string>(), gpu.at("memory_bytes").get<double>()});
  }
  json.at("driver").get_to(machine.driver);
  json.at("cores").get_to(machine.cores);
  return machine;
}

std::string Describe(const std::vector<DetectedGpu>& gpus) {
  return gpus.empty() ? "no GPU" : fmt::format("{} x {}", gpus.size(), gpus[0].name);
}

// What changed from `then` to `now`, for people.
std::string Change(const MachineIdentity& then, const MachineIdentity& now) {
  const auto from_to = [](const char* what, const auto& before, const auto& after) {
    return fmt::format("the {} {} then, and {} now", what, before, after);
  };
  if (then.gpus != now.gpus) {
    return from_to("GPUs were", Describe(then.gpus), Describe(now.gpus));
  }
  if (then.driver != now.driver) return from_to("driver was", then.driver, now.driver);
  return from_to("cores were", then.cores, now.cores);
}

}  // namespace

MachineIdentity IdentityOf(std::vector<DetectedGpu> gpus) {
  return {std::move(gpus), QueryDriver(), QueryHost().cores};
}

std::string KeptProfileFile(size_t gpus) {
  const std::string folder = CacheFolder();
  if (folder.empty()) return "";
  return fmt::format("{}/hw-{}-{}-gpus.json", folder, HostName(), gpus);
}

void KeepProfile(const std::string& file, const MachineIdentity& machine,
                 const std::string& profile, const std::string& when) {
  const ProfileJson json = {{"schema", kSchema},
                            {"measured", when},
                            {"machine", ToJson(machine)},
                            {"profile", ParseJson(profile, file)}};
  const auto fail = [&](const std::string& why) {
    ThrowRuntime("cannot keep the profile in {}: {}; ZEROPLAN_CACHE_DIR names another folder", file,
                 why);
  };
  std::error_code failure;
  fs::create_directories(fs::path(file).parent_path(), failure);
  if (failure) fail(failure.message());
  const std::string temporary = fmt::format("{}.{}", file, getpid());
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << FormatProfileJson(json);
    out.close();
    if (!out) {
      fs::remove(temporary, failure);
      fail("it cannot be written");
    }
  }
  fs::rename(temporary, file, failure);
  if (failure) {
    const std::string why = failure.message();
    fs::remove(temporary, failure);
    fail(why);
  }
}

KeptProfile ReadKeptProfile(const std::string& file, const MachineIdentity& machine) {
  KeptProfile kept;
  std::ifstream in(file);
  if (file.empty() || !in) return kept;
  try {
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const ProfileJson json = ParseJson(text, file);
    if (!json.is_object() || json.value("schema", "") != kSchema) {
      ThrowUsage("{}: schema is not {}", file, kSchema);
    }
    kept.when = json.at("measured").get<std::string>();
    const MachineIdentity then = FromJson(json.at("machine"));
    if (then != machine) {
      kept.note = fmt::format(
          "What 'hw measure' kept of this machine on {} is not used: {}. To measure again: {}",
          kept.when, Change(then, machine), kAgain);
      return kept;
    }
    kept.profile = ParseProfile(json.at("profile").dump(), file);
  } catch (const std::exception& error) {
    kept.profile.reset();
    kept.note =
        fmt::format("What 'hw measure' kept of this machine is not used: {}. To measure again: {}",
                    error.what(), kAgain);
  }
  return kept;
}

}  // namespace zeroplan
