// zeroplan doctor: every check reports a lack that is planted for it. GPUs are those of a stand-in
// for the driver's library; what the executor would say of CUDA comes from a program in its place.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/doctor/checks.h"
#include "cli/doctor/facts.h"
#include "core/base/units.h"
#include "core/base/version.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// One GPU with nothing to complain of, but for what was not measured.
const std::string kSound =
    "FAKE_CAPABILITY=89 FAKE_ECC=1 FAKE_MIG=0 FAKE_LIMIT_MW=450000 FAKE_DEFAULT_LIMIT_MW=450000 "
    "FAKE_PCIE_GENERATION=4 FAKE_MOST_PCIE_GENERATION=4 FAKE_PCIE_WIDTH=16 "
    "FAKE_MOST_PCIE_WIDTH=16 FAKE_PERFORMANCE_STATE=0 FAKE_COMPUTE_MODE=0 FAKE_PID=0 "
    "FAKE_USED_MIB=0 FAKE_PEER=0 FAKE_PEER_NVLINK=0 FAKE_NVLINKS=4 ";

std::string Environment(const std::string& more) {
  return "ZEROPLAN_NO_DETECT= LD_LIBRARY_PATH=" + BinaryPath("fake_nvml") + ":$LD_LIBRARY_PATH " +
         kSound + more;
}

// What answers does so in time, however slow this machine is.
constexpr double kSeconds = 86'400;
[[maybe_unused]] const int kNoHurry = setenv("ZEROPLAN_DOCTOR_SECONDS", "86400", 1);

// No disk is measured where a test is of something else: what lies in memory is not.
std::string Quick() { return fs::is_directory("/dev/shm") ? " --dir /dev/shm" : ""; }

struct Doctor {
  int exit_code = -1;
  std::string err;
  Json json;

  const Json& Check(const std::string& name) const {
    for (const Json& check : json.at("checks")) {
      if (check.at("check") == name) return check;
    }
    FAIL("no check " << name << " in " << json.dump(1));
    return json;
  }
  std::string State(const std::string& name) const { return Check(name).at("state"); }
  std::string Fact(const std::string& name) const { return Check(name).at("fact"); }
};

Doctor Read(const RunResult& run) {
  INFO(run.out, run.err);
  REQUIRE(Json::accept(run.out));
  return {run.exit_code, run.err, Json::parse(run.out)};
}

Doctor WithGpus(const std::string& environment, const std::string& arguments = Quick()) {
  return Read(RunZeroplan("doctor --format json " + arguments,
                          Environment("ZEROPLAN_CACHE_DIR=/nowhere " + environment)));
}

// A copy of zeroplan beside a program that stands in for its executor.
class WithExecutor {
 public:
  explicit WithExecutor(const std::string& script) {
    fs::copy_file(BinaryPath("zeroplan"), folder_.path() + "/zeroplan");
    if (script.empty()) return;
    const std::string file = folder_.path() + "/zeroplan-executor";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(file, fs::perms::owner_all);
  }
  Doctor Run(const std::string& environment = "ZEROPLAN_NO_DETECT=1",
             const std::string& arguments = "") const {
    const std::string command = environment + " " + folder_.path() +
                                "/zeroplan doctor --format json " + arguments + Quick() + " 2>" +
                                folder_.path() + "/err";
    FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    RunResult result;
    char buffer[4096];
    while (const size_t count = fread(buffer, 1, sizeof buffer, pipe))
      result.out.append(buffer, count);
    result.exit_code = WEXITSTATUS(pclose(pipe));
    result.err = ReadWhole(folder_.path() + "/err");
    return Read(result);
  }

 private:
  TempDir folder_;
};

LibraryFacts SoundLibraries() {
  LibraryFacts facts;
  facts.version = kVersion;
  facts.cuda = true;
  facts.architectures = "80-real,90-real";
  facts.runtime = facts.driver = 13000;
  facts.gpus = 1;
  facts.cublaslt = 130100;
  facts.nccl = facts.nccl_at_build = 22803;
  facts.cudnn = facts.cudnn_at_build = 91400;
  return facts;
}

WithExecutor Saying(const LibraryFacts& facts) {
  return WithExecutor("echo '" + LibrariesAsJson(facts) + "'");
}

TEST_CASE("doctor: on a machine without GPUs training on the CPU is possible") {
  const Doctor doctor = Read(RunZeroplan("doctor --format json"));
  CHECK(doctor.exit_code == 0);
  CHECK(doctor.json.at("schema") == "zeroplan.doctor/1");
  CHECK(doctor.json.at("training").at("cpu") == true);
  CHECK(doctor.State("executor") == "ok");
  CHECK(doctor.State("driver") == "unknown");  // ZEROPLAN_NO_DETECT
  CHECK(doctor.State("profile") == "unknown");
  // What is found is this machine's, whatever it is; that it is found at all is not.
  for (const char* check : {"processors", "numa", "memory", "transparent_huge_pages", "huge_pages",
                            "locked_memory", "shared_memory", "disk"}) {
    CHECK_FALSE(doctor.Fact(check).empty());
  }
  const RunResult text = RunZeroplan("doctor --explain" + Quick());
  CHECK(text.exit_code == 0);
  CHECK(Has(text.out, wording::kTrainingIsPossibleHereOn));
  CHECK(Has(text.out, wording::kNotAskedZeroplanNoDetect));
}

TEST_CASE("doctor: a driver that is missing, or that does not answer") {
  const RunResult none =
      RunZeroplan("doctor --format json" + Quick(), "ZEROPLAN_NO_DETECT= FAKE_GPUS=");
  const Doctor mute = Read(RunZeroplan(
      "doctor --format json" + Quick(),
      "ZEROPLAN_NO_DETECT= LD_LIBRARY_PATH=" + BinaryPath("fake_nvml") + ":$LD_LIBRARY_PATH"));
  CHECK(none.exit_code == 0);
  CHECK(mute.State("driver") == "missing");
  CHECK(Has(mute.Fact("driver"), "does not answer: Driver Not Loaded"));
  CHECK(WithGpus("FAKE_GPUS=0").State("gpus") == "missing");
}

TEST_CASE("doctor: each lack of a GPU is reported, and a sound one has none") {
  const Doctor sound = WithGpus("FAKE_GPUS=2");
  for (const char* check : {"driver", "gpus", "ecc", "mig", "power_limit", "pcie", "compute_mode",
                            "gpu_processes", "peer_access"}) {
    INFO(check, sound.Fact(check));
    CHECK(sound.State(check) == "ok");
  }
  CHECK(Has(sound.Fact("driver"), "driver 580.82.07, 2 GPUs"));
  CHECK(Has(sound.Fact("gpus"), "GPU 0, 1: NVIDIA GeForce RTX 4090, 25.8 GB"));
  CHECK(Has(sound.Fact("peer_access"), "4 links active"));
  CHECK(sound.json.at("gpus").at(1).at("pcie_width") == 16);
  struct Lack {
    const char *environment, *check, *state, *fact;
  };
  for (const Lack& lack : {
           Lack{"FAKE_ECC=1,0", "ecc", "costs", "GPU 1: off"},
           Lack{"FAKE_MIG=1,0", "mig", "costs", "GPU 0: divided (MIG)"},
           Lack{"FAKE_LIMIT_MW=450000,300000", "power_limit", "costs",
                "GPU 1: 300 W of 450 W by default"},
           Lack{"FAKE_PCIE_WIDTH=16,8", "pcie", "costs",
                "GPU 1: generation 4 x8 of 4 x16: 15.8 of"},
           Lack{"FAKE_PCIE_GENERATION=1,4", "pcie", "costs", "GPU 0: generation 1 x16 of 4 x16"},
           Lack{"FAKE_PCIE_GENERATION=1 FAKE_PERFORMANCE_STATE=8", "pcie", "ok", "at rest"},
           Lack{"FAKE_COMPUTE_MODE=0,2", "compute_mode", "missing", "GPU 1: prohibited"},
           Lack{"FAKE_COMPUTE_MODE=3", "compute_mode", "costs", "exclusive to a process"},
           Lack{"FAKE_PID=4711,0", "gpu_processes", "costs", "GPU 0: process 4711"},
           Lack{"FAKE_USED_MIB=0,5000", "gpu_processes", "costs", "no process that can be seen"},
           Lack{"FAKE_PEER=5", "peer_access", "costs", "1 of 1 pairs"},
           Lack{"FAKE_ACTIVE_NVLINKS=4,3", "peer_access", "costs", "GPU 1: 3 of 4 NVLinks active"},
           Lack{"CUDA_VISIBLE_DEVICES=1", "gpus", "costs", "1 more that CUDA_VISIBLE_DEVICES"},
           Lack{"CUDA_VISIBLE_DEVICES=-1", "gpus", "missing", "leaves none"},
       }) {
    const Doctor doctor = WithGpus(std::string("FAKE_GPUS=2 ") + lack.environment);
    INFO(lack.environment, doctor.Fact(lack.check));
    CHECK(doctor.State(lack.check) == lack.state);
    CHECK(Has(doctor.Fact(lack.check), lack.fact));
    if (std::string(lack.state) != "ok") CHECK_FALSE(doctor.Check(lack.check).at("fix").is_null());
  }
}

TEST_CASE("doctor: a folder that cannot be written to, or has no room") {
  const Doctor refused = WithGpus("", "--dir /proc/self");
  CHECK(refused.State("disk") == "missing");
  CHECK(refused.exit_code == 4);
  CHECK(Has(refused.err, "/proc/self"));
  const Doctor missing = WithGpus("", "--dir /nowhere/at/all");
  CHECK(missing.State("disk") == "missing");
  CHECK(Has(missing.Fact("disk"), "is not a folder"));
  CHECK(missing.exit_code == 4);
  // Files may not grow past 512 KB; SIGXFSZ does not end it.
  const TempDir folder;
  const Doctor limited =
      Read(RunZeroplan("doctor --format json --dir " + folder.path(), "ulimit -f 1000;"));
  if (limited.State("disk") != "costs") {  // in memory: nothing was written
    CHECK(limited.State("disk") == "missing");
    CHECK(Has(limited.Fact("disk"), "File too large"));
    CHECK(limited.exit_code == 4);
  }
  const Doctor sound = WithGpus("", "--dir " + folder.path());
  CHECK(sound.exit_code == 0);
  CHECK(fs::is_empty(folder.path()));
  if (fs::is_directory("/dev/shm")) {
    const Doctor memory = WithGpus("", "--dir /dev/shm");
    CHECK(memory.State("disk") == "costs");
    CHECK(Has(memory.Fact("disk"), "in memory"));
  }
  // Where this user may mount: memory that nothing may be written to.
  const std::string mount = "mount -t tmpfs -o ro,size=64m tmpfs " + folder.path();
  if (system(("unshare -m sh -c '" + mount + "' 2>/dev/null").c_str()) == 0) {
    const std::string out = folder.path() + ".out";
    const std::string doctor = BinaryPath("zeroplan") + " doctor --dir " + folder.path();
    const int status = system(("unshare -m sh -c '" + mount + " && ZEROPLAN_NO_DETECT=1 " + doctor +
                               " >" + out + " 2>&1'")
                                  .c_str());
    CHECK(WEXITSTATUS(status) == 4);
    CHECK(Has(ReadWhole(out), wording::kMayNotBeWrittenRead));
    fs::remove(out);
  }
}

TEST_CASE("doctor: the measured profile: absent, used, stale") {
  const TempDir cache;
  const std::string keeps = " ZEROPLAN_CACHE_DIR=" + cache.path();
  CHECK(WithGpus("FAKE_GPUS=2" + keeps).State("profile") == "costs");
  CHECK(Has(WithGpus("FAKE_GPUS=2" + keeps).Fact("profile"), "the built-in 2x-rtx4090"));
  const Doctor unknown = WithGpus("FAKE_GPUS=1 FAKE_GPU_NAME=Voodoo2" + keeps);
  CHECK(unknown.State("profile") == "missing");
  CHECK(Has(unknown.Fact("profile"), "1 x Voodoo2"));

  setenv("ZEROPLAN_CACHE_DIR", cache.path().c_str(), 1);
  const std::string file = KeptProfileFile(2);
  unsetenv("ZEROPLAN_CACHE_DIR");
  const DetectedGpu gpu = {"NVIDIA GeForce RTX 4090", 24564.0 * 1024 * 1024};
  KeepProfile(file, {{gpu, gpu}, "580.82.07", QueryHost().cores}, ProfileText("2x-rtx4090"),
              "2026-11-20");
  const Doctor used = WithGpus("FAKE_GPUS=2" + keeps);
  CHECK(used.State("profile") == "ok");
  CHECK(used.json.at("profile").at("measured") == "2026-11-20");
  const Doctor stale = WithGpus("FAKE_GPUS=2 FAKE_DRIVER=590.1" + keeps);
  CHECK(stale.State("profile") == "costs");
  CHECK(Has(stale.Fact("profile"), "driver was 580.82.07 then, and 590.1 now"));
}

TEST_CASE("doctor: the executor: not there, not able to start, of another version") {
  const Doctor absent = WithExecutor("").Run();
  CHECK(absent.exit_code == 4);
  CHECK(absent.State("executor") == "missing");
  CHECK(Has(absent.Fact("executor"), "there is no /"));
  CHECK(absent.json.at("training").at("cpu") == false);
  const Doctor broken =
      WithExecutor("echo 'error while loading shared libraries: libnccl.so.2' >&2; exit 127").Run();
  CHECK(broken.exit_code == 4);
  CHECK(Has(broken.Fact("executor"), "libnccl.so.2"));
  CHECK(Has(WithExecutor("kill -SEGV $$").Run().Fact("executor"), "signal 11"));
  LibraryFacts other = SoundLibraries();
  other.version = "0.0.1";
  CHECK(Saying(other).Run().State("executor") == "costs");
}

TEST_CASE("doctor: what the executor says of CUDA's libraries") {
  const std::string one = Environment("FAKE_GPUS=1 ZEROPLAN_CACHE_DIR=/nowhere");
  const Doctor sound = Saying(SoundLibraries()).Run(one, "--backend cuda --gpus 1");
  CHECK(sound.exit_code == 0);
  CHECK(sound.json.at("training").at("cuda") == true);
  for (const char* check : {"executor", "cuda", "nccl", "cudnn", "architecture"}) {
    CHECK(sound.State(check) == "ok");
  }
  CHECK(Has(sound.Fact("cuda"), "built with CUDA 13.0"));
  CHECK(Has(sound.Fact("nccl"), "NCCL 2.28.3"));
  CHECK(Has(sound.Fact("cudnn"), "cuDNN 9.14.0"));
  CHECK(Saying(SoundLibraries()).Run(one, "--gpus 2").exit_code == 4);

  LibraryFacts old_driver = SoundLibraries();
  old_driver.driver = 12020;
  old_driver.gpus = 0;
  old_driver.failure = 35;
  old_driver.why = "CUDA driver version is insufficient for CUDA runtime version";
  const Doctor insufficient = Saying(old_driver).Run(one, "--backend cuda");
  CHECK(insufficient.exit_code == 4);
  CHECK(insufficient.State("cuda") == "missing");
  CHECK(Has(insufficient.Fact("cuda"), "the driver takes up to CUDA 12.2"));
  CHECK(Has(insufficient.Check("cuda").at("fix"), "driver 580 or newer"));
  CHECK(Saying(old_driver).Run(one).exit_code == 0);  // the CPU backend is left

  LibraryFacts lacking = SoundLibraries();
  lacking.nccl = 22203;
  lacking.cudnn = 0;
  lacking.why_no_cudnn = "libcudnn.so.9: cannot open shared object file";
  const Doctor libraries = Saying(lacking).Run(one);
  CHECK(libraries.State("nccl") == "costs");
  CHECK(libraries.State("cudnn") == "costs");
  CHECK(Has(libraries.Fact("cudnn"), "libcudnn.so.9"));
  CHECK(Has(libraries.Check("cudnn").at("cost"), "306 TFLOP/s forward"));
  lacking.gpus = lacking.driver = 0;
  CHECK(Saying(lacking).Run().State("cudnn") == "ok");  // no GPU that would want it

  LibraryFacts bare = SoundLibraries();
  bare.cublaslt = bare.nccl = 0;
  bare.why_no_cublaslt = "there is no libcublasLt.so.13 (cuBLASLt) in LD_LIBRARY_PATH";
  bare.why_no_nccl = "there is no libnccl.so.2 (NCCL) in LD_LIBRARY_PATH";
  const Doctor packages = Saying(bare).Run(one, "--backend cuda");
  CHECK(packages.exit_code == 4);
  CHECK(packages.State("cuda") == "missing");
  CHECK(Has(packages.Fact("cuda"), "there is no libcublasLt.so.13"));
  CHECK(Has(packages.Check("cuda").at("fix"), "pip install 'nvidia-cublas<14'"));
  CHECK(packages.State("nccl") == "ok");  // one GPU needs none
  bare.cublaslt = 130100;
  bare.gpus = 2;
  CHECK(Saying(bare).Run(one).State("nccl") == "missing");
  CHECK(Has(Saying(bare).Run(one).Check("nccl").at("fix"), "pip install nvidia-nccl-cu13"));
  CHECK(Saying(bare).Run(one, "--gpus 1").exit_code == 0);
  CHECK(Saying(bare).Run(one, "--gpus 2").exit_code == 4);
  CHECK(
      Has(Saying(bare).Run(one, "--gpus 2").err, "--gpus: 2 need NCCL: there is no libnccl.so.2"));

  LibraryFacts hopper = SoundLibraries();
  hopper.architectures = "90-real";
  const Doctor foreign = Saying(hopper).Run(one, "--backend cuda");
  CHECK(foreign.exit_code == 4);
  CHECK(foreign.State("architecture") == "missing");
  CHECK(Has(foreign.Check("architecture").at("fix"), "ARCHITECTURES=89-real"));
  LibraryFacts without;
  without.version = kVersion;
  CHECK(Saying(without).Run(one).State("cuda") == "missing");
  CHECK(Saying(without).Run(one, "--backend cuda").exit_code == 4);
  CHECK(Saying(without).Run(one, "--backend cpu").exit_code == 0);
  CHECK(Saying(without).Run().State("cuda") == "ok");  // no GPU that would want it
}

TEST_CASE("doctor: code for an architecture") {
  CHECK(HasCodeFor("80-real,90-real", 8, 9));
  CHECK_FALSE(HasCodeFor("80-real,90-real", 10, 0));
  CHECK_FALSE(HasCodeFor("89-real", 8, 0));
  CHECK(HasCodeFor("80", 12, 0));
  CHECK(HasCodeFor("80-virtual", 9, 0));
  CHECK(HasCodeFor("90a-real", 9, 0));
  CHECK_FALSE(HasCodeFor("100a", 10, 3));
  CHECK(HasCodeFor("100f-real", 10, 3));
  CHECK_FALSE(HasCodeFor("native", 9, 0));
  CHECK_FALSE(HasCodeFor("", 9, 0));
}

const Finding& Of(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& finding : findings) {
    if (finding.check == check) return finding;
  }
  FAIL("no check " << check);
  return findings.front();
}

TEST_CASE("doctor: each lack of a host is reported, and a sound one has none") {
  HostState host;
  host.online = host.allowed = 8;
  host.nodes = {{0, 8, 64'000'000'000, true}};
  host.memory_bytes = 64'000'000'000;
  host.available_bytes = 60'000'000'000;
  host.transparent_huge_pages = "madvise";
  host.huge_page_bytes = 2 << 20;
  host.locked_limit = std::numeric_limits<uint64_t>::max();
  host.shared_bytes = host.shared_free_bytes = uint64_t{32} << 30;
  MachineFacts facts;
  facts.host = host;
  facts.gpus.gpus.resize(2);
  for (const Finding& finding : HostFindings(facts)) {
    INFO(finding.check, finding.fact);
    CHECK(finding.state == CheckState::kOk);
  }
  const auto plant = [&](const char* check, const char* fact, auto change) {
    facts.host = host;
    change(facts.host);
    const std::vector<Finding> findings = HostFindings(facts);
    const Finding& finding = Of(findings, check);
    INFO(check, finding.fact);
    CHECK(finding.state == CheckState::kCosts);
    CHECK(Has(finding.fact, fact));
    CHECK_FALSE(finding.cost.empty());
    CHECK_FALSE(finding.fix.empty());
  };
  plant("processors", "affinity leaves 2 of 8", [](HostState& h) { h.allowed = 2; });
  plant("processors", "time of 1.5 of 8",
        [](HostState& h) { h.quota = ControlGroupCpus{1.5, "/sys/fs/cgroup/cpu.max"}; });
  plant("numa", "2 nodes", [](HostState& h) { h.nodes.push_back({1, 8, 1'000'000'000, true}); });
  plant("memory", "limit is 8.00 GB", [](HostState& h) {
    h.group = ControlGroupMemory{8'000'000'000, 7'000'000'000, "/sys/fs/cgroup/memory.max"};
  });
  plant("transparent_huge_pages", "never",
        [](HostState& h) { h.transparent_huge_pages = "never"; });
  plant("huge_pages", "2.15 GB set aside", [](HostState& h) { h.huge_pages = 1024; });
  plant("locked_memory", "a limit of 65.5 KB", [](HostState& h) { h.locked_limit = 65536; });
  plant("locked_memory", "WSL2; ulimit -l sets no limit", [](HostState& h) { h.wsl = true; });
  plant("shared_memory", "/dev/shm of 67.1 MB",
        [](HostState& h) { h.shared_bytes = h.shared_free_bytes = 64 << 20; });
  facts.host = HostState{};
  facts.gpus.gpus.resize(1);
  for (const Finding& finding : HostFindings(facts)) {
    if (std::string(finding.check) == "shared_memory") continue;  // it is not there
    INFO(finding.check);
    CHECK(finding.state == CheckState::kUnknown);
  }
}

TEST_CASE("doctor --plan: whether what it pins can be locked") {
  MachineFacts facts;
  facts.host.memory_bytes = 64'000'000'000;
  facts.host.available_bytes = 60'000'000'000;
  facts.host.locked_limit = 8'000'000;
  const auto finding = [&](uint64_t rank_bytes, bool on_gpus) {
    facts.plan = PinnedPlan{"plan.json", rank_bytes, 2, on_gpus};
    return Of(HostFindings(facts), "pinned_memory");
  };
  CHECK(finding(0, true).fact == "plan.json pins none");
  const Finding fits = finding(20'000'000'000, true);  // the limit is not asked for on GPUs
  CHECK(fits.state == CheckState::kOk);
  CHECK(Has(fits.fact, wording::kPinsGbInEachHost));
  CHECK(finding(20'000'000'000, false).state == CheckState::kCosts);
  CHECK(Has(finding(20'000'000'000, false).fact, wording::kOnlyMbCanBeLocked));
  CHECK(finding(3'000'000, false).state == CheckState::kOk);
  facts.host.may_pass_locked_limit = true;
  CHECK(finding(20'000'000'000, false).state == CheckState::kOk);
  CHECK(finding(30'000'000'001, true).state == CheckState::kMissing);
  facts.host.group =
      ControlGroupMemory{50'000'000'000, 39'000'000'000, "/sys/fs/cgroup/memory.max"};
  CHECK(finding(20'000'000'000, true).state == CheckState::kMissing);
  CHECK(Has(finding(20'000'000'000, true).fix, "--host-memory 39000000000"));
  facts.host.group.reset();
  facts.pinned = PinnedFacts{20'000'000'000, 8'000'000'000, "out of memory"};
  const Finding refused = finding(10'000'000'000, true);
  CHECK(refused.state == CheckState::kCosts);
  CHECK(Has(refused.fact, wording::kTheDriverPageLocksGb));
  CHECK(Has(refused.fix, "--pinned-limit 8000000000"));
  facts.pinned = PinnedFacts{20'000'000'000, 20'000'000'000, ""};
  CHECK(finding(10'000'000'000, true).state == CheckState::kOk);
  CHECK(Has(finding(10'000'000'000, true).fact, wording::kTheDriverPageLocksAll));
  facts.plan.reset();
  facts.pinned->locked_bytes = 9'000'000'000;
  const Finding some = Of(HostFindings(facts), "pinned_memory");
  CHECK(some.state == CheckState::kOk);
  CHECK(Has(some.fact, wording::kPageLockedGbOfThem));
  facts.pinned.reset();
  for (const Finding& other : HostFindings(facts))
    CHECK(std::string(other.check) != "pinned_memory");

  const TempDir folder;
  const std::string plan = folder.path() + "/plan.json";
  REQUIRE(RunZeroplan("plan --quick --model gpt2 --hw hgx-h200 --gpus 2 --stage 2 "
                      "--offload-optimizer cpu --plan-out " +
                      plan)
              .exit_code == 0);
  const uint64_t planned =
      Json::parse(ReadWhole(plan)).at("predicted").at("rank_arena_bytes").at("pinned");
  REQUIRE(planned > 0);
  const Doctor doctor = Read(RunZeroplan("doctor --format json --plan " + plan + Quick()));
  CHECK(Has(doctor.Fact("pinned_memory"), plan + " pins " + FormatBytes(2 * planned)));
  CHECK(RunZeroplan("doctor --plan /nowhere.json").exit_code == 2);
}

TEST_CASE("doctor asks the executor to page-lock memory where it has a GPU") {
  const WithExecutor refuses("if [ \"$1\" = --try-pinned-memory ]; then echo '" +
                             PinnedAsJson({3'000'000'000, 1'000'000'000, "no more"}) +
                             "'; else echo '" + LibrariesAsJson(SoundLibraries()) + "'; fi");
  const Doctor doctor = refuses.Run();
  CHECK(doctor.State("pinned_memory") == "costs");
  CHECK(Has(doctor.Fact("pinned_memory"), "asked for 3.00 GB: the driver page-locks 1.00 GB"));
  CHECK(doctor.json.at("pinned").at("refusal") == "no more");
  // One that does not answer that is not said to refuse.
  CHECK(Saying(SoundLibraries()).Run().json.at("pinned").is_null());
}

TEST_CASE("doctor: a driver that hangs, or ends the process, is said, and the rest as ever") {
  const Doctor hangs = WithGpus("FAKE_GPUS=2 FAKE_HANG=1 ZEROPLAN_DOCTOR_SECONDS=");
  CHECK(hangs.State("driver") == "missing");
  CHECK(Has(hangs.Fact("driver"), "it did not answer within 5 s"));
  CHECK(hangs.State("profile") == "unknown");
  CHECK(hangs.State("processors") != "unknown");
  CHECK(hangs.json.at("gpus").empty());
  const Doctor crashes = WithGpus("FAKE_GPUS=2 FAKE_CRASH=1");
  CHECK(Has(crashes.Fact("driver"), "signal 11"));
}

TEST_CASE("doctor: what the driver's process says comes over whole") {
  DriverFacts facts;
  facts.gpus.library = facts.gpus.answers = true;
  facts.gpus.why = "line\nand \"quotes\"";
  facts.gpus.cuda = 13000;
  GpuState gpu;
  gpu.index = 1;
  gpu.visible = false;
  gpu.name = "NVIDIA H200";
  gpu.memory_bytes = 150'000'000'001;
  gpu.ecc = false;
  gpu.limit_watts = 700.5;
  gpu.compute_mode = GpuState::ComputeMode::kProhibited;
  gpu.processes = {{17, std::nullopt}, {18, 5}};
  gpu.numa_node = -1;
  facts.gpus.gpus = {gpu, GpuState{}};
  facts.gpus.pairs = {{0, 1, true, "", true}, {0, 2, std::nullopt, "why", false}};
  facts.profile.state = ProfileFacts::State::kStale;
  facts.profile.file = "/a b";
  const std::string text = DriverAsJson(facts);
  CHECK(text.find('\n') == std::string::npos);
  const std::optional<DriverFacts> read = DriverFromJson("noise\n" + text + "\n");
  REQUIRE(read.has_value());
  CHECK(DriverAsJson(*read) == text);
  CHECK(read->gpus.why == facts.gpus.why);
  CHECK(read->gpus.gpus[0].processes->at(1).bytes == 5);
  CHECK_FALSE(read->gpus.gpus[1].processes.has_value());
  CHECK(read->gpus.gpus[0].compute_mode == GpuState::ComputeMode::kProhibited);
  CHECK(read->profile.state == ProfileFacts::State::kStale);
  CHECK_FALSE(DriverFromJson(text.substr(0, text.size() / 2)).has_value());
  CHECK_FALSE(DriverFromJson("").has_value());
}

TEST_CASE("a child that hangs is ended, one that ends is heard") {
  const ChildResult hangs = RunLimited(0.2, []() -> int {
    for (;;) pause();
  });
  CHECK_FALSE(hangs.in_time);
  const ChildResult speaks = RunLimited(kSeconds, [] {
    fputs("out", stdout);
    fputs("err", stderr);
    return 7;
  });
  CHECK(speaks.in_time);
  CHECK(speaks.out == "out");
  CHECK(speaks.err == "err");
  CHECK(speaks.exit_code == 7);
}

}  // namespace
}  // namespace zeroplan
