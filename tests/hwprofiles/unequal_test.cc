// Hosts with GPUs of several kinds.
#include "hwprofiles/unequal.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

std::string Refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST_CASE("unequal: a slower card of the same memory gives every figure") {
  const NamedProfile named = FindProfile("4090+3090");
  const HardwareProfile& both = named.profile;
  const GpuProfile slow = LoadProfile("rtx3090").gpu, fast = LoadProfile("rtx4090").gpu;
  CHECK(named.gpus == 2);
  CHECK(both.name == "rtx4090+rtx3090");
  CHECK(both.node.gpus.value == 2);
  CHECK(both.node.gpu_link == LoadProfile("2x-rtx3090").node.gpu_link);
  REQUIRE(both.kinds.size() == 2);
  CHECK(both.kinds[0].gpu == fast);
  CHECK(both.kinds[1].gpu == slow);
  CHECK(both.gpu.name == "NVIDIA GeForce RTX 3090 (slowest of 2 kinds)");
  CHECK(both.gpu.architecture == slow.architecture);
  CHECK(both.gpu.usable_memory == slow.usable_memory);
  CHECK(both.gpu.hbm_bandwidth == slow.hbm_bandwidth);
  // The 3090 has no products of eight bits.
  CHECK(fast.dense_peaks.contains(Dtype::kE4M3));
  CHECK(both.gpu.dense_peaks == slow.dense_peaks);
  CHECK(both.gpu.reachable_peaks == slow.reachable_peaks);
  CHECK(both.gpu.board_power->value == (450 + 350) / 2);
  // In whatever order, and by whatever name.
  const GpuProfile other_order = FindProfile("RTX 3090 + RTX 4090").profile.gpu;
  CHECK(other_order.name == both.gpu.name);
  CHECK(other_order.dense_peaks == both.gpu.dense_peaks);
  CHECK(other_order.usable_memory == both.gpu.usable_memory);
}

TEST_CASE("unequal: of each figure the worst, whichever card has it") {
  // The T4 multiplies faster than it reads; the A10G has bf16 and more memory.
  const GpuProfile t4 = LoadProfile("t4").gpu, a10 = LoadProfile("a10").gpu;
  const GpuProfile both = FindProfile("a10+t4").profile.gpu;
  CHECK(!both.bf16);
  CHECK(both.fp16);
  CHECK(!both.dense_peaks.contains(Dtype::kBF16));
  for (const auto& [dtype, peak] : both.dense_peaks) {
    CHECK(peak.value == std::min(t4.dense_peaks.at(dtype).value, a10.dense_peaks.at(dtype).value));
  }
  CHECK(both.architecture == "turing");
  CHECK(both.hbm_bandwidth.value == std::min(t4.hbm_bandwidth.value, a10.hbm_bandwidth.value));
  CHECK(both.usable_memory == t4.usable_memory);
  const HardwareProfile sizes = FindProfile("2xa100-40gb-pcie+2xa100-80gb-pcie").profile;
  CHECK(sizes.node.gpus.value == 4);
  CHECK(sizes.gpu.usable_memory == LoadProfile("a100-40gb-pcie").gpu.usable_memory);
  CHECK(Has(UnequalNote(sizes), "has 1.24 times the memory bandwidth, and waits; it leaves "));
  CHECK(Has(UnequalNote(sizes), "of its memory free."));
  CHECK(!Has(UnequalNote(sizes), "By products alone"));
}

TEST_CASE("unequal: what is lost is said by the peaks, and what one kind alone would do") {
  // 160 TFLOP/s against 76.34 of each.
  const std::string note = UnequalNote(FindProfile("4090+3090").profile);
  CHECK(note.starts_with(
      "Unequal GPUs: 1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090. Ranks run in step"));
  CHECK(Has(note, "76.3 TFLOP/s of products in bf16, 936 GB/s"));
  CHECK(Has(note,
            "NVIDIA GeForce RTX 4090 has 2.09 times the products and 1.07 times the memory "
            "bandwidth, and waits."));
  CHECK(Has(note,
            "1 x NVIDIA GeForce RTX 4090 would be 1.04 times as fast as all 2; ⟦hw⟧ with these"));
  CHECK(!Has(UnequalNote(FindProfile("4090+2x3090").profile), "By products alone"));
  CHECK(UnequalNote(LoadProfile("2x-rtx4090")).empty());
}

TEST_CASE("unequal: cards add up, and nothing else does") {
  CHECK(FindProfile("4090+4090").profile == LoadProfile("2x-rtx4090"));
  CHECK(FindProfile("2x4090 + 3090 + 4090").profile.name == "3x-rtx4090+rtx3090");
  CHECK(Has(Refusal([] { FindProfile("4090+dgx-h100"); }), "\"dgx-h100\" is no number of cards"));
  CHECK(FindProfile("2xA100-40GB + 2xA100-80GB").profile ==
        FindProfile("2xa100-40gb+2xa100-80gb").profile);
  for (const std::string name : {"4090+", " + 4090", "4090++3090"}) {
    CHECK(Has(Refusal([&] { FindProfile(name); }), "⟦hw⟧: " + name + " has an empty name"));
  }
  CHECK(Has(Refusal([] { FindProfile("5x4090+4x3090"); }), "more cards than the 8"));
}

TEST_CASE("unequal: a profile names other GPUs, and is written as it was read") {
  const std::string text =
      R"({"schema": "zeroplan.hw/1", "name": "mine", "description": "two kinds",
    "gpus": {"value": 3, "unit": "count", "source": "measured", "reference": "counted"},
    "gpu": "rtx4090",
    "other_gpus": [{"gpu": {"base": "rtx3090", "usable_memory": {"value": 20, "unit": "GB",
        "source": "measured", "reference": "a display"}},
      "gpus": {"value": 1, "unit": "count", "source": "measured", "reference": "counted"}}],
    "host": "generic-cpu", "pcie": "gen4-x16", "link": "pcie4-staged", "runtime": "cuda-nccl"})";
  const HardwareProfile mine = ParseProfile(text, "mine.json");
  REQUIRE(mine.kinds.size() == 2);
  CHECK(mine.kinds[0].gpus.value == 2);
  CHECK(mine.gpu.usable_memory.value == 20e9);
  CHECK(ParseProfile(WriteProfile(mine), "mine.json") == mine);
  const HardwareProfile named = FindProfile("4090+3090").profile;
  CHECK(ParseProfile(WriteProfile(named), named.source) == named);
  CHECK(ParseProfile(ProfileText("4090+3090"), named.source) == named);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return Refusal([&] { ParseProfile(changed, "mine.json"); });
  };
  CHECK(Has(refused("\"value\": 3", "\"value\": 1"), "mine.json: gpus.value: 1 are all GPUs"));
  CHECK(Has(refused("\"rtx3090\"", "\"rtx3091\""), "rtx3091"));
  CHECK(
      Has(refused("\"value\": 20", "\"value\": 90"), "mine.json: other_gpus.0.gpu.usable_memory"));
  CHECK(Has(refused("\"usable_memory\"", "\"usable\""), "other_gpus.0"));
  CHECK(Has(refused("[{", "["), "JSON"));
}

}  // namespace
}  // namespace zeroplan
