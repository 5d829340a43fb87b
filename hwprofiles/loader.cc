#include "hwprofiles/loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/nearest_name.h"
#include "hwprofiles/figure_reader.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/sanity.h"
#include "hwprofiles/tables.h"

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
constexpr FigureRule kNetworkBandwidth{Dimension::kBytesPerSecond, 0.01 * kGiga, kTera};
constexpr FigureRule kLatency{Dimension::kSeconds, 1e-7, 0.1};
constexpr FigureRule kLaunch{Dimension::kSeconds, 1e-7, 1e-3};
constexpr FigureRule kShare{Dimension::kRatio, 0.01, 1};
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
    for (const char* kind : {"dense", "reachable"}) {
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
  gpu.launch_overhead = reader.Required("gpu.launch_overhead", kLaunch);
  ReadPeaks(reader, gpu);
  gpu.bf16 = reader.Flag("gpu.capabilities.bf16");
  gpu.fp16 = reader.Flag("gpu.capabilities.fp16");
  gpu.flash_attention = reader.Flag("gpu.capabilities.flash_attention");
  gpu.gemm = ReadGemmTable(reader, "gpu.gemm");
  gpu.attention = ReadAttentionTable(reader, "gpu.attention");
  gpu.memory_kernels = ReadMemoryTable(reader, "gpu.memory_kernels");
  // Read by MatchGpu (detect.h), checked here.
  if (reader.Has("gpu.driver_names")) {
    for (const std::string& path : reader.Items("gpu.driver_names")) reader.Text(path);
  }
  return gpu;
}

PcieProfile ReadPcie(FigureReader& reader) {
  PcieProfile pcie;
  pcie.to_device_single = reader.Required("pcie.to_device_single", kPcie);
  pcie.from_device_single = reader.Required("pcie.from_device_single", kPcie);
  pcie.both_single = reader.Required("pcie.both_single", kPcie);
  pcie.to_device_all = reader.Optional("pcie.to_device_all", kPcie);
  pcie.from_device_all = reader.Optional("pcie.from_device_all", kPcie);
  pcie.both_all = reader.Optional("pcie.both_all", kPcie);
  pcie.copies = ReadCopyTable(reader, "pcie.copies");
  return pcie;
}

LinkKind ReadLinkKind(FigureReader& reader) {
  const std::string kind = reader.Text("link.kind");
  for (const LinkKind known : {LinkKind::kNvlink, LinkKind::kPcie}) {
    if (kind == LinkKindName(known)) return known;
  }
  reader.Fail("link.kind", fmt::format("\"{}\" is not allowed; use nvlink or pcie", kind));
}

NodeProfile ReadNode(FigureReader& reader) {
  NodeProfile node;
  node.gpus = reader.Required("gpus", kGpusPerNode);
  node.host_memory = reader.Required("host.memory", kHostMemory);
  node.cores = reader.Required("host.cores", kCores);
  node.triad_bandwidth = reader.Optional("host.triad_bandwidth", kHostBandwidth);
  node.adam_bandwidth = reader.Optional("host.adam_bandwidth", kHostBandwidth);
  node.nvme_read = reader.Optional("host.nvme_read", kDisk);
  node.nvme_write = reader.Optional("host.nvme_write", kDisk);
  node.nvme_capacity = reader.Optional("host.nvme_capacity", kDiskCapacity);
  node.pcie = ReadPcie(reader);
  node.link_kind = ReadLinkKind(reader);
  node.gpu_link = reader.Required("link.bandwidth", kLink);
  node.collectives = ReadCollectiveTable(reader, "link.collectives");
  node.overlapped_compute = reader.Optional("link.overlapped_compute", kShare);
  node.overlapped_collective = reader.Optional("link.overlapped_collective", kShare);
  return node;
}

std::optional<NetworkProfile> ReadNetwork(FigureReader& reader) {
  if (!reader.Has("network")) return std::nullopt;
  NetworkProfile network;
  network.name = reader.Text("network.name");
  network.bandwidth_per_node = reader.Required("network.bandwidth_per_node", kNetworkBandwidth);
  network.latency = reader.Required("network.latency", kLatency);
  return network;
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

HardwareProfile ReadProfile(ProfileJson json, std::string_view source) {
  FigureReader reader(ComposeProfile(std::move(json), source), source);
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
  profile.network = ReadNetwork(reader);
  profile.runtime = ReadRuntime(reader);
  reader.RefuseUnread();
  if (const auto problem = FindContradiction(profile)) reader.Fail(problem->key, problem->message);
  return profile;
}

std::string ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    ThrowUsage("--hw: cannot read \"{}\"; give a built-in name ({}) or a readable .json file", path,
               fmt::join(ProfileNames(), ", "));
  }
  return ReadTextFile(path);
}

[[noreturn]] void FailName(std::string_view option, const std::string& name,
                           const std::vector<std::string>& names) {
  const std::string nearest = NearestName(name, names);
  // Built-in GPUs and machines are named by their model: "h100" is in "h100-80gb-sxm".
  std::string hint = nearest;
  for (const std::string& known : names) {
    if (hint.empty() && known.find(name) != std::string::npos) hint = known;
  }
  ThrowUsage("{}: \"{}\" is no built-in hardware profile{}; use {} or the path of a .json file",
             option, name, hint.empty() ? "" : fmt::format(" (did you mean {}?)", hint),
             fmt::join(names, ", "));
}

}  // namespace

HardwareProfile ParseProfile(std::string_view json, std::string_view source) {
  return ReadProfile(ParseJson(json, source), source);
}

NetworkProfile LoadNetwork(const std::string& name) {
  FigureReader reader(ComposeProfile(ProfileJson{{"network", name}}, "built in"), "built in");
  auto network = ReadNetwork(reader);
  ZEROPLAN_CHECK(network.has_value());
  return *std::move(network);
}

std::vector<std::string> NetworkNames() { return EmbeddedNames("networks"); }

std::vector<std::string> ProfileNames() { return EmbeddedNames("profiles"); }

HardwareProfile LoadProfile(const std::string& name_or_file) {
  const std::string_view text = EmbeddedText("profiles", name_or_file);
  if (!text.empty()) return ParseProfile(text, "built in");
  if (!LooksLikePath(name_or_file)) FailName("--hw", name_or_file, ProfileNames());
  return ParseProfile(ReadFile(name_or_file), name_or_file);
}

std::string ProfileText(const std::string& name_or_file) {
  std::string_view text = EmbeddedText("profiles", name_or_file);
  if (text.empty()) {
    for (const PartKind& kind : PartKinds()) {
      if (EmbeddedText(kind.folder, name_or_file).empty()) continue;
      return FormatProfileJson(ComposePart(kind, ProfileJson(name_or_file), name_or_file));
    }
    if (!LooksLikePath(name_or_file)) {
      std::vector<std::string> names = ProfileNames();
      for (const PartKind& kind : PartKinds()) {
        for (std::string& name : EmbeddedNames(kind.folder)) names.push_back(std::move(name));
      }
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      FailName("hw show", name_or_file, names);
    }
    const std::string file = ReadFile(name_or_file);
    const ProfileJson json = ParseJson(file, name_or_file);
    ReadProfile(json, name_or_file);  // throws if it is none
    return FormatProfileJson(ComposeProfile(json, name_or_file));
  }
  return FormatProfileJson(ComposeProfile(ParseJson(text, name_or_file), name_or_file));
}

}  // namespace zeroplan
