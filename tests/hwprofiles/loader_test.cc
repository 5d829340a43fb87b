// A corpus of broken profiles, each a small change to a good one; parts; files.
#include "hwprofiles/loader.h"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

Json Good() { return Json::parse(ProfileText(std::string(kDefaultProfile))); }

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
      {"/gpu/sm_count/value", 131.5, {"gpu.sm_count.value", "131.5", "whole"}},
      {"/gpu/architecture", "fermi", {"gpu.architecture", "fermi", "hopper"}},
      {"/gpu/peaks/bf16/dense/value", 1979, {"gpu.peaks.bf16.dense.value", "1979", "sparse"}},
      {"/gpu/peaks/fp32/dense/value", 494.7, {"gpu.peaks.fp32.dense.value", "494.7"}},
      {"/gpu/peaks/bf16/dense/sparsity", "2:4", {"gpu.peaks.bf16.dense.sparsity", "2:4", "dense"}},
      {"/gpu/peaks/bf16/dense/sparsity", null, {"gpu.peaks.bf16.dense.sparsity", "missing"}},
      {"/gpu/peaks/bf16/sparse", 1979, {"gpu.peaks.bf16.sparse", "dense"}},
      {"/gpu/peaks/bf16/reachable/value", 995, {"gpu.peaks.bf16.reachable.value", "995"}},
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
      {"/gpu/gemm/rows/3/1", "fp8", {"gpu.gemm.rows.3", "dtype", "fp8", "bf16"}},
      {"/gpu/gemm/rows/3/2", 0, {"gpu.gemm.rows.3", "m: 0", "whole"}},
      {"/gpu/gemm/rows/3/2", 1.5, {"gpu.gemm.rows.3", "m: 1.5", "whole"}},
      {"/gpu/gemm/rows/3/5", -1, {"gpu.gemm.rows.3", "rate: -1", "1e-09 to 1e+18"}},
      {"/gpu/gemm/rows/3/5", "700", {"gpu.gemm.rows.3", "rate", "1e-09 to 1e+18"}},
      {"/gpu/gemm/rows/3/5", 1100, {"gpu.gemm.rows.3", "1100", "dense bf16 peak"}},
      {"/gpu/gemm/rows/3",
       Json::array({"forward", "bf16", 2048, 768, 2304, 400}),
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
      {"/link/collectives/rows/5/3", 100, {"link.collectives.rows.5", "link.bandwidth"}},
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
  CHECK_THROWS_WITH_AS(LoadProfile("b300"), doctest::Contains("b300-288gb-sxm, dgx-b300"), Error);
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

}  // namespace
}  // namespace zeroplan
