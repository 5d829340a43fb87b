// What launchers set: lines NAME=VALUE. Reading throws Error or gives a place that makes sense, and
// that zeroplan's own variables can say, too. The value of ZEROPLAN_SECRET_FILE is what that file
// holds. Values with a colon are read as --hosts too, and a text with "slots=" as a file of hosts:
// refused, or names that ssh takes for nothing but hosts.
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "executor/process/handshake.h"
#include "executor/process/launch_environment.h"
#include "executor/process/launcher.h"
#include "tests/executor/process/place_of.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"

namespace zeroplan {
namespace {

void CheckHosts(const std::vector<HostShare>& hosts) {
  Need(!hosts.empty());
  for (const HostShare& host : hosts) {
    Need(host.ranks >= 1 && !host.name.empty() && host.name.front() != '-');
    Need(std::all_of(host.name.begin(), host.name.end(),
                     [](char c) { return c > ' ' && c < 0x7f && c != '\'' && c != ';'; }));
  }
}

void Read(std::string_view text) {
  static const ScratchFiles files;
  if (text.find("slots=") != std::string_view::npos) {
    Accepts([&] { CheckHosts(ReadHostFile(files.Write("hosts", text).string())); });
  }
  Variables variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    std::string name(line.substr(0, equals)), value(line.substr(equals + 1));
    Need(FirstSlurmHost(value).size() <= value.size());
    if (const auto tasks = SlurmTasksOfNode(value, 3)) Need(*tasks >= 0);
    if (value.find(':') != std::string::npos) {
      Accepts([&] { CheckHosts(ParseHosts(value, "hosts")); });
    }
    if (name == "ZEROPLAN_SECRET_FILE" && !value.empty()) {
      const auto path = files.Write("secret", value);
      Need(chmod(path.c_str(), 0600) == 0);
      value = path.string();
    }
    value = value.c_str();  // an environment has no NUL
    variables[name] = value;
  }
  std::optional<ProcessPlace> place;
  try {
    place = PlaceOf(variables);
  } catch (const Error& error) {
    Need(error.code() == ExitCode::kUsage && !std::string_view(error.what()).empty());
    return;
  }
  if (!place) return;
  Need(place->world_size > 1 && place->rank >= 0 && place->rank < place->world_size);
  Need(place->local_world_size >= 1 && place->local_world_size <= place->world_size);
  Need(place->local_rank >= 0 && place->local_rank < place->local_world_size);
  Need(!place->address.empty() && place->port >= 1 && place->port <= 65'535);
  Need(place->secret.empty() || place->secret.size() >= kMinSecret);
  const auto back = PlaceOf({{"ZEROPLAN_RANK", std::to_string(place->rank)},
                             {"ZEROPLAN_WORLD_SIZE", std::to_string(place->world_size)},
                             {"ZEROPLAN_LOCAL_RANK", std::to_string(place->local_rank)},
                             {"ZEROPLAN_LOCAL_WORLD_SIZE", std::to_string(place->local_world_size)},
                             {"ZEROPLAN_ADDRESS", place->address},
                             {"ZEROPLAN_PORT", std::to_string(place->port)}});
  Need(back && back->rank == place->rank && back->world_size == place->world_size &&
       back->local_rank == place->local_rank && back->address == place->address &&
       back->local_world_size == place->local_world_size && back->port == place->port);
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zeroplan::Read({reinterpret_cast<const char*>(data), size});
  return 0;
}
