#include "hwprofiles/loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "core/base/error.h"
#include "core/base/nearest_name.h"
#include "hwprofiles/embedded.h"
#include "hwprofiles/figure_reader.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

constexpr double kKilo = 1e3, kGiga = 1e9, kTera = 1e12;

// Wide enough for anything sold since 2016 and some years to come; narrow enough to catch a wrong
// prefix (MB for GB, Gb for GB) or a bandwidth of another component.
constexpr FigureRule kGpuMemory{Dimension::kBytes, kGiga, 2 * kTera};
constexpr FigureRule kHbmBandwidth{Dimension::kBytesPerSecond, 50 * kGiga, 50 * kTera};
constexpr FigureRule kSmCount{Dimension::kCount, 1, 2000};
constexpr FigureRule kClock{Dimension::kHertz, 0.2 * kGiga, 5 * kGiga};
constexpr FigureRule kPeak{Dimension::kFlopsPerSecond, 0.1 * kTera, 20e3 * kTera};
constexpr FigureRule kGpusPerNode{Dimension::kCount, 1, 1024};
constexpr FigureRule kHostMemory{Dimension::kBytes, kGiga, 100 * kTera};
constexpr FigureRule kCores{Dimension::kCount, 1, 10 * kKilo};
constexpr FigureRule kHostBandwidth{Dimension::kBytesPerSecond, kGiga, 20 * kTera};
constexpr FigureRule kPcie{Dimension::kBytesPerSecond, 0.1 * kGiga, 10 * kTera};
constexpr FigureRule kLink{Dimension::kBytesPerSecond, kGiga, 10 * kTera};
constexpr FigureRule kDisk{Dimension::kBytesPerSecond, 0.01 * kGiga, kTera};
constexpr FigureRule kDiskCapacity{Dimension::kBytes, kGiga, 10e3 * kTera};
constexpr FigureRule kNetwork{Dimension::kBytesPerSecond, 0.01 * kGiga, kTera};
constexpr FigureRule kRuntime{Dimension::kBytes, 0, 32 * kGiga};
constexpr int64_t kMaxWorldSize = 1'000'000;

constexpr std::pair<const char*, Dtype> kPeakDtypes[] = {
    {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}, {"fp32", Dtype::kF32}};

void ReadPeaks(FigureReader& reader, GpuProfile& gpu) {
  for (const std::string& key : reader.Keys("gpu.peaks")) {
    const std::string path = "gpu.peaks." + key;
    if (reader.Has(path + ".sparse")) {
      reader.Fail(path + ".sparse",
                  "training is dense; remove it and give the dense peak as \"dense\"");
    }
  }
  for (const auto& [name, dtype] : kPeakDtypes) {
    for (const char* kind : {"dense", "measured"}) {
      const std::string path = fmt::format("gpu.peaks.{}.{}", name, kind);
      const auto figure = reader.Optional(path, kPeak);
      if (!figure) continue;
      const std::string sparsity = reader.Text(path + ".sparsity");
      if (sparsity != "dense") {
        reader.Fail(path + ".sparsity",
                    fmt::format("\"{}\" is not allowed; give the dense peak (half of NVIDIA's "
                                "figure with sparsity) and \"dense\"",
                                sparsity));
      }
      (kind[0] == 'd' ? gpu.dense_peaks : gpu.reachable_peaks)[dtype] = *figure;
    }
  }
}

GpuProfile ReadGpu(FigureReader& reader) {
  GpuProfile gpu;
  gpu.name = reader.Text("gpu.name");
  gpu.architecture = reader.Text("gpu.architecture");
  gpu.memory = reader.Required("gpu.memory", kGpuMemory);
  gpu.usable_memory = reader.Required("gpu.usable_memory", kGpuMemory);
  gpu.hbm_bandwidth = reader.Required("gpu.hbm_bandwidth", kHbmBandwidth);
  gpu.copy_bandwidth = reader.Optional("gpu.copy_bandwidth", kHbmBandwidth);
  gpu.sm_count = reader.Required("gpu.sm_count", kSmCount);
  gpu.max_sm_clock = reader.Required("gpu.max_sm_clock", kClock);
  ReadPeaks(reader, gpu);
  gpu.bf16 = reader.Flag("gpu.capabilities.bf16");
  gpu.fp16 = reader.Flag("gpu.capabilities.fp16");
  gpu.flash_attention = reader.Flag("gpu.capabilities.flash_attention");
  return gpu;
}

NodeProfile ReadNode(FigureReader& reader) {
  NodeProfile node;
  node.gpus = reader.Required("node.gpus", kGpusPerNode);
  node.host_memory = reader.Required("node.host_memory", kHostMemory);
  node.cores = reader.Required("node.cores", kCores);
  node.triad_bandwidth = reader.Optional("node.triad_bandwidth", kHostBandwidth);
  node.adam_bandwidth = reader.Optional("node.adam_bandwidth", kHostBandwidth);
  node.pcie.to_device_single = reader.Required("node.pcie.to_device_single", kPcie);
  node.pcie.from_device_single = reader.Required("node.pcie.from_device_single", kPcie);
  node.pcie.both_single = reader.Required("node.pcie.both_single", kPcie);
  node.pcie.to_device_all = reader.Optional("node.pcie.to_device_all", kPcie);
  node.pcie.from_device_all = reader.Optional("node.pcie.from_device_all", kPcie);
  node.pcie.both_all = reader.Optional("node.pcie.both_all", kPcie);
  node.gpu_link = reader.Required("node.gpu_link", kLink);
  node.nvme_read = reader.Optional("node.nvme_read", kDisk);
  node.nvme_write = reader.Optional("node.nvme_write", kDisk);
  node.nvme_capacity = reader.Optional("node.nvme_capacity", kDiskCapacity);
  return node;
}

std::vector<RuntimeOverhead> ReadRuntime(FigureReader& reader) {
  std::vector<RuntimeOverhead> runtime;
  for (const std::string& path : reader.Items("runtime")) {
    RuntimeOverhead entry;
    entry.world_size = static_cast<int>(reader.Integer(path + ".world_size", 1, kMaxWorldSize));
    entry.bytes = reader.Required(path, kRuntime);
    if (!runtime.empty() && runtime.back().world_size >= entry.world_size) {
      reader.Fail(path + ".world_size",
                  fmt::format("{} does not rise; sort the entries by world_size, each once",
                              entry.world_size));
    }
    runtime.push_back(std::move(entry));
  }
  return runtime;
}

bool LooksLikePath(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

}  // namespace

HardwareProfile ParseProfile(std::string_view json, std::string_view source) {
  FigureReader reader(json, source);
  const std::string schema = reader.Text("schema");
  if (schema != "zeroplan.hw/1") {
    reader.Fail("schema", fmt::format("\"{}\" is not allowed; use \"zeroplan.hw/1\"", schema));
  }
  HardwareProfile profile;
  profile.source = source;
  profile.name = reader.Text("name");
  profile.description = reader.Text("description");
  profile.gpu = ReadGpu(reader);
  profile.node = ReadNode(reader);
  if (reader.Has("network")) {
    profile.network = NetworkProfile{"", reader.Required("network.bandwidth_per_gpu", kNetwork), {}};
  }
  profile.runtime = ReadRuntime(reader);
  reader.RefuseUnread();
  if (const auto problem = FindContradiction(profile)) reader.Fail(problem->key, problem->message);
  return profile;
}

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names;
  for (const EmbeddedProfile& profile : EmbeddedProfiles()) names.emplace_back(profile.name);
  return names;
}

std::string ProfileText(const std::string& name_or_file) {
  for (const EmbeddedProfile& profile : EmbeddedProfiles()) {
    if (profile.name == name_or_file) return std::string(profile.json);
  }
  if (!LooksLikePath(name_or_file)) {
    const std::vector<std::string> names = ProfileNames();
    const std::string nearest = NearestName(name_or_file, names);
    ThrowUsage("--hw: \"{}\" is no built-in hardware profile{}; use {} or the path of a .json file",
               name_or_file, nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
               fmt::join(names, ", "));
  }
  std::ifstream file(name_or_file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    ThrowUsage("--hw: cannot read \"{}\"; give a built-in name ({}) or a readable .json file",
               name_or_file, fmt::join(ProfileNames(), ", "));
  }
  return text;
}

HardwareProfile LoadProfile(const std::string& name_or_file) {
  const std::string text = ProfileText(name_or_file);
  const std::vector<std::string> names = ProfileNames();
  const bool built_in = std::find(names.begin(), names.end(), name_or_file) != names.end();
  HardwareProfile profile = ParseProfile(text, name_or_file);
  if (built_in) profile.source = "built in";
  return profile;
}

}  // namespace zeroplan
