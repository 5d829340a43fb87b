// Measurements of benchmarks/measure/results, and profiles fitted on a fixed part of them: what is
// in the profile is the fit set, everything else is held out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "cost_models/attention_cost.h"
#include "cost_models/collective_cost.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/host_cost.h"
#include "cost_models/memory_cost.h"
#include "hwprofiles/profile.h"

namespace zeroplan::measured {

struct ValidationRow {
  std::string group, name;
  bool fitted = false;
  double measured_seconds = 0, predicted_seconds = 0;
  double error() const { return predicted_seconds / measured_seconds - 1; }
};

inline nlohmann::json Read(const std::string& folder, const std::string& name) {
  std::ifstream in(folder + "/" + name);
  ZEROPLAN_CHECK(in.good(), "cannot read {}/{}", folder, name);
  return nlohmann::json::parse(in);
}

inline Figure Value(double value) {
  Figure figure;
  figure.value = value;
  return figure;
}

// ---- which rows are fitted ----

inline bool OneOf(int64_t value, std::initializer_list<int64_t> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}
inline bool FitsGemm(int64_t m, int64_t k, int64_t n) {
  if (m == k && k == n) return OneOf(m, {1024, 4096, 16384});
  if (!OneOf(std::min(k, n), {768, 1600, 4096})) return false;
  return n == 50304 ? OneOf(m, {2048, 16384}) : OneOf(m, {2048, 8192, 16384, 32768});
}
inline bool FitsCollective(int world_size, int64_t bytes) {
  if (world_size == 8) return true;
  return world_size == 2 &&
         OneOf(bytes, {16 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20, 1 << 30});
}

// ---- rows ----

inline Dtype DtypeOf(const std::string& name) {
  return name == "bf16" ? Dtype::kBF16 : name == "fp16" ? Dtype::kF16 : Dtype::kF32;
}
inline GemmKind KindOf(const std::string& name) {
  return name == "forward" ? GemmKind::kForward
         : name == "data"  ? GemmKind::kData
                           : GemmKind::kWeight;
}
inline CollectiveOp OpOf(const std::string& name) {
  return name == "all_reduce"   ? CollectiveOp::kAllReduce
         : name == "all_gather" ? CollectiveOp::kAllGather
                                : CollectiveOp::kReduceScatter;
}

struct CollectiveRow {
  std::string op;
  int world_size;
  int64_t bytes;
  double seconds;
};

inline std::vector<CollectiveRow> CollectiveRows(const std::string& folder) {
  std::vector<CollectiveRow> rows;
  for (const int world : {2, 4}) {
    const auto file = Read(folder, "h200_collectives_" + std::to_string(world) + ".json");
    for (const auto& row : file["collectives"])
      rows.push_back({row["op"], world, row["bytes"], row["seconds"]});
  }
  // The whole host of 8 H200, NCCL 2.28 without NVLS, as bus bandwidths in GB/s.
  struct Bus {
    const char* op;
    int64_t bytes;
    double gigabytes;
  };
  for (const Bus& bus : {Bus{"all_reduce", 1 << 30, 358}, Bus{"all_gather", 1 << 30, 342},
                         Bus{"reduce_scatter", 1 << 30, 341}, Bus{"all_reduce", 1 << 24, 216},
                         Bus{"all_gather", 1 << 24, 196}, Bus{"reduce_scatter", 1 << 24, 176}}) {
    const double rounds = bus.op == std::string("all_reduce") ? 2 : 1;
    rows.push_back({bus.op, 8, bus.bytes,
                    rounds * static_cast<double>(bus.bytes) * 7 / 8 / (bus.gigabytes * 1e9)});
  }
  return rows;
}

// `gpu`: "h200" or "h100"; the node is the H200's for both.
inline HardwareProfile FittedProfile(const std::string& folder, const std::string& gpu) {
  const auto file = Read(folder, gpu + "_gpu.json");
  HardwareProfile profile;
  profile.name = gpu;
  profile.gpu.name = file["gpu"];
  profile.gpu.architecture = "hopper";
  profile.gpu.bf16 = profile.gpu.fp16 = profile.gpu.flash_attention = true;
  profile.gpu.hbm_bandwidth = Value(gpu == "h200" ? 4.8e12 : 3.35e12);
  profile.gpu.sm_count = Value(132);
  profile.gpu.launch_overhead = Value(file["launch_seconds"]);
  profile.gpu.dense_peaks = {{Dtype::kBF16, Value(989.4e12)},
                             {Dtype::kF16, Value(989.4e12)},
                             {Dtype::kF32, Value(67e12)},
                             {Dtype::kE4M3, Value(1978.9e12)}};
  profile.gpu.gemm.emplace();
  for (const auto& row : file["gemm"]) {
    if (!FitsGemm(row["m"], row["k"], row["n"])) continue;
    const double flops =
        2.0 * row["m"].get<double>() * row["k"].get<double>() * row["n"].get<double>();
    profile.gpu.gemm->rows.push_back({KindOf(row["kind"]), DtypeOf(row["dtype"]), row["m"],
                                      row["k"], row["n"], flops / row["seconds"].get<double>()});
  }
  profile.gpu.attention.emplace();
  for (size_t i = 0; i < file["attention"].size(); i += 2) {
    const auto& row = file["attention"][i];
    const double tokens = row["seq"];
    const double flops = 2 * row["batch"].get<double>() * row["heads"].get<double>() * tokens *
                         tokens * row["head_dim"].get<double>();
    profile.gpu.attention->rows.push_back({row["batch"], row["heads"], row["seq"], row["head_dim"],
                                           flops / row["forward_seconds"].get<double>(),
                                           2.5 * flops / row["backward_seconds"].get<double>()});
  }
  profile.gpu.memory_kernels.emplace();
  for (const auto& row : file["memory"]) {
    if (row["op"] != "copy" || !OneOf(row["bytes"].get<int64_t>() >> 21, {1, 16, 128, 1024}))
      continue;
    profile.gpu.memory_kernels->rows.push_back({row["bytes"], row["seconds"]});
  }
  NodeProfile& node = profile.node;
  node.gpus = Value(8);
  node.gpu_link = Value(450e9);
  node.triad_bandwidth = Value(147e9);
  node.adam_bandwidth = Value(184e9);
  node.nvme_read = Value(2.4e9);
  node.nvme_write = Value(1.3e9);
  node.pcie.to_device_single = Value(54.7e9);
  node.pcie.from_device_single = Value(55.2e9);
  node.pcie.both_single = Value(97.5e9);
  node.pcie.to_device_all = Value(226e9);
  node.pcie.from_device_all = Value(128e9);
  node.pcie.both_all = Value(235e9);
  node.pcie.copies.emplace();
  for (const auto& row : file["pcie"]) {
    if (!OneOf(row["bytes"].get<int64_t>() >> 20, {1, 16, 256})) continue;
    node.pcie.copies->rows.push_back(
        {row["bytes"], row["to_device_seconds"], row["from_device_seconds"]});
  }
  node.collectives.emplace();
  for (const CollectiveRow& row : CollectiveRows(folder)) {
    if (!FitsCollective(row.world_size, row.bytes)) continue;
    node.collectives->rows.push_back(
        {OpOf(row.op), row.world_size, static_cast<double>(row.bytes), row.seconds});
  }
  return profile;
}

// ---- predicted beside measured ----

// Both directions at once, each of `bytes`: the slower one ends last.
inline double BothSeconds(const TransferCost& transfer, double bytes) {
  const double longer =
      std::max(transfer.Seconds(true, bytes, false), transfer.Seconds(false, bytes, false));
  return longer / transfer.BothShare();
}

// What issuing a call took PyTorch, which rows of small kernels hold and zeroplan's graphs do not
// pay: the fastest row that was fitted, of each kind. No call of these files is faster.
class CallSeconds {
 public:
  explicit CallSeconds(const GpuProfile& gpu) {
    for (const GemmRate& row : gpu.gemm->rows) {
      const double flops = 2.0 * static_cast<double>(row.m) * static_cast<double>(row.k) *
                           static_cast<double>(row.n);
      Lower(products_[{row.kind, row.dtype == Dtype::kF32}], flops / row.flops_per_second);
      Lower(least_product_[row.dtype == Dtype::kF32], flops / row.flops_per_second);
    }
    for (const AttentionRate& row : gpu.attention->rows) {
      const auto tokens = static_cast<double>(row.seq);
      const double flops =
          2 * static_cast<double>(row.batch * row.heads * row.head_dim) * tokens * tokens;
      Lower(forward_, flops / row.forward_flops_per_second);
      Lower(backward_, 2.5 * flops / row.backward_flops_per_second);
    }
    for (const MemoryKernelTime& row : gpu.memory_kernels->rows) Lower(memory_, row.seconds);
  }
  double Product(GemmKind kind, Dtype dtype) const {
    const bool fp32 = dtype == Dtype::kF32;
    const auto found = products_.find({kind, fp32});
    return found != products_.end() ? found->second : least_product_.at(fp32);
  }
  double forward() const { return forward_; }
  double backward() const { return backward_; }
  double memory() const { return memory_; }

 private:
  static void Lower(double& least, double seconds) {
    least = least == 0 ? seconds : std::min(least, seconds);
  }
  std::map<std::pair<GemmKind, bool>, double> products_;
  std::map<bool, double> least_product_;
  double forward_ = 0, backward_ = 0, memory_ = 0;
};

// Products, attention, memory kernels and copies of one GPU.
inline std::vector<ValidationRow> GpuRows(const std::string& folder, const std::string& gpu) {
  const HardwareProfile profile = FittedProfile(folder, gpu);
  const auto file = Read(folder, gpu + "_gpu.json");
  const GemmCost gemm(profile.gpu);
  const AttentionCost attention(profile.gpu, gemm);
  const MemoryCost memory(profile.gpu);
  const TransferCost transfer(profile, 1);
  const CallSeconds call(profile.gpu);
  std::vector<ValidationRow> rows;
  for (const auto& row : file["gemm"]) {
    const int64_t m = row["m"], k = row["k"], n = row["n"];
    const Dtype dtype = DtypeOf(row["dtype"]);
    rows.push_back({dtype == Dtype::kBF16 ? "gemm" : "gemm other dtype",
                    fmt::format("{} {} {}x{}x{}", std::string(row["dtype"]),
                                std::string(row["kind"]), m, k, n),
                    FitsGemm(m, k, n), row["seconds"],
                    std::max(call.Product(KindOf(row["kind"]), dtype),
                             gemm.Seconds(KindOf(row["kind"]), dtype, m, k, n))});
  }
  for (size_t i = 0; i < file["attention"].size(); ++i) {
    const auto& row = file["attention"][i];
    const AttentionShape shape = {row["batch"], row["seq"], row["heads"], row["head_dim"]};
    const std::string name =
        fmt::format("B{} T{} H{} D{}", shape.batch, shape.seq, shape.heads, shape.head_dim);
    rows.push_back({"attention forward", name, i % 2 == 0, row["forward_seconds"],
                    std::max(call.forward(), attention.ForwardSeconds(shape))});
    rows.push_back({"attention backward", name, i % 2 == 0, row["backward_seconds"],
                    std::max(call.backward(), attention.BackwardSeconds(shape))});
  }
  for (const auto& row : file["memory"]) {
    const std::string op = row["op"];
    const int64_t bytes = row["bytes"];
    const bool fitted = op == "copy" && OneOf(bytes >> 21, {1, 16, 128, 1024});
    rows.push_back({"memory kernel", fmt::format("{} {} MiB", op, bytes >> 20), fitted,
                    row["seconds"],
                    std::max(call.memory(), memory.Seconds(static_cast<double>(bytes)))});
  }
  for (const auto& row : file["pcie"]) {
    const int64_t bytes = row["bytes"];
    const bool fitted = OneOf(bytes >> 20, {1, 16, 256});
    const std::string size = fmt::format("{} MiB", bytes >> 20);
    rows.push_back({"copies both ways", size, false, row["both_seconds"],
                    BothSeconds(transfer, static_cast<double>(bytes))});
    for (const bool to_device : {true, false}) {
      const char* key = to_device ? "to_device" : "from_device";
      rows.push_back({"copy", std::string(key) + " " + size, fitted,
                      row[std::string(key) + "_seconds"],
                      transfer.Seconds(to_device, static_cast<double>(bytes), false)});
    }
  }
  return rows;
}

inline std::vector<ValidationRow> NodeRows(const std::string& folder) {
  const HardwareProfile profile = FittedProfile(folder, "h200");
  std::vector<ValidationRow> rows;
  for (const CollectiveRow& row : CollectiveRows(folder)) {
    const CollectiveCost cost(profile, {row.world_size, 8});
    rows.push_back({row.bytes >= 32 << 20 ? "collective from 32 MiB" : "collective below 32 MiB",
                    fmt::format("{} {} ranks {} KiB", row.op, row.world_size, row.bytes >> 10),
                    FitsCollective(row.world_size, row.bytes), row.seconds,
                    cost.Seconds(OpOf(row.op), static_cast<double>(row.bytes))});
  }
  for (const int gpus : {2, 4}) {
    const TransferCost transfer(profile, gpus);
    const auto file = Read(folder, fmt::format("h200_collectives_{}.json", gpus));
    for (const auto& row : file["pcie"]) {
      const std::string direction = row["direction"];
      const double bytes = row["bytes"];
      const double seconds = direction == "both"
                                 ? BothSeconds(transfer, bytes)
                                 : transfer.Seconds(direction == "to_device", bytes, false);
      rows.push_back({"copies of several GPUs", fmt::format("{} {} GPUs", direction, gpus), false,
                      row["seconds"], seconds});
    }
  }
  return rows;
}

struct GroupSummary {
  std::string group;
  size_t rows = 0, within = 0;
  double median = 0, ninety = 0, worst = 0;  // of |error|
  std::vector<const ValidationRow*> misses;
};
inline constexpr double kAllowedError = 0.10;

// Groups in order of appearance, of the fitted or the held-out rows.
inline std::vector<GroupSummary> Summarise(const std::vector<ValidationRow>& rows, bool fitted) {
  std::vector<GroupSummary> groups;
  std::vector<std::vector<double>> errors;
  for (const ValidationRow& row : rows) {
    if (row.fitted != fitted) continue;
    size_t at = 0;
    while (at < groups.size() && groups[at].group != row.group) ++at;
    if (at == groups.size()) {
      groups.push_back({row.group});
      errors.emplace_back();
    }
    const double error = std::abs(row.error());
    errors[at].push_back(error);
    ++groups[at].rows;
    if (error <= kAllowedError) {
      ++groups[at].within;
    } else {
      groups[at].misses.push_back(&row);
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    std::sort(errors[i].begin(), errors[i].end());
    const size_t last = errors[i].size() - 1;
    groups[i].median = errors[i][last / 2];
    groups[i].ninety = errors[i][(last * 9 + 9) / 10];
    groups[i].worst = errors[i].back();
  }
  return groups;
}

}  // namespace zeroplan::measured
