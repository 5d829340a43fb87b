// The built-in profile, and a corpus of broken ones: each a small change to the good one.
#include "hwprofiles/loader.h"

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

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

TEST_CASE("built-in profiles load") {
  REQUIRE(!ProfileNames().empty());
  for (const std::string& name : ProfileNames()) {
    const HardwareProfile profile = LoadProfile(name);
    CHECK(profile.name == name);
    CHECK(profile.source == "built in");
  }
}

TEST_CASE("the default profile's figures, in base units") {
  const HardwareProfile h200 = LoadProfile(std::string(kDefaultProfile));
  CHECK(h200.gpu.memory.value == 141e9);
  CHECK(h200.gpu.memory.source == FigureSource::kDatasheet);
  CHECK(h200.gpu.usable_memory.value == doctest::Approx(139.8 * (1 << 30)));
  CHECK(h200.gpu.hbm_bandwidth.value == 4.8e12);
  CHECK(h200.gpu.dense_peaks.at(Dtype::kBF16).value == doctest::Approx(989.4e12));
  CHECK(h200.gpu.sm_count.value == 132);
  CHECK(h200.node.gpus.value == 8);
  CHECK(h200.node.pcie.both_all->value == doctest::Approx(235e9));
  CHECK(h200.network->bandwidth_per_gpu.value == doctest::Approx(50e9));  // 400 Gb/s
  CHECK(DefaultDtype(h200) == Dtype::kBF16);
}

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
      {"/gpu/peaks/bf16/measured/value", 995, {"gpu.peaks.bf16.measured.value", "995"}},
      {"/gpu/peaks/bf16", null, {"gpu.peaks.bf16.dense", "missing"}},
      {"/gpu/capabilities/bf16", "yes", {"gpu.capabilities.bf16", "yes", "true or false"}},
      {"/node/gpus/value", 0, {"node.gpus.value", "0"}},
      {"/node/pcie/to_device_all/value", 20, {"node.pcie.to_device_single", "to_device_all"}},
      {"/network/bandwidth_per_gpu/unit", "Gb", {"network.bandwidth_per_gpu.unit", "Gb/s"}},
      {"/runtime", Json::array(), {"runtime", "at least one"}},
      {"/runtime/0/world_size", 0, {"runtime.0.world_size", "0"}},
      {"/runtime/0/world_size", 2, {"runtime.1.world_size", "rise"}},
      {"/runtime/0/value", 1e6, {"runtime.0.value", "not physical"}},
      {"/comment", "hello", {"comment", "unknown key"}},
  };
  for (const Broken& broken : corpus) {
    Json json = Good();
    const Json::json_pointer pointer(broken.pointer);
    if (broken.value.is_null()) {
      json.at(pointer.parent_pointer()).erase(pointer.back());
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
  // Every prefix of a good profile is refused, and none crashes.
  const std::string text = ProfileText(std::string(kDefaultProfile));
  const size_t end = text.rfind('}');
  for (size_t size = 0; size < end; size += 37) CHECK(ErrorOf(text.substr(0, size)) != "");
}

TEST_CASE("unknown names suggest the known, files load") {
  CHECK_THROWS_WITH_AS(LoadProfile("h200-141gb-smx"), doctest::Contains("h200-141gb-sxm"), Error);
  CHECK_THROWS_WITH_AS(LoadProfile("/nowhere/x.json"), doctest::Contains("/nowhere/x.json"), Error);
  const std::string file = "/tmp/zeroplan_profile_test.json";
  std::ofstream(file) << ProfileText(std::string(kDefaultProfile));
  CHECK(LoadProfile(file).source == file);
}

}  // namespace
}  // namespace zeroplan
