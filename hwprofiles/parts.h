// A machine is composed of parts: they are in hwprofiles/gpus, hosts, pcie, links, networks and
// runtimes, the machines in hwprofiles/profiles. A profile names a part ("gpu": "rtx4090"), changes
// one ({"base": "rtx4090", "usable_memory": {...}}; null removes a key) or contains it in full.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The JSON files of hwprofiles/ as they were when CMake configured the build.
struct EmbeddedFile {
  std::string_view folder;  // "profiles", "gpus", "networks", ...
  std::string_view name;    // file name without .json
  std::string_view json;
};

// The files by folder, then name. Defined in a source that CMake writes (see embed.cmake).
std::span<const EmbeddedFile> EmbeddedFiles();

// Keys keep the order of the file, for people who read it.
using ProfileJson = nlohmann::ordered_json;

// The key of a profile that lists GPUs of other kinds than its "gpu": [{"gpus": FIGURE, "gpu":
// PART}].
inline constexpr const char* kOtherGpus = "other_gpus";

struct PartKind {
  std::string_view section;  // key of a profile
  std::string_view folder;   // folder of hwprofiles/
};
std::span<const PartKind> PartKinds();

// Built-in names of one folder, sorted.
std::vector<std::string> EmbeddedNames(std::string_view folder);
// The text of a built-in file; "" if there is none.
std::string_view EmbeddedText(std::string_view folder, std::string_view name);

// Throws Error(kUsage) "SOURCE: not valid JSON: ...".
ProfileJson ParseJson(std::string_view text, std::string_view source);

// `profile` with every section in full. Throws Error(kUsage) "SOURCE: SECTION: ..." for a part that
// is not built in.
ProfileJson ComposeProfile(ProfileJson profile, std::string_view source);
// One part in full. `part`: a name, or an object with "base".
ProfileJson ComposePart(const PartKind& kind, const ProfileJson& part, std::string_view source);
// The text of `profile`, and of a built-in part, with every section in full. Throw the errors of
// ComposeProfile and ComposePart.
std::string ComposedText(std::string_view profile, std::string_view source);
std::string PartText(const PartKind& kind, const std::string& name);

// A built-in GPU, as a driver would describe it.
struct KnownGpu {
  std::string part;  // "rtx4090"
  std::string name;  // "NVIDIA GeForce RTX 4090", as GpuProfile::name
  double memory_bytes;
  std::vector<std::string> driver_names;  // without the brand; empty: unknown
};
const std::vector<KnownGpu>& KnownGpus();
// Whether a built-in profile of that name is one card alone.
bool IsCard(const std::string& name);
// A built-in machine: the kind and number of its GPUs.
struct KnownMachine {
  std::string name;
  std::string gpu_part;  // "" if it holds its GPU in full
  double gpus;
};
const std::vector<KnownMachine>& KnownMachines();
// The machine of `count` GPUs of the part `part`, NVIDIA's own before a cloud's, or "".
std::string MachineOf(const std::string& part, double count);

// JSON indented by two; values that fit in a line, and each row of a table, are on one line. Ends
// with a newline.
std::string FormatProfileJson(const ProfileJson& json);

}  // namespace zeroplan
