// What hw measure leaves behind when parts of it fail.
#include "cli/run/measure/measured_output.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

MachineMeasurement HostOnly() {
  MachineMeasurement m;
  m.when = "2026-01-31";
  m.version = "0.0.0";
  m.host = HostBandwidths{100e9, 90e9, 8, uint64_t{1} << 30, 1 << 26};
  m.measured = {"host"};
  return m;
}

// What is thrown, with its exit code; "" if nothing is.
std::string ErrorOf(const std::string& file, const std::optional<HardwareProfile>& base,
                    const MachineMeasurement& measurement) {
  try {
    WriteMeasured(file, base, measurement, "mine");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    return error.what();
  }
  return "";
}

TEST_CASE("a part that failed is named, and the profile has the base's figures in its place") {
  const TempDir folder;
  const std::string file = folder.path() + "/mine.json";
  const HardwareProfile base = LoadProfile("hgx-h200");
  MachineMeasurement m = HostOnly();
  CHECK(ErrorOf(file, base, m).empty());
  m.failed = {{"gemm", "no algorithm"}, {"pcie", "cannot page-lock"}};
  const std::string error = ErrorOf(file, base, m);
  CAPTURE(error);
  CHECK(Has(error, wording::kGemmNoAlgorithm));
  CHECK(Has(error, wording::kPcieCannotPageLock));
  CHECK(Has(error, "hgx-h200"));
  CHECK(Has(error, "--only gemm,pcie --base " + file));
  const HardwareProfile read = LoadProfile(file);
  CHECK(read.gpu == base.gpu);
  CHECK(read.node.pcie == base.node.pcie);
  CHECK(read.node.adam_bandwidth->value == doctest::Approx(90e9));
}

TEST_CASE("no profile where nothing was measured, or nothing stands in") {
  const TempDir folder;
  const std::string file = folder.path() + "/mine.json";
  MachineMeasurement m = HostOnly();
  m.failed = {{"runtime", "out of memory"}};
  CHECK(Has(ErrorOf(file, std::nullopt, m), wording::kRuntimeOutOfMemory));
  m.measured.clear();
  const std::string error = ErrorOf(file, LoadProfile("hgx-h200"), m);
  CHECK(Has(error, wording::kNothingCouldBeMeasured));
  CHECK(Has(error, wording::kRuntimeOutOfMemory));
  CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("a profile that contradicts itself is kept under another name") {
  const TempDir folder;
  const std::string file = folder.path() + "/mine.json";
  MachineMeasurement m = HostOnly();
  m.kernels.gemm = {{GemmKind::kForward, Dtype::kBF16, 2048, 768, 2304, 1e18}};
  m.failed = {{"pcie", "cannot page-lock"}};
  const std::string error = ErrorOf(file, LoadProfile("hgx-h200"), m);
  CHECK(Has(error, file + ".rejected"));
  CHECK(Has(error, wording::kCannotPageLock));
  CHECK_FALSE(std::filesystem::exists(file));
  CHECK(std::filesystem::exists(file + ".rejected"));
}

TEST_CASE("what was done before everything failed is kept as a base") {
  const TempDir folder;
  const std::string file = folder.path() + "/mine.json";
  const std::string partial = folder.path() + "/mine.partial.json";
  const HardwareProfile base = LoadProfile("hgx-h200");
  MachineMeasurement m = HostOnly();
  KeepPartial(file, std::nullopt, m, "mine");
  CHECK_FALSE(std::filesystem::exists(partial));
  m.failed = {{"collectives", "rank 2: gone"}};
  KeepPartial(file, base, m, "mine");
  CHECK(LoadProfile(partial).node.adam_bandwidth->value == doctest::Approx(90e9));
  m.measured.clear();
  KeepPartial(folder.path() + "/other.json", base, m, "mine");
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/other.partial.json"));
}

// ZEROPLAN_CACHE_DIR for as long as it lives.
class CacheIn {
 public:
  explicit CacheIn(const std::string& folder) {
    if (const char* before = std::getenv(kVariable)) before_ = before;
    setenv(kVariable, folder.c_str(), 1);
  }
  ~CacheIn() {
    if (before_) {
      setenv(kVariable, before_->c_str(), 1);
    } else {
      unsetenv(kVariable);
    }
  }
  CacheIn(const CacheIn&) = delete;
  CacheIn& operator=(const CacheIn&) = delete;

 private:
  static constexpr const char* kVariable = "ZEROPLAN_CACHE_DIR";
  std::optional<std::string> before_;
};

TEST_CASE("a whole measurement is kept where these GPUs find it, a part of one is not") {
  const TempDir folder;
  const CacheIn cache(folder.path());
  const std::string text =
      WriteMeasured(folder.path() + "/mine.json", LoadProfile("hgx-h200"), HostOnly(), "mine");
  const std::vector<DetectedGpu> gpus(2, {"NVIDIA H200", 150e9});
  const std::string file = KeptProfileFile(2);
  KeepMeasured(text, "2026-01-31", gpus, /*whole=*/false);
  CHECK_FALSE(std::filesystem::exists(file));
  KeepMeasured(text, "2026-01-31", {}, /*whole=*/true);
  CHECK_FALSE(std::filesystem::exists(KeptProfileFile(0)));
  KeepMeasured(text, "2026-01-31", gpus, /*whole=*/true);
  const KeptProfile kept = ReadKeptProfile(file, IdentityOf(gpus));
  REQUIRE(kept.profile.has_value());
  CHECK(kept.when == "2026-01-31");
  CHECK(kept.profile->name == "mine");
  CHECK(kept.profile->node.adam_bandwidth->value == doctest::Approx(90e9));
}

TEST_CASE("a cache folder that cannot be written costs the measurement nothing") {
  const TempDir folder;
  std::ofstream(folder.path() + "/file") << "no folder";
  const CacheIn cache(folder.path() + "/file");
  CHECK_NOTHROW(
      KeepMeasured(ProfileText("hgx-h200"), "2026-01-31", {{"NVIDIA H200", 150e9}}, true));
}

}  // namespace
}  // namespace zeroplan
