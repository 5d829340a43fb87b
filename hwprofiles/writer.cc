#include "hwprofiles/writer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "core/base/error.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/tables.h"
#include "hwprofiles/units.h"

namespace zeroplan {
namespace {

// Whole numbers without a fraction, as people write them.
ProfileJson Number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::abs(value) < kExact) return static_cast<int64_t>(value);
  return value;
}

// `dense`: a peak, which says that it is no sparse one.
ProfileJson FigureJson(const Figure& figure, bool dense = false) {
  ProfileJson json = {{"value", Number(figure.written)}, {"unit", figure.unit}};
  if (dense) json["sparsity"] = "dense";
  json["source"] = FigureSourceName(figure.source);
  json["reference"] = figure.reference;
  return json;
}

void Add(ProfileJson& json, const char* key, const Figure& figure) {
  json[key] = FigureJson(figure);
}
void Add(ProfileJson& json, const char* key, const std::optional<Figure>& figure) {
  if (figure) Add(json, key, *figure);
}

// The shortest number that times `scale` gives exactly `value`, as the loader computes it; nothing
// if rounding leaves none.
std::optional<double> InUnit(double value, double scale) {
  for (int digits = 1; digits <= 17; ++digits) {
    const double number =
        std::strtod(fmt::format("{:.{}g}", value / scale, digits).c_str(), nullptr);
    if (number * scale == value) return number;
  }
  const double nearest = value / scale;
  for (const double number : {std::nextafter(nearest, 0.0), std::nextafter(nearest, 2 * nearest)}) {
    if (number * scale == value) return number;
  }
  return std::nullopt;
}

// What a table's measured columns hold, in base units, and in which unit people read them.
struct MeasuredUnit {
  Dimension dimension;
  const char* usual;
  const char* base;
};
constexpr MeasuredUnit kRates{Dimension::kFlopsPerSecond, "TFLOP/s", "FLOP/s"};
constexpr MeasuredUnit kTimes{Dimension::kSeconds, "us", "s"};

// `about` gives a row's leading cells, `measured` its measured ones.
template <typename Row, typename About, typename Values>
void AddTable(ProfileJson& json, const char* key, const std::optional<Measured<Row>>& table,
              const MeasuredUnit& unit, const std::vector<const char*>& columns, About about,
              Values measured) {
  if (!table) return;
  const double usual = UnitScale(unit.dimension, unit.usual).value();
  bool survives = true;
  for (const Row& row : table->rows) {
    for (const double value : measured(row)) survives = survives && InUnit(value, usual);
  }
  ProfileJson rows = ProfileJson::array();
  for (const Row& row : table->rows) {
    ProfileJson cells = about(row);
    for (const double value : measured(row)) {
      cells.push_back(survives ? *InUnit(value, usual) : value);
    }
    rows.push_back(std::move(cells));
  }
  json[key] = {{"unit", survives ? unit.usual : unit.base},
               {"source", FigureSourceName(table->source)},
               {"reference", table->reference},
               {"columns", columns},
               {"rows", std::move(rows)}};
}

using Values = std::vector<double>;

ProfileJson PeaksJson(const GpuProfile& gpu) {
  ProfileJson peaks = ProfileJson::object();
  const std::pair<const char*, const std::map<Dtype, Figure>*> kinds[] = {
      {"dense", &gpu.dense_peaks}, {"reachable", &gpu.reachable_peaks}};
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    for (const auto& [name, figures] : kinds) {
      const auto found = figures->find(dtype);
      if (found == figures->end()) continue;
      peaks[std::string(DtypeName(dtype))][name] = FigureJson(found->second, true);
    }
  }
  return peaks;
}

ProfileJson GpuJson(const GpuProfile& gpu) {
  ProfileJson json = {{"name", gpu.name}, {"architecture", gpu.architecture}};
  Add(json, "memory", gpu.memory);
  Add(json, "usable_memory", gpu.usable_memory);
  Add(json, "hbm_bandwidth", gpu.hbm_bandwidth);
  Add(json, "copy_bandwidth", gpu.copy_bandwidth);
  Add(json, "sm_count", gpu.sm_count);
  Add(json, "max_sm_clock", gpu.max_sm_clock);
  Add(json, "launch_overhead", gpu.launch_overhead);
  json["peaks"] = PeaksJson(gpu);
  json["capabilities"] = {
      {"bf16", gpu.bf16}, {"fp16", gpu.fp16}, {"flash_attention", gpu.flash_attention}};
  AddTable(
      json, "gemm", gpu.gemm, kRates, {"kind", "dtype", "m", "k", "n", "rate"},
      [](const GemmRate& r) {
        return ProfileJson::array({GemmKindWord(r.kind), DtypeName(r.dtype), r.m, r.k, r.n});
      },
      [](const GemmRate& r) { return Values{r.flops_per_second}; });
  AddTable(
      json, "attention", gpu.attention, kRates,
      {"batch", "heads", "seq", "head_dim", "forward", "backward"},
      [](const AttentionRate& r) {
        return ProfileJson::array({r.batch, r.heads, r.seq, r.head_dim});
      },
      [](const AttentionRate& r) {
        return Values{r.forward_flops_per_second, r.backward_flops_per_second};
      });
  AddTable(
      json, "memory_kernels", gpu.memory_kernels, kTimes, {"bytes", "time"},
      [](const MemoryKernelTime& t) { return ProfileJson::array({Number(t.bytes)}); },
      [](const MemoryKernelTime& t) { return Values{t.seconds}; });
  return json;
}

ProfileJson HostJson(const NodeProfile& node) {
  ProfileJson json = ProfileJson::object();
  Add(json, "memory", node.host_memory);
  Add(json, "cores", node.cores);
  Add(json, "triad_bandwidth", node.triad_bandwidth);
  Add(json, "adam_bandwidth", node.adam_bandwidth);
  Add(json, "nvme_read", node.nvme_read);
  Add(json, "nvme_write", node.nvme_write);
  Add(json, "nvme_capacity", node.nvme_capacity);
  return json;
}

ProfileJson PcieJson(const PcieProfile& pcie) {
  ProfileJson json = ProfileJson::object();
  Add(json, "to_device_single", pcie.to_device_single);
  Add(json, "from_device_single", pcie.from_device_single);
  Add(json, "both_single", pcie.both_single);
  Add(json, "to_device_all", pcie.to_device_all);
  Add(json, "from_device_all", pcie.from_device_all);
  Add(json, "both_all", pcie.both_all);
  AddTable(
      json, "copies", pcie.copies, kTimes, {"bytes", "to_device", "from_device"},
      [](const CopyTime& t) { return ProfileJson::array({Number(t.bytes)}); },
      [](const CopyTime& t) { return Values{t.to_device_seconds, t.from_device_seconds}; });
  return json;
}

ProfileJson LinkJson(const NodeProfile& node) {
  ProfileJson json = {{"kind", LinkKindName(node.link_kind)}};
  Add(json, "bandwidth", node.gpu_link);
  Add(json, "overlapped_compute", node.overlapped_compute);
  Add(json, "overlapped_collective", node.overlapped_collective);
  AddTable(
      json, "collectives", node.collectives, kTimes, {"op", "world_size", "bytes", "time"},
      [](const CollectiveTime& t) {
        return ProfileJson::array({CollectiveOpWord(t.op), t.world_size, Number(t.bytes)});
      },
      [](const CollectiveTime& t) { return Values{t.seconds}; });
  return json;
}

}  // namespace

std::string WriteProfile(const HardwareProfile& profile) {
  ProfileJson json = {
      {"schema", "zeroplan.hw/1"},           {"name", profile.name},
      {"description", profile.description},  {"gpus", FigureJson(profile.node.gpus)},
      {"gpu", GpuJson(profile.gpu)},         {"host", HostJson(profile.node)},
      {"pcie", PcieJson(profile.node.pcie)}, {"link", LinkJson(profile.node)}};
  if (profile.network) {
    json["network"]["name"] = profile.network->name;
    Add(json["network"], "bandwidth_per_node", profile.network->bandwidth_per_node);
    Add(json["network"], "latency", profile.network->latency);
  }
  json["runtime"] = ProfileJson::array();
  for (const RuntimeOverhead& entry : profile.runtime) {
    ProfileJson item = {{"world_size", entry.world_size}};
    item.update(FigureJson(entry.bytes));
    json["runtime"].push_back(std::move(item));
  }
  return FormatProfileJson(json);
}

}  // namespace zeroplan
