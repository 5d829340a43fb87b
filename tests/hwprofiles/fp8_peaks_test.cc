// Which GPUs multiply eight bits, and what a profile may say of it.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/sanity.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

std::string RefusedFor(const nlohmann::json& profile) {
  try {
    ParseProfile(profile.dump(), "test.json");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST_CASE("GPUs from compute capability 8.9 on multiply eight bits, twice as fast as 16") {
  for (const std::string& name : EmbeddedNames("gpus")) {
    INFO(name);
    const GpuProfile gpu = LoadProfile(name).gpu;
    const bool has = ComputeCapability(gpu.architecture) >= 89;
    CHECK(gpu.dense_peaks.contains(Dtype::kE4M3) == has);
    CHECK(gpu.reachable_peaks.contains(Dtype::kE4M3) == has);
    CHECK((DenseFlopsPerClock(gpu.architecture, Dtype::kE4M3) > 0) == has);
    if (!has) continue;
    // Datasheets round: the L40S has 362.05 and 733.
    CHECK(gpu.dense_peaks.at(Dtype::kE4M3).value ==
          doctest::Approx(2 * gpu.dense_peaks.at(Dtype::kBF16).value).epsilon(0.025));
    const double gain =
        gpu.reachable_peaks.at(Dtype::kE4M3).value / gpu.reachable_peaks.at(Dtype::kBF16).value;
    CHECK(gain > 1.7);
    CHECK(gain < 2.01);
  }
}

TEST_CASE("eight bits are refused of a GPU without them, and rows without a peak") {
  nlohmann::json json = nlohmann::json::parse(ProfileText("a100-80gb-sxm"));
  json["gpu"]["peaks"]["e4m3"] = json["gpu"]["peaks"]["bf16"];
  std::string message = RefusedFor(json);
  for (const char* word : {"gpu.peaks.e4m3.dense", "ampere", "remove"}) {
    CHECK(message.find(word) != std::string::npos);
  }
  json = nlohmann::json::parse(ProfileText(MeasuredH200()));
  json["gpu"]["gemm"]["rows"][0][1] = "e4m3";
  json["gpu"]["gemm"]["rows"][0][5] = 1200;
  CHECK(ParseProfile(json.dump(), "test.json").gpu.gemm->rows[0].dtype == Dtype::kE4M3);
  json["gpu"]["gemm"]["rows"][0][5] = 2100;
  CHECK(RefusedFor(json).find("dense e4m3 peak") != std::string::npos);
  json["gpu"]["gemm"]["rows"][0][5] = 1200;
  for (const auto& [which, value, said] :
       {std::tuple{"dense", 3958, "sparse"}, {"reachable", 2400, "2400"}}) {
    nlohmann::json broken = json;
    broken["gpu"]["peaks"]["e4m3"][which]["value"] = value;
    CHECK(RefusedFor(broken).find(said) != std::string::npos);
  }
  json["gpu"]["peaks"].erase("e4m3");
  message = RefusedFor(json);
  for (const char* word : {"gpu.gemm.rows.0", "gpu.peaks.e4m3.dense", "missing", "give"}) {
    CHECK(message.find(word) != std::string::npos);
  }
}

}  // namespace
}  // namespace zeroplan
