// Which GPUs multiply eight bits, and what a profile may say of it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

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
    const Figure& reachable = gpu.reachable_peaks.at(Dtype::kE4M3);
    const double gain = reachable.value / gpu.reachable_peaks.at(Dtype::kBF16).value;
    CHECK(gain < 2.01);
    // What is measured may be held back by power, at another clock than bf16's was.
    CHECK(gain > (reachable.source == FigureSource::kMeasured ? 1 : 1.7));
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
  nlohmann::json& rows = json["gpu"]["gemm"]["rows"];
  size_t first = 0;
  while (first < rows.size() && rows[first][1] != "e4m3") ++first;
  REQUIRE(first < rows.size());
  CHECK(ParseProfile(json.dump(), "test.json").gpu.gemm->rows[first].dtype == Dtype::kE4M3);
  const nlohmann::json measured = std::exchange(rows[first][5], 2100);
  CHECK(RefusedFor(json).find("dense e4m3 peak") != std::string::npos);
  rows[first][5] = measured;
  for (const auto& [which, value, said] :
       {std::tuple{"dense", 3958, "sparse"}, {"reachable", 2400, "2400"}}) {
    nlohmann::json broken = json;
    broken["gpu"]["peaks"]["e4m3"][which]["value"] = value;
    CHECK(RefusedFor(broken).find(said) != std::string::npos);
  }
  json["gpu"]["peaks"].erase("e4m3");
  message = RefusedFor(json);
  const std::string row = fmt::format("gpu.gemm.rows.{}", first);
  for (const char* word : {row.c_str(), "gpu.peaks.e4m3.dense", "missing", "give"}) {
    CHECK(message.find(word) != std::string::npos);
  }
}

}  // namespace
}  // namespace zeroplan
