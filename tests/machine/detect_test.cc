// Detection with names fed in: what drivers say, what machines come of it.
#include "machine/detect.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

constexpr double kDriverMib = 1024.0 * 1024;

TEST_CASE("the driver's names find the built-in GPUs") {
  const struct {
    DetectedGpu gpu;
    const char* part;
  } cases[] = {
      {{"Tesla V100-SXM3-32GB", 32510 * kDriverMib}, "v100-32gb-sxm3"},
      {{"NVIDIA A100-SXM4-40GB", 40960 * kDriverMib}, "a100-40gb-sxm"},
      {{"A100-SXM4-40GB", 40537 * kDriverMib}, "a100-40gb-sxm"},
      {{"NVIDIA A100-SXM4-80GB", 81920 * kDriverMib}, "a100-80gb-sxm"},
      {{"NVIDIA H100 80GB HBM3", 81559 * kDriverMib}, "h100-80gb-sxm"},
      {{"NVIDIA H200", 143771 * kDriverMib}, "h200-141gb-sxm"},
      {{"NVIDIA B200", 183359 * kDriverMib}, "b200-180gb-sxm"},
      {{"NVIDIA L40S", 46068 * kDriverMib}, "l40s"},
      {{"NVIDIA GeForce RTX 3090", 24576 * kDriverMib}, "rtx3090"},
      {{"NVIDIA GeForce RTX 4090", 24564 * kDriverMib}, "rtx4090"},
      {{"NVIDIA GeForce RTX 5090", 32607 * kDriverMib}, "rtx5090"},
      {{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887 * kDriverMib}, "rtx-pro-6000"},
      {{"NVIDIA RTX 6000 Ada Generation", 49140 * kDriverMib}, "rtx6000-ada"},
      {{"NVIDIA RTX A6000", 49140 * kDriverMib}, "rtxa6000"},
      {{"NVIDIA A10G", 23028 * kDriverMib}, "a10g"},
      {{"NVIDIA A100-PCIE-40GB", 40960 * kDriverMib}, "a100-40gb-pcie"},
      {{"NVIDIA A100 80GB PCIe", 81920 * kDriverMib}, "a100-80gb-pcie"},
      {{"NVIDIA H100 PCIe", 81559 * kDriverMib}, "h100-80gb-pcie"},
      {{"NVIDIA H100 NVL", 95830 * kDriverMib}, "h100-94gb-nvl"},
      {{"NVIDIA H20", 97871 * kDriverMib}, "h20-96gb-sxm"},
      {{"Tesla T4", 15360 * kDriverMib}, "t4"},
      {{"NVIDIA GH200 480GB", 97871 * kDriverMib}, "gh200-96gb"},
      {{"NVIDIA B300 SXM6 AC", 275040 * kDriverMib}, "b300-288gb-sxm"},
      {{"NVIDIA GeForce RTX 3090 Ti", 24564 * kDriverMib}, "rtx3090ti"},
      {{"NVIDIA GeForce RTX 4090 Laptop GPU", 16376 * kDriverMib}, "rtx4090-laptop"},
      {{"NVIDIA GeForce RTX 5090 Laptop GPU", 24463 * kDriverMib}, "rtx5090-laptop"},
      {{"NVIDIA GeForce RTX 3060", 12288 * kDriverMib}, "rtx3060"},
      {{"NVIDIA GeForce RTX 3080", 10240 * kDriverMib}, "rtx3080-10gb"},
      {{"NVIDIA GeForce RTX 3080", 12288 * kDriverMib}, "rtx3080-12gb"},
      {{"NVIDIA GeForce RTX 4060 Ti", 16380 * kDriverMib}, "rtx4060ti-16gb"},
      {{"NVIDIA GeForce RTX 4070 Ti SUPER", 16376 * kDriverMib}, "rtx4070ti-super"},
      {{"NVIDIA GeForce RTX 5080", 16303 * kDriverMib}, "rtx5080"},
      {{"NVIDIA GeForce RTX 2080 Ti", 11264 * kDriverMib}, "rtx2080ti"},
      {{"NVIDIA L4", 23034 * kDriverMib}, "l4"},
      {{"NVIDIA A10", 23028 * kDriverMib}, "a10"},
      {{"NVIDIA A2", 15356 * kDriverMib}, "a2"},
      {{"Tesla V100-SXM2-16GB", 16160 * kDriverMib}, "v100-16gb-sxm2"},
      {{"Tesla V100-SXM2-32GB", 32510 * kDriverMib}, "v100-32gb-sxm2"},
      {{"NVIDIA RTX 5000 Ada Generation", 32760 * kDriverMib}, "rtx5000-ada"},
      // Kin that is another card, one with other memory, and a slice of one.
      {{"NVIDIA GeForce RTX 3060", 8192 * kDriverMib}, ""},
      {{"NVIDIA GeForce RTX 4060 Ti", 8188 * kDriverMib}, ""},
      {{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887 * kDriverMib}, ""},
      {{"NVIDIA H20", 143771 * kDriverMib}, ""},
      {{"NVIDIA GeForce RTX 4090", 49140 * kDriverMib}, ""},
      {{"", 0}, ""},
  };
  for (const auto& known : cases) {
    INFO(known.gpu.name);
    CHECK(MatchGpu(known.gpu) == known.part);
  }
}

TEST_CASE("as many as a built-in machine has: that machine, with this host's memory and cores") {
  const std::vector<DetectedGpu> gpus(8, {"NVIDIA H200", 143771 * kDriverMib});
  const DetectedMachine machine = MatchMachine(gpus, {2e12, 96});
  REQUIRE(machine.profile.has_value());
  CHECK(machine.profile->name == "hgx-h200");
  CHECK(machine.found == "8 x NVIDIA H200");
  CHECK(machine.note.empty());
  CHECK(machine.profile->node.host_memory.value == 2e12);
  CHECK(machine.profile->node.cores.value == 96);
  CHECK(machine.profile->node.cores.source == FigureSource::kMeasured);
  CHECK(machine.profile->node.collectives == LoadProfile("hgx-h200").node.collectives);
  // What is not known of the host stays the profile's.
  CHECK(MatchMachine(gpus, {}).profile->node.host_memory ==
        LoadProfile("hgx-h200").node.host_memory);
}

TEST_CASE("where a maker's machine and a cloud's have the same GPUs, the maker's is taken") {
  const struct {
    DetectedGpu gpu;
    size_t count;
    const char* machine;
  } cases[] = {{{"NVIDIA A100-SXM4-40GB", 40960 * kDriverMib}, 8, "dgx-a100-40gb"},
               {{"NVIDIA A100-SXM4-80GB", 81920 * kDriverMib}, 8, "dgx-a100-80gb"},
               {{"NVIDIA H100 80GB HBM3", 81559 * kDriverMib}, 8, "dgx-h100"},
               {{"NVIDIA H200", 143771 * kDriverMib}, 8, "hgx-h200"},
               {{"NVIDIA B200", 183359 * kDriverMib}, 8, "dgx-b200"},
               {{"NVIDIA L40S", 46068 * kDriverMib}, 8, "8x-l40s"},
               {{"NVIDIA A10G", 23028 * kDriverMib}, 8, "g5-48xlarge"},
               {{"Tesla T4", 15360 * kDriverMib}, 4, "g4dn-12xlarge"},
               {{"Tesla V100-SXM2-32GB", 32510 * kDriverMib}, 8, "p3dn-24xlarge"},
               {{"NVIDIA A100 80GB PCIe", 81920 * kDriverMib}, 4, "4x-a100-80gb-pcie"}};
  for (const auto& known : cases) {
    INFO(known.gpu.name);
    const DetectedMachine machine =
        MatchMachine(std::vector<DetectedGpu>(known.count, known.gpu), {});
    REQUIRE(machine.profile.has_value());
    CHECK(machine.profile->name == known.machine);
  }
}

TEST_CASE("another number: the GPU in this host") {
  const DetectedMachine one =
      MatchMachine({{"NVIDIA GeForce RTX 4090", 24564 * kDriverMib}}, {64e9, 12});
  REQUIRE(one.profile.has_value());
  CHECK(one.profile->name == "rtx4090");
  CHECK(one.profile->node.gpus.value == 1);
  CHECK(one.profile->node.host_memory.value == 64e9);
  const DetectedMachine three = MatchMachine(
      std::vector<DetectedGpu>(3, {"NVIDIA GeForce RTX 4090", 24564 * kDriverMib}), {});
  CHECK(three.profile->name == "3x-rtx4090");
  CHECK(three.profile->node.gpus.value == 3);
  CHECK(three.profile->gpu == LoadProfile("rtx4090").gpu);
}

TEST_CASE("what is not known is said, not guessed") {
  const DetectedMachine unknown = MatchMachine({{"NVIDIA T4000", 20e9}}, {});
  CHECK(!unknown.profile.has_value());
  CHECK(unknown.note.find("NVIDIA T4000") != std::string::npos);
  CHECK(unknown.note.find("20 GB") != std::string::npos);
  const DetectedMachine one_unknown =
      MatchMachine({{"NVIDIA GeForce RTX 4090", 24564 * kDriverMib}, {"NVIDIA T4000", 20e9}}, {});
  CHECK(!one_unknown.profile.has_value());
  CHECK(one_unknown.note.find("(NVIDIA T4000: 20 GB)") != std::string::npos);
}

TEST_CASE("GPUs of two kinds are one host, planned as the slowest") {
  const DetectedGpu fast = {"NVIDIA GeForce RTX 4090", 24564 * kDriverMib};
  const DetectedGpu slow = {"NVIDIA GeForce RTX 3090", 24576 * kDriverMib};
  const DetectedMachine mixed = MatchMachine({fast, slow, fast}, {64e9, 12});
  REQUIRE(mixed.profile.has_value());
  const HardwareProfile& profile = *mixed.profile;
  CHECK(mixed.found == "2 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090");
  CHECK(profile.name == "2x-rtx4090+rtx3090");
  CHECK(profile.node.gpus.value == 3);
  CHECK(profile.node.host_memory.value == 64e9);
  REQUIRE(profile.kinds.size() == 2);
  CHECK(profile.kinds[0].gpus.value == 2);
  CHECK(profile.gpu.dense_peaks == LoadProfile("rtx3090").gpu.dense_peaks);
  CHECK(profile.gpu == FindProfile("2x4090+3090").profile.gpu);
  // Cards of one name that differ in memory are two kinds.
  const DetectedMachine memory = MatchMachine({{"NVIDIA GeForce RTX 3080", 12288 * kDriverMib},
                                               {"NVIDIA GeForce RTX 3080", 10240 * kDriverMib}},
                                              {});
  REQUIRE(memory.profile.has_value());
  CHECK(memory.profile->name == "rtx3080-12gb+rtx3080-10gb");
  CHECK(memory.profile->gpu.usable_memory == LoadProfile("rtx3080-10gb").gpu.usable_memory);
}

TEST_CASE("memory bandwidth that was measured takes the place of the guess, and says so") {
  const std::vector<DetectedGpu> gpus = {{"NVIDIA GeForce RTX 4090", 24564 * kDriverMib}};
  const NodeProfile guessed = MatchMachine(gpus, {64e9, 12}).profile->node;
  CHECK(*guessed.triad_bandwidth == *LoadProfile("rtx4090").node.triad_bandwidth);
  const NodeProfile node = MatchMachine(gpus, {64e9, 12, 100e9, 130e9}).profile->node;
  CHECK(node.triad_bandwidth->value == 100e9);
  CHECK(node.triad_bandwidth->source == FigureSource::kMeasured);
  CHECK(node.adam_bandwidth->value == 130e9);
  CHECK(node.adam_bandwidth->source == FigureSource::kMeasured);
  // Also where the built-in machine's own host was measured: this is another one.
  const DetectedMachine eight = MatchMachine(
      std::vector<DetectedGpu>(8, {"NVIDIA H200", 143771 * kDriverMib}), {0, 0, 50e9, 60e9});
  CHECK(eight.profile->node.triad_bandwidth->value == 50e9);
}

TEST_CASE("the host answers, and the environment switches detection off") {
  const DetectedHost host = QueryHost();
  CHECK(host.memory_bytes > 1e8);
  CHECK(host.cores >= 1);
  setenv("ZEROPLAN_NO_DETECT", "1", 1);
  CHECK(QueryGpus().empty());
  unsetenv("ZEROPLAN_NO_DETECT");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  CHECK(QueryGpus().empty());
  unsetenv("CUDA_VISIBLE_DEVICES");
}

namespace fs = std::filesystem;

class KeptFixture {
 public:
  const TempDir folder;
  const std::string file = folder.path("deep/hw.json");
  const MachineIdentity machine = {{{"NVIDIA H200", 150e9}, {"NVIDIA H200", 150e9}}, "580.1", 32};

  void Keep() const { KeepProfile(file, machine, ProfileText("hgx-h200"), "2026-11-20"); }
  std::string NoteFor(const MachineIdentity& other) const {
    const KeptProfile kept = ReadKeptProfile(file, other);
    CHECK(!kept.profile.has_value());
    return kept.note;
  }
};

TEST_CASE_FIXTURE(KeptFixture, "what is kept is found on the same machine, and says when") {
  CHECK(!ReadKeptProfile(file, machine).profile.has_value());
  CHECK(ReadKeptProfile(file, machine).note.empty());
  Keep();
  const KeptProfile kept = ReadKeptProfile(file, machine);
  REQUIRE(kept.profile.has_value());
  CHECK(kept.when == "2026-11-20");
  CHECK(kept.note.empty());
  CHECK(kept.profile->source == file);
  HardwareProfile same = *kept.profile;
  same.source = "built in";
  CHECK(same == LoadProfile("hgx-h200"));
  // Nothing else is left in the folder.
  CHECK(std::distance(fs::directory_iterator(fs::path(file).parent_path()), {}) == 1);
}

TEST_CASE_FIXTURE(KeptFixture,
                  "another GPU, driver or number of cores makes it stale, with the fix") {
  Keep();
  MachineIdentity other = machine;
  other.driver = "590.2";
  CHECK(NoteFor(other).find("driver was 580.1 then, and 590.2 now") != std::string::npos);
  CHECK(NoteFor(other).find("2026-11-20") != std::string::npos);
  CHECK(NoteFor(other).find("zeroplan hw measure") != std::string::npos);
  other = machine;
  other.cores = 16;
  CHECK(NoteFor(other).find("cores were 32 then, and 16 now") != std::string::npos);
  other = machine;
  other.gpus[0].name = other.gpus[1].name = "NVIDIA B200";
  CHECK(NoteFor(other).find("2 x NVIDIA B200 now") != std::string::npos);
}

TEST_CASE_FIXTURE(KeptFixture, "a damaged file is said and not used") {
  Keep();
  for (const char* text :
       {"", "{", "[]", "{}", R"({"schema": "zeroplan.kept/9"})", R"({"schema": "zeroplan.kept/1"})",
        R"({"schema": "zeroplan.kept/1", "measured": 5, "machine": {}})"}) {
    CAPTURE(std::string(text));
    std::ofstream(file, std::ios::trunc) << text;
    CHECK(NoteFor(machine).find("zeroplan hw measure") != std::string::npos);
  }
  // The profile in it is checked as any other.
  Keep();
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t at = text.find("\"datasheet\"");
  REQUIRE(at != std::string::npos);
  text.replace(at, 11, "\"rumour\"");
  std::ofstream(file, std::ios::trunc) << text;
  CHECK(NoteFor(machine).find("rumour") != std::string::npos);
}

TEST_CASE_FIXTURE(KeptFixture, "a folder that cannot be written is an error that names the fix") {
  std::ofstream(folder.path("deep")) << "no folder";
  CHECK_THROWS_WITH_AS(Keep(), doctest::Contains("ZEROPLAN_CACHE_DIR"), Error);
}

TEST_CASE("the file is this host's, for so many GPUs, in the cache folder") {
  const char* before = std::getenv("ZEROPLAN_CACHE_DIR");
  const std::string old = before == nullptr ? "" : before;
  setenv("ZEROPLAN_CACHE_DIR", "/tmp/somewhere", 1);
  CHECK(KeptProfileFile(2).starts_with("/tmp/somewhere/hw-"));
  CHECK(KeptProfileFile(2).ends_with("-2-gpus.json"));
  CHECK(KeptProfileFile(2) != KeptProfileFile(4));
  if (before == nullptr) {
    unsetenv("ZEROPLAN_CACHE_DIR");
  } else {
    setenv("ZEROPLAN_CACHE_DIR", old.c_str(), 1);
  }
}

TEST_CASE("NCCL's variables, sorted") {
  const char* const some[] = {"PATH=/bin", "NCCL_SHM_DISABLE=1", "NCCL_P2P_DISABLE=1",
                              "MY_NCCL_X=1", nullptr};
  CHECK(NcclEnvironment(some) == "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1");
  const char* const none[] = {"PATH=/bin", nullptr};
  CHECK(NcclEnvironment(none).empty());
}

}  // namespace

}  // namespace zeroplan
