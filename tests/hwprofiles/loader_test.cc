// A corpus of broken profiles, each a small change to a good one; parts; files.
#include "hwprofiles/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "hwprofiles/parts.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// With copies as well, which a measured GPU has within its kernels.
Json Good() {
  Json json = Json::parse(ProfileText(MeasuredH200()));
  json["gpu"]["memory_kernels"] = Json::parse(R"({"unit": "us", "source": "measured",
      "reference": "ours", "columns": ["bytes", "time"], "rows": [[2097152, 4], [33554432, 14],
      [268435456, 70], [1073741824, 260]]})");
  return json;
}

std::string ErrorOf(const std::string& text) {
  try {
    ParseProfile(text, "test.json");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

struct Broken {
  const char* pointer;  // what is changed; value null: removed
  Json value;
  std::vector<const char*> said;
};

TEST_CASE("runtime between measured world sizes is linear in the logarithm") {
  HardwareProfile profile;
  auto entry = [](int world_size, double bytes) {
    RuntimeOverhead overhead;
    overhead.world_size = world_size;
    overhead.bytes.value = bytes;
    return overhead;
  };
  profile.runtime = {entry(1, 1000), entry(8, 4000)};
  CHECK(RuntimeBytes(profile, 1) == 1000);
  CHECK(RuntimeBytes(profile, 2) == doctest::Approx(2000));  // log2: a third of the way
  CHECK(RuntimeBytes(profile, 4) == doctest::Approx(3000));
  CHECK(RuntimeBytes(profile, 8) == 4000);
  CHECK(RuntimeBytes(profile, 1024) == 4000);
  profile.runtime = {entry(4, 1000), entry(8, 4000)};
  CHECK(RuntimeBytes(profile, 1) == 1000);
}

TEST_CASE("what a communicator takes of the runtime goes by the same rule") {
  HardwareProfile profile;
  profile.runtime.resize(3);
  profile.runtime[1].world_size = 4;
  profile.runtime[2].world_size = 16;
  for (RuntimeOverhead& entry : profile.runtime) entry.bytes.value = 1000;
  CHECK(CommunicatorBytes(profile, 4) == 0);  // not known
  profile.runtime[1].communicator.emplace().value = 200;
  profile.runtime[2].communicator.emplace().value = 300;
  CHECK(CommunicatorBytes(profile, 1) == 0);
  CHECK(CommunicatorBytes(profile, 4) == 200);
  CHECK(CommunicatorBytes(profile, 8) == doctest::Approx(250));
  CHECK(CommunicatorBytes(profile, 64) == 300);
  CHECK(CommunicatorBytes(LoadProfile("hgx-h200"), 2) > 0);
}

TEST_CASE("broken profiles are refused with file, key, value and fix") {
  const Json null;
  const std::vector<Broken> corpus = {
      {"/schema", "zeroplan.hw/9", {"schema", "zeroplan.hw/9", "zeroplan.hw/1"}},
      {"/name", null, {"name", "missing"}},
      {"/name", 3, {"name", "3"}},
      {"/gpu", null, {"gpu.name", "missing"}},
      {"/gpu/memory", null, {"gpu.memory", "missing"}},
      {"/gpu/memory", 141e9, {"gpu.memory", "no source"}},
      {"/gpu/memory/source", null, {"gpu.memory.source", "missing", "datasheet"}},
      {"/gpu/memory/source", "rumour", {"gpu.memory.source", "rumour", "datasheet"}},
      {"/gpu/memory/source", 1, {"gpu.memory.source", "1", "datasheet"}},
      {"/gpu/memory/unit", null, {"gpu.memory.unit", "missing", "GiB"}},
      {"/gpu/memory/unit", "GB/s", {"gpu.memory.unit", "GB/s", "GiB"}},
      {"/gpu/memory/unit", "gigs", {"gpu.memory.unit", "gigs"}},
      {"/gpu/memory/unit", "TB", {"gpu.memory.value", "141", "TB", "not physical"}},
      {"/gpu/memory/reference", null, {"gpu.memory.reference", "missing"}},
      {"/gpu/memory/reference", "", {"gpu.memory.reference"}},
      {"/gpu/memory/value", null, {"gpu.memory.value", "missing"}},
      {"/gpu/memory/value", "141", {"gpu.memory.value", "not a number"}},
      {"/gpu/memory/value", -141, {"gpu.memory.value", "-141", "not physical"}},
      {"/gpu/memory/value", 0, {"gpu.memory.value", "not physical"}},
      {"/gpu/memory/vlaue", 141, {"gpu.memory.vlaue", "value"}},
      {"/gpu/usable_memory/value", 180, {"gpu.usable_memory.value", "180", "gpu.memory"}},
      {"/gpu/hbm_bandwidth/unit", "Tb/s", {"gpu.copy_bandwidth", "gpu.hbm_bandwidth"}},
      {"/gpu/hbm_bandwidth/value", 4800, {"gpu.hbm_bandwidth.value", "4800"}},
      {"/gpu/copy_bandwidth/unit", "GB/s", {"gpu.copy_bandwidth.value", "not physical", "50 GB/s"}},
      {"/gpu/peaks/fp32/reachable/unit",
       "GFLOP/s",
       {"gpu.peaks.fp32.reachable.value", "100 GFLOP/s"}},
      {"/gpu/sm_count/value", 131.5, {"gpu.sm_count.value", "131.5", "whole"}},
      {"/gpu/architecture", "fermi", {"gpu.architecture", "fermi", "hopper"}},
      {"/gpu/peaks/bf16/dense/value", 1979, {"gpu.peaks.bf16.dense.value", "1979", "sparse"}},
      {"/gpu/peaks/fp32/dense/value", 494.7, {"gpu.peaks.fp32.dense.value", "494.7"}},
      {"/gpu/peaks/bf16/dense/sparsity", "2:4", {"gpu.peaks.bf16.dense.sparsity", "2:4", "dense"}},
      {"/gpu/peaks/bf16/dense/sparsity", null, {"gpu.peaks.bf16.dense.sparsity", "missing"}},
      {"/gpu/peaks/bf16/sparse", 1979, {"gpu.peaks.bf16.sparse", "dense"}},
      {"/gpu/peaks/bf16/reachable/value", 1195, {"gpu.peaks.bf16.reachable.value", "1195"}},
      {"/gpu/peaks/bf16", null, {"gpu.peaks.bf16.dense", "missing"}},
      {"/gpu/capabilities/bf16", "yes", {"gpu.capabilities.bf16", "yes", "true or false"}},
      {"/gpu/peaks/bf16/measured", 700, {"gpu.peaks.bf16.measured", "unknown key"}},
      {"/gpu/launch_overhead", null, {"gpu.launch_overhead", "missing"}},
      {"/gpu/launch_overhead/unit", "GB", {"gpu.launch_overhead.unit", "GB", "us"}},
      {"/gpu/launch_overhead/unit", "s", {"gpu.launch_overhead.value", "not physical"}},
      {"/gpu/driver_names", "H200", {"gpu.driver_names", "list"}},
      {"/gpu/attention_forward",
       Json{{"value", 500}, {"unit", "TFLOP/s"}, {"source", "measured"}, {"reference", "ours"}},
       {"gpu.attention_backward", "missing"}},
      {"/gpus/value", 0, {"gpus.value", "0"}},
      {"/host", null, {"host.memory", "missing"}},
      {"/pcie/to_device_all/value", 20, {"pcie.to_device_single", "to_device_all"}},
      {"/link/kind", null, {"link.kind", "missing"}},
      {"/link/kind", "infinity-fabric", {"link.kind", "infinity-fabric", "nvlink or pcie"}},
      {"/link/overlapped_compute/value", 1.2, {"link.overlapped_compute.value", "1.2"}},
      {"/link/overlapped_compute/unit", "%", {"link.overlapped_compute.unit", "ratio"}},
      {"/network/bandwidth_per_node/unit", "Gb", {"network.bandwidth_per_node.unit", "Gb/s"}},
      {"/network/bandwidth_per_gpu", 5, {"network.bandwidth_per_gpu", "unknown key"}},
      {"/network/latency", null, {"network.latency", "missing"}},
      {"/network/latency/unit", "s", {"network.latency.value", "not physical"}},
      {"/network/name", null, {"network.name", "missing"}},
      // Tables.
      {"/gpu/gemm", 5, {"gpu.gemm", "columns"}},
      {"/gpu/gemm/unit", "us", {"gpu.gemm.unit", "us", "TFLOP/s"}},
      {"/gpu/gemm/source", null, {"gpu.gemm.source", "missing"}},
      {"/gpu/gemm/reference", "", {"gpu.gemm.reference"}},
      {"/gpu/gemm/columns", null, {"gpu.gemm.columns", "missing"}},
      {"/gpu/gemm/columns/0", "type", {"gpu.gemm.columns", "type", "kind"}},
      {"/gpu/gemm/comment", "hello", {"gpu.gemm.comment", "unknown key"}},
      {"/gpu/gemm/rows", Json::array(), {"gpu.gemm.rows", "at least one"}},
      {"/gpu/gemm/rows/3", 7, {"gpu.gemm.rows.3", "7", "6 values"}},
      {"/gpu/gemm/rows/3/5", null, {"gpu.gemm.rows.3", "6 values"}},
      {"/gpu/gemm/rows/3/0", "backward", {"gpu.gemm.rows.3", "kind", "backward", "weight"}},
      {"/gpu/gemm/rows/3/1", "fp8", {"gpu.gemm.rows.3", "dtype", "fp8", "bf16", "e4m3"}},
      {"/gpu/gemm/rows/3/2", 0, {"gpu.gemm.rows.3", "m: 0", "whole"}},
      {"/gpu/gemm/rows/3/2", 1.5, {"gpu.gemm.rows.3", "m: 1.5", "whole"}},
      {"/gpu/gemm/rows/3/5", -1, {"gpu.gemm.rows.3", "rate: -1", "1e-09 to 1e+18"}},
      {"/gpu/gemm/rows/3/5", "700", {"gpu.gemm.rows.3", "rate", "1e-09 to 1e+18"}},
      {"/gpu/gemm/rows/3/5", 1100, {"gpu.gemm.rows.3", "1100", "dense bf16 peak"}},
      {"/gpu/gemm/rows/3",
       Json::array({"forward", "bf16", 512, 256, 768, 40}),
       {"gpu.gemm.rows.3", "again", "row 0"}},
      {"/gpu/attention/rows/2/4", 1100, {"gpu.attention.rows.2", "1100", "peak"}},
      {"/gpu/attention/rows/2/3", -64, {"gpu.attention.rows.2", "head_dim: -64"}},
      {"/gpu/capabilities/flash_attention", false, {"gpu.attention", "fused"}},
      {"/gpu/memory_kernels/rows/3/1", 1, {"gpu.memory_kernels.rows.3", "hbm_bandwidth"}},
      {"/gpu/memory_kernels/rows/0/0", 0, {"gpu.memory_kernels.rows.0", "bytes: 0"}},
      {"/pcie/copies/rows/2/1", 1000, {"pcie.copies.rows.2", "pcie.to_device_single"}},
      {"/pcie/copies/rows/2/2", 1000, {"pcie.copies.rows.2", "pcie.from_device_single"}},
      {"/link/collectives/rows/0/0", "all_to_all", {"link.collectives.rows.0", "all_to_all"}},
      {"/link/collectives/rows/0/1", 16, {"link.collectives.rows.0", "16", "2 to 8"}},
      {"/link/collectives/rows/0/1", 1, {"link.collectives.rows.0", "1", "2 to 8"}},
      {"/link/collectives/rows/8/3", 100, {"link.collectives.rows.8", "link.bandwidth"}},
      // Parts.
      {"/gpu", "h200-141gb-smx", {"gpu", "h200-141gb-smx", "did you mean \"h200-141gb-sxm\""}},
      {"/network", "ib-9000", {"network", "ib-9000", "ib-400"}},
      {"/gpu", Json{{"base", "h300"}}, {"gpu.base", "h300"}},
      {"/gpu", Json{{"base", 5}}, {"gpu.base", "5"}},
      {"/gpu", 5, {"gpu.name", "missing"}},
      {"/gpu", Json::array(), {"gpu.name", "missing"}},
      {"/link", Json::array({1, 2}), {"link", "missing"}},
      {"/pcie/copies", Json::array(), {"pcie.copies", "table"}},
      {"/runtime", "h200", {"runtime", "h200", "cuda-nccl"}},
      {"/runtime", Json{{"value", 5}}, {"runtime", "list"}},
      {"/runtime", Json::array({5}), {"runtime.0.world_size", "missing"}},
      {"/runtime", Json{{"base", "cuda-nccl"}}, {"runtime.base", "list"}},
      {"/runtime", Json::array(), {"runtime", "at least one"}},
      {"/runtime/0/world_size", 0, {"runtime.0.world_size", "0"}},
      {"/runtime/0/world_size", 2, {"runtime.1.world_size", "rise"}},
      {"/runtime/0/value", 1e6, {"runtime.0.value", "not physical"}},
      {"/runtime/1/communicator", 5, {"runtime.1.communicator", "5"}},
      {"/runtime/1/communicator/source", null, {"runtime.1.communicator.source", "missing"}},
      {"/runtime/1/communicator/value", 2000, {"runtime.1.communicator", "more than half"}},
      {"/comment", "hello", {"comment", "unknown key"}},
  };
  for (const Broken& broken : corpus) {
    Json json = Good();
    const Json::json_pointer pointer(broken.pointer);
    if (broken.value.is_null()) {
      json = json.patch(Json::array({{{"op", "remove"}, {"path", broken.pointer}}}));
    } else {
      json[pointer] = broken.value;
    }
    const std::string message = ErrorOf(json.dump());
    INFO(std::string(broken.pointer), " = ", broken.value.dump(), "\n", message);
    CHECK(message.starts_with("test.json: "));
    for (const char* word : broken.said) CHECK(message.find(word) != std::string::npos);
  }
}

TEST_CASE("text that is no profile") {
  CHECK(ErrorOf("").find("not valid JSON") != std::string::npos);
  CHECK(ErrorOf("{").find("not valid JSON") != std::string::npos);
  CHECK(ErrorOf("[]").find("object") != std::string::npos);
  CHECK(ErrorOf("{}").find("schema") != std::string::npos);
  CHECK(ErrorOf(R"({"schema": 1e999})").find("not valid JSON") != std::string::npos);
  CHECK(ErrorOf(std::string(100000, '[')).find("levels deep") != std::string::npos);
  // Every prefix of a good profile is refused, and none crashes.
  const std::string text = ProfileText(std::string(kDefaultProfile));
  const size_t end = text.rfind('}');
  for (size_t size = 0; size < end; size += 37) CHECK(ErrorOf(text.substr(0, size)) != "");
}

std::string ManyKeys(int count) {
  Json profile = Good();
  for (int i = 0; i < count; ++i) profile["gpu"][fmt::format("key_{}", i)] = i;
  return profile.dump();
}

TEST_CASE("a profile of very many keys is refused, before they are looked at one by one") {
  CHECK(ErrorOf(ManyKeys(80'000)).find("has more than 10000 values; this is no hardware profile") !=
        std::string::npos);
  CHECK(ErrorOf(ManyKeys(5'000)).find("unknown key") != std::string::npos);
}

TEST_CASE("a profile of very many keys is refused at once" * doctest::test_suite("timing")) {
  const std::string many = ManyKeys(80'000), most = ManyKeys(5'000);
  const auto begin = std::chrono::steady_clock::now();
  ErrorOf(many);
  ErrorOf(most);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK(seconds.count() < 1.5);  // 0.2 s; it was 13 s
}

TEST_CASE("unknown names suggest the known, files load") {
  CHECK_THROWS_WITH_AS(LoadProfile("h200-141gb-smx"), doctest::Contains("h200-141gb-sxm"), Error);
  CHECK(LoadProfile("b300").name == "b300-288gb-sxm");  // who names a card means one of it
  CHECK_THROWS_WITH_AS(LoadProfile("t5"), doctest::Contains("zeroplan hw list"), Error);
  CHECK_THROWS_WITH_AS(LoadProfile("/nowhere/x.json"), doctest::Contains("/nowhere/x.json"), Error);
  const TempDir folder;
  const std::string file = folder.path("profile.json");
  std::ofstream(file) << ProfileText(std::string(kDefaultProfile));
  CHECK(LoadProfile(file).source == file);
}

TEST_CASE("a file names parts, changes them, or holds them in full") {
  const std::string text = R"({
    "schema": "zeroplan.hw/1", "name": "mine", "description": "two cards",
    "gpus": {"value": 2, "unit": "count", "source": "measured", "reference": "counted"},
    "gpu": {"base": "rtx4090", "usable_memory": {"value": 22, "unit": "GiB", "source": "measured",
            "reference": "with a display"}, "driver_names": null},
    "host": {"base": "generic-cpu", "nvme_capacity": null},
    "pcie": "gen4-x16", "link": "pcie4-staged", "network": "eth-25", "runtime": "cuda-nccl"})";
  const HardwareProfile mine = ParseProfile(text, "mine.json");
  const HardwareProfile one = LoadProfile("rtx4090");
  CHECK(mine.node.gpus.value == 2);
  CHECK(mine.gpu.usable_memory.value == doctest::Approx(22.0 * (1 << 30)));
  CHECK(mine.gpu.memory == one.gpu.memory);
  CHECK(mine.node.pcie == one.node.pcie);
  CHECK(!mine.node.nvme_capacity.has_value());
  CHECK(*mine.network == LoadNetwork("eth-25"));
  CHECK(mine.runtime == one.runtime);
  // A changed figure needs its own source: half of an old one is none.
  Json half = Json::parse(text);
  half["gpu"]["usable_memory"].erase("reference");
  CHECK(ErrorOf(half.dump()).find("gpu.usable_memory.reference") != std::string::npos);
}

TEST_CASE("a network by name or by rate") {
  const HardwareProfile with = LoadProfile("hgx-h200");
  const HardwareProfile without = LoadProfile("rtx4090");
  HardwareProfile profile = with;
  ApplyNetwork(profile, "eth-25");
  CHECK(*profile.network == LoadNetwork("eth-25"));
  CHECK(profile.network->bandwidth_per_node.value == doctest::Approx(25e9 / 8));
  const struct {
    const char* text;
    double bytes_per_second;
  } rates[] = {{"25Gb", 25e9 / 8},
               {"100Gb/s", 100e9 / 8},
               {"8x400Gb", 400e9},
               {"2x12.5GB/s", 25e9},
               {"12.5GB/s", 12.5e9}};
  for (const auto& rate : rates) {
    INFO(std::string(rate.text));
    profile = with;
    ApplyNetwork(profile, rate.text);
    CHECK(profile.network->bandwidth_per_node.value == doctest::Approx(rate.bytes_per_second));
    CHECK(profile.network->bandwidth_per_node.reference.find(rate.text) != std::string::npos);
    CHECK(profile.network->latency == with.network->latency);
    CHECK(profile.node == with.node);
    profile = without;
    ApplyNetwork(profile, rate.text);
    CHECK(profile.network->latency == LoadNetwork("eth-10").latency);
  }
}

TEST_CASE("a link replaces the bandwidth and what was measured over the old one") {
  HardwareProfile profile = LoadProfile("hgx-h200");
  REQUIRE(profile.node.collectives.has_value());
  ApplyGpuLink(profile, "300GB/s");
  CHECK(profile.node.gpu_link.value == doctest::Approx(300e9));
  CHECK(!profile.node.collectives.has_value());
  CHECK(profile.node.overlapped_compute.has_value());
  ApplyGpuLink(profile, "200Gb/s");
  CHECK(profile.node.gpu_link.value == doctest::Approx(25e9));
}

TEST_CASE("rates that are none") {
  for (const char* text : {"", "fast", "ib-399", "25", "-25Gb", "0Gb", "0x400Gb", "8x", "x400Gb",
                           "8x8x400Gb", "1e30Gb", "1Kb/s", "9999x400Gb", "nanGb"}) {
    INFO(std::string(text));
    HardwareProfile profile = LoadProfile("rtx4090");
    CHECK_THROWS_WITH_AS(ApplyNetwork(profile, text), doctest::Contains("⟦network⟧"), Error);
    CHECK(!profile.network.has_value());
  }
  for (const char* text : {"", "eth-25", "25", "0GB/s", "1Kb/s", "1e9GB/s"}) {
    INFO(std::string(text));
    HardwareProfile profile = LoadProfile("rtx4090");
    CHECK_THROWS_WITH_AS(ApplyGpuLink(profile, text), doctest::Contains("⟦intra_node_bandwidth⟧"),
                         Error);
  }
  HardwareProfile profile = LoadProfile("rtx4090");
  CHECK_THROWS_WITH_AS(ApplyNetwork(profile, "ib-40"), doctest::Contains("did you mean"), Error);
}

TEST_CASE("names that people and drivers use") {
  const struct {
    const char* given;
    const char* profile;
  } names[] = {{"RTX 4090", "rtx4090"},
               {"rtx-4090", "rtx4090"},
               {"rtx_4090", "rtx4090"},
               {"4090", "rtx4090"},
               {"NVIDIA GeForce RTX 4090", "rtx4090"},
               {"4090 laptop", "rtx4090-laptop"},
               {"NVIDIA GeForce RTX 5090 Laptop GPU", "rtx5090-laptop"},
               {"RTX 4070 Ti", "rtx4070ti"},
               {"rtx 4070ti super", "rtx4070ti-super"},
               {"RTX 4070 SUPER", "rtx4070-super"},
               {"3090", "rtx3090"},
               {"3090 Ti", "rtx3090ti"},
               {"L4", "l4"},
               {"NVIDIA L40S", "l40s"},
               {"A10", "a10"},
               {"a10g", "a10g"},
               {"Tesla T4", "t4"},
               {"A2", "a2"},
               {"A6000", "rtxa6000"},
               {"RTX 6000 Ada Generation", "rtx6000-ada"},
               {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"},
               {"RTX PRO 6000", "rtx-pro-6000"},
               {"A100-SXM4-80GB", "a100-80gb-sxm"},
               {"NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"},
               {"a100 sxm 80 GB", "a100-80gb-sxm"},
               {"NVIDIA A100 80GB PCIe", "a100-80gb-pcie"},
               {"H100 80GB HBM3", "h100-80gb-sxm"},
               {"H100 SXM", "h100-80gb-sxm"},
               {"h100sxm", "h100-80gb-sxm"},
               {"H100 NVL", "h100-94gb-nvl"},
               {"NVIDIA H200", "h200-141gb-sxm"},
               {"h200-141", "h200-141gb-sxm"},
               {"B200", "b200-180gb-sxm"},
               {"Tesla V100-SXM2-16GB", "v100-16gb-sxm2"},
               {"GH200 480GB", "gh200-96gb"},
               {"2080 Ti", "rtx2080ti"},
               {"2x RTX 3090", "2x-rtx3090"},
               {"8x4090", "8x-rtx4090"},
               {"DGX H100", "dgx-h100"},
               {"HGX H100", "dgx-h100"},
               {"dgx-h200", "hgx-h200"},
               {"p5.48xlarge", "p5-48xlarge"},
               {"g4dn.xlarge", "g4dn-xlarge"},
               {"Standard_ND96isr_H100_v5", "nd96isr-h100-v5"},
               {"a2-ultragpu-8g", "a2-ultragpu-8g"}};
  for (const auto& name : names) {
    INFO(std::string(name.given));
    CHECK(LoadProfile(name.given).name == name.profile);
    CHECK(ProfileText(name.given) == ProfileText(name.profile));
  }
}

TEST_CASE(
    "a name that fits several lists them with what differs, and one that fits none no other") {
  const auto error = [](const std::string& name) -> std::string {
    try {
      return "loads as " + LoadProfile(name).name;
    } catch (const Error& refused) {
      return refused.what();
    }
  };
  const auto says = [&](const char* name, const char* word) {
    const std::string message = error(name);
    INFO(message);
    CHECK(message.find(word) != std::string::npos);
  };
  says("rtx 6000", "\"rtx 6000\" is 2 of the built-in hardware profiles; use one of");
  says("rtx 6000", "rtx6000-ada (1 x NVIDIA RTX 6000 Ada Generation, 48 GB at 960 GB/s)");
  says("dgx a100", "dgx-a100-40gb (8 x NVIDIA A100 SXM 40 GB");
  says("4060", "(rtx4060ti-16gb is another card)");
  says("rtx", "stands in quotes, as \"RTX 4090\"");
  says("g5", "g5-48xlarge");
  says("h200-141gb-smx", "did you mean h200-141gb-sxm?");
  says("a3-highgpu", "did you mean a3-highgpu-8g?");
  // Another number is another card, and so are "Ti", "Super" and a laptop's.
  for (const char* name :
       {"l3", "a11", "4095", "rtx4091", "h10", "a1000", "rtx3070ti", "4090 ti", "4080 laptop",
        "rtx 2080", "", "-", "Voodoo2", "RTX PRO 6000 Blackwell Server Edition"}) {
    INFO(std::string(name), error(name));
    CHECK(error(name).find("is no built-in hardware profile") != std::string::npos);
    CHECK(error(name).find("; use a name of") != std::string::npos);
  }
}

// Figures and tables below `json`; each must have a source and a reference.
int CountSourced(const ProfileJson& json) {
  if (!json.is_structured()) return 0;
  if (json.is_object() && (json.contains("value") || json.contains("rows"))) {
    CHECK(json.at("source").is_string());
    CHECK(json.at("reference").get<std::string>().size() > 3);
    return 1;
  }
  int count = 0;
  for (const auto& item : json) count += CountSourced(item);
  return count;
}

TEST_CASE("every built-in machine loads, and every number has a source") {
  REQUIRE(ProfileNames().size() >= 110);
  for (const std::string& name : ProfileNames()) {
    INFO(name);
    const HardwareProfile profile = LoadProfile(name);
    CHECK(profile.name == name);
    CHECK(profile.source == "built in");
    CHECK(CountSourced(ParseJson(ProfileText(name), name)) >= 25);
    CHECK(profile.node.triad_bandwidth.has_value());
    CHECK(profile.node.adam_bandwidth.has_value());
    CHECK(profile.node.overlapped_compute.has_value());
    CHECK(profile.gpu.reachable_peaks.contains(DefaultDtype(profile)));
    CHECK(profile.gpu.reachable_peaks.contains(Dtype::kF32));
    // Whoever has several GPUs to a node can have several nodes.
    CHECK(profile.network.has_value() == (profile.node.gpus.value > 1));
  }
}

TEST_CASE("what is shown loads as the same profile") {
  for (const std::string& name : ProfileNames()) {
    INFO(name);
    const std::string text = ProfileText(name);
    HardwareProfile shown = ParseProfile(text, "shown.json");
    CHECK(shown.source == "shown.json");
    shown.source = "built in";
    CHECK(shown == LoadProfile(name));
    CHECK(FormatProfileJson(ParseJson(text, name)) == text);
  }
}

TEST_CASE("every part is used or can be: each composes and each GPU has a machine of its own") {
  for (const PartKind& kind : PartKinds()) {
    CHECK(!EmbeddedNames(kind.folder).empty());
    for (const std::string& name : EmbeddedNames(kind.folder)) {
      const ProfileJson part = ComposePart(kind, ProfileJson(name), name);
      CHECK(part.is_structured());
      CHECK((part.is_array() || !part.contains("base")));
    }
  }
  for (const std::string& gpu : EmbeddedNames("gpus")) {
    INFO(gpu);
    const HardwareProfile profile = LoadProfile(gpu);
    CHECK(profile.node.gpus.value == 1);
  }
}

TEST_CASE("fp32 peaks are what multiprocessors and clock give") {
  for (const std::string& name : EmbeddedNames("gpus")) {
    INFO(name);
    // 44 TFLOP/s at 78 SMs would be 2.2 GHz; NVIDIA publishes neither.
    if (name == "h20-96gb-sxm") continue;
    const GpuProfile gpu = LoadProfile(name).gpu;
    const bool half_width =
        gpu.architecture == "volta" || gpu.architecture == "turing" || gpu.architecture == "ampere";
    const double lanes = half_width ? 64 : 128;
    const double flops = 2 * lanes * gpu.sm_count.value * gpu.max_sm_clock.value;
    CHECK(gpu.dense_peaks.at(Dtype::kF32).value < 1.02 * flops);
    CHECK(gpu.dense_peaks.at(Dtype::kF32).value > 0.95 * flops);
  }
}

TEST_CASE("the default machine's figures, in base units") {
  const HardwareProfile h200 = LoadProfile(std::string(kDefaultProfile));
  CHECK(h200.gpu.memory.value == 141e9);
  CHECK(h200.gpu.memory.source == FigureSource::kDatasheet);
  CHECK(h200.gpu.usable_memory.value == doctest::Approx(139.8 * (1 << 30)));
  CHECK(h200.gpu.hbm_bandwidth.value == 4.8e12);
  CHECK(h200.gpu.dense_peaks.at(Dtype::kBF16).value == doctest::Approx(989.4e12));
  CHECK(h200.gpu.reachable_peaks.at(Dtype::kBF16).source == FigureSource::kMeasured);
  CHECK(h200.gpu.launch_overhead.value == doctest::Approx(1.851e-6));
  CHECK(h200.gpu.sm_count.value == 132);
  CHECK(h200.node.gpus.value == 8);
  // The host is the one of the DGX H200, with nothing of the machine that was measured.
  CHECK(h200.node.host_memory.value == 2e12);
  CHECK(h200.node.triad_bandwidth == LoadProfile("dgx-h100").node.triad_bandwidth);
  CHECK(h200.node.pcie == LoadProfile("dgx-h100").node.pcie);
  CHECK(h200.node.pcie.to_device_all->value == h200.node.pcie.from_device_all->value);
  CHECK(h200.node.link_kind == LinkKind::kNvlink);
  CHECK(h200.node.gpu_link.value == 450e9);
  CHECK(h200.node.overlapped_collective->value == doctest::Approx(0.7088));
  CHECK(h200.node.overlapped_collective->source == FigureSource::kMeasured);
  CHECK(h200.network->bandwidth_per_node.value == doctest::Approx(400e9));  // 8 x 400 Gb/s
  CHECK(h200.network->latency.value == doctest::Approx(14e-6));
  CHECK(DefaultDtype(h200) == Dtype::kBF16);
}

TEST_CASE("measured tables hold what was measured") {
  const HardwareProfile h200 = LoadProfile(MeasuredH200());
  const GemmRate row{GemmKind::kData, Dtype::kBF16, 16384, 1600, 50304, 710.3e12};
  CHECK(std::count(h200.gpu.gemm->rows.begin(), h200.gpu.gemm->rows.end(), row) == 1);
  const auto wide = [](const GemmRate& rate) { return rate.dtype != Dtype::kE4M3; };
  CHECK(h200.gpu.gemm->rows.size() == 416);
  CHECK(std::count_if(h200.gpu.gemm->rows.begin(), h200.gpu.gemm->rows.end(), wide) == 231);
  CHECK(h200.gpu.attention->rows.size() == 16);
  CHECK(h200.gpu.kernels->rows.size() == 54);
  CHECK_FALSE(h200.gpu.memory_kernels);
  CHECK(h200.gpu.power->limit.value == doctest::Approx(690).epsilon(0.02));
  CHECK(h200.node.pcie.copies->rows.size() == 3);
  // 12 heads of 64, 1024 tokens
  CHECK(h200.gpu.attention->rows[1].forward_flops_per_second == 112.7e12);
  CHECK(h200.gpu.attention->rows[1].backward_flops_per_second == 104.7e12);
  for (const CollectiveTime& row : h200.node.collectives->rows) {
    if (row.world_size == 8 && row.op == CollectiveOp::kAllReduce && row.bytes > 1e9) {
      // 358 GB/s bus bandwidth: 2 * 7/8 * bytes / seconds.
      CHECK(2 * 7.0 / 8 * row.bytes / row.seconds == doctest::Approx(358e9).epsilon(0.001));
    }
  }
}

TEST_CASE("cards of the consumer and server kind differ where they must") {
  const HardwareProfile volta = LoadProfile("dgx-2");
  CHECK(DefaultDtype(volta) == Dtype::kF16);
  CHECK(!volta.gpu.flash_attention);
  CHECK(volta.node.gpus.value == 16);
  // 16 GPUs behind four uplinks: together far less than 16 times one.
  CHECK(volta.node.pcie.to_device_all->value < 5 * volta.node.pcie.to_device_single.value);
  const HardwareProfile ada = LoadProfile("4x-rtx4090");
  CHECK(ada.node.link_kind == LinkKind::kPcie);
  CHECK(ada.node.gpu_link.value < ada.node.pcie.to_device_single.value);
  CHECK(ada.gpu.dense_peaks.at(Dtype::kF16).value == doctest::Approx(165.2e12));  // fp32 accumulate
  CHECK(LoadProfile("dgx-a100-40gb").node.host_memory.value == 1e12);
  CHECK(LoadProfile("dgx-a100-80gb").node.host_memory.value == 2e12);
}

TEST_CASE("what the host's side of a machine limits") {
  // GH200: no PCIe between GPU and host; both ways at once are what the host's memory gives.
  const HardwareProfile grace = LoadProfile("gh200-96gb");
  CHECK(grace.node.pcie.to_device_single.value > 5 * 55e9);
  CHECK(grace.node.pcie.both_single.value == grace.node.triad_bandwidth->value);
  CHECK(grace.node.host_memory.value == 480e9);
  // The p4d's Xeons have PCIe 3.0, whatever an A100 could do; the DGX A100's EPYCs have 4.0.
  CHECK(LoadProfile("p4d-24xlarge").node.pcie.to_device_single.value * 2 ==
        doctest::Approx(LoadProfile("dgx-a100-40gb").node.pcie.to_device_single.value));
  // A share of a host has a share of its memory bandwidth.
  CHECK(LoadProfile("g5-12xlarge").node.triad_bandwidth->value * 4 ==
        doctest::Approx(LoadProfile("g5-48xlarge").node.triad_bandwidth->value).epsilon(0.01));
  // A T4 has no bf16; GeForce and H20 are far below the clock's promise.
  CHECK(DefaultDtype(LoadProfile("t4")) == Dtype::kF16);
  CHECK(LoadProfile("rtx5090").gpu.dense_peaks.at(Dtype::kBF16).value == doctest::Approx(209.5e12));
  CHECK(LoadProfile("h20-96gb-sxm").gpu.dense_peaks.at(Dtype::kBF16).value ==
        doctest::Approx(148e12));
}

TEST_CASE("loading the largest profile takes little of an estimate's 50 ms" *
          doctest::test_suite("timing")) {
  LoadProfile("hgx-h200");
  double best = 1;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    LoadProfile("hgx-h200");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  MESSAGE("LoadProfile(\"hgx-h200\"): ", best * 1e3, " ms");
  CHECK(best < 0.02);  // about 1 ms optimised; sanitizers take ten times that
}

}  // namespace

}  // namespace zeroplan
