#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>

#include "cli/common/executor_commands.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/facts.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/strings.h"
#include "core/base/thread.h"
#include "core/base/version.h"
#include "machine/gpu_state.h"

namespace zeroplan {

namespace {

using State = ExecutorFacts::State;

// CUDA's error codes that have a way out of their own (driver_types.h).
constexpr int kInsufficientDriver = 35, kNoDevice = 100, kSystemNotReady = 802,
              kDriverMismatch = 803;

std::string WhyExecutorFails(const ExecutorFacts& executor) {
  switch (executor.state) {
    case State::kAbsent:
      return fmt::format("there is no {}", executor.path);
    case State::kFails:
      return fmt::format("{} cannot start: {}", kExecutorProgram, executor.why);
    case State::kSilent:
      return fmt::format("{} hangs: {}", kExecutorProgram, executor.why);
    case State::kAnswers:
      break;
  }
  return "";
}

std::string CudaFix(const LibraryFacts& libraries, bool shown) {
  switch (libraries.failure) {
    case kInsufficientDriver:
      if (const auto lack = FindCudaLack(libraries, 1, shown)) return lack->fix;
      return fmt::format("a driver for CUDA {} or newer", CudaVersionText(libraries.runtime));
    case kNoDevice:
      return "nvidia-smi -L names the GPUs that the driver has; CUDA_VISIBLE_DEVICES may hide them";
    case kSystemNotReady:
      return "sudo systemctl start nvidia-fabricmanager (GPUs behind NVSwitch need it)";
    case kDriverMismatch:
      return "restart, so that the kernel's driver is the installed one, or install the driver "
             "anew";
    default:
      return "nvidia-smi, and sudo dmesg | grep -i nvrm, say more";
  }
}

std::string WhyNoGpu(const LibraryFacts& libraries, bool shown) {
  // CUDA itself speaks of a driver that is too old.
  if (libraries.driver == 0) return FindCudaLack(libraries, 1, shown)->fact;
  return libraries.why.empty() ? "CUDA sees no GPU" : "CUDA says: " + libraries.why;
}

bool HasGpus(const MachineFacts& facts) {
  return !facts.gpus.gpus.empty() || facts.host.nvidia_devices > 0;
}

Finding CudaFinding(const MachineFacts& facts) {
  const LibraryFacts& libraries = facts.executor.libraries;
  const bool shown = !facts.gpus.gpus.empty();
  const bool has_gpus = HasGpus(facts);
  if (!libraries.cuda) {
    if (!has_gpus) return {"cuda", CheckState::kOk, "not in this build; no GPU here needs it"};
    return {"cuda", CheckState::kMissing, "not in this build",
            "train and generate take the CPU backend, hw measure does not measure GPUs",
            "with the CUDA toolkit 12.4 or newer and NCCL installed: scripts/build.sh cuda"};
  }
  const std::string built = fmt::format("built with CUDA {}", CudaVersionText(libraries.runtime));
  if (libraries.gpus > 0 && libraries.cublaslt == 0) {
    return {"cuda", CheckState::kMissing,
            fmt::format("{}, but {}", built, libraries.why_no_cublaslt),
            "training runs on the CPU backend alone (--backend cpu)",
            InstallAdvice(CudaLibrary::kCublasLt, libraries.runtime)};
  }
  if (libraries.gpus > 0) {
    return {"cuda", CheckState::kOk,
            fmt::format("{}, the driver takes up to {}; CUDA sees {} GPU{}", built,
                        CudaVersionText(libraries.driver), libraries.gpus,
                        libraries.gpus == 1 ? "" : "s")};
  }
  if (!has_gpus && libraries.driver == 0) {
    return {"cuda", CheckState::kOk, built + "; no GPU here uses it"};
  }
  std::string fact = fmt::format("{}, but {}", built, WhyNoGpu(libraries, shown));
  if (libraries.driver != 0) {
    fact += fmt::format(" (error {}; the driver takes up to CUDA {})", libraries.failure,
                        CudaVersionText(libraries.driver));
  }
  return {"cuda", CheckState::kMissing, fact, "training runs on the CPU backend alone",
          CudaFix(libraries, shown)};
}

Finding NcclFinding(const LibraryFacts& libraries) {
  if (libraries.nccl == 0) {
    if (libraries.gpus <= 1) return {"nccl", CheckState::kOk, "not found; one GPU needs none"};
    return {"nccl", CheckState::kMissing, libraries.why_no_nccl,
            "training on several GPUs is not possible",
            InstallAdvice(CudaLibrary::kNccl, libraries.runtime)};
  }
  const std::string fact = fmt::format("NCCL {}, built with {}", LibraryVersionText(libraries.nccl),
                                       LibraryVersionText(libraries.nccl_at_build));
  if (libraries.nccl >= libraries.nccl_at_build) return {"nccl", CheckState::kOk, fact};
  return {"nccl", CheckState::kCosts, fact,
          "it is older than what this program was built for, and was not tried with it",
          fmt::format("install NCCL {} or newer, or build again here",
                      LibraryVersionText(libraries.nccl_at_build))};
}

Finding CudnnFinding(const LibraryFacts& libraries, bool has_gpus) {
  // docs/data.md, "Which kernels attention runs on": 2 x 4096 tokens, 32 heads of 128.
  constexpr const char* kCost =
      "attention in bf16 and fp16 runs on zeroplan's own kernels: on an H200 306 TFLOP/s forward "
      "and 246 backward, where cuDNN makes 595 and 478 (docs/data.md)";
  if (libraries.cudnn_at_build == 0) {
    return {"cudnn", CheckState::kCosts, "not in this build", kCost,
            "install cuDNN 9 and its headers, then scripts/build.sh"};
  }
  if (libraries.cudnn == 0 && !has_gpus) {
    return {"cudnn", CheckState::kOk, "not found; no GPU here uses it"};
  }
  if (libraries.cudnn == 0) {
    return {"cudnn", CheckState::kCosts, "not found: " + libraries.why_no_cudnn, kCost,
            InstallAdvice(CudaLibrary::kCudnn, libraries.runtime)};
  }
  return {"cudnn", CheckState::kOk,
          fmt::format("cuDNN {}, built with {}", LibraryVersionText(libraries.cudnn),
                      LibraryVersionText(libraries.cudnn_at_build))};
}

}  // namespace

bool HasCodeFor(const std::string& architectures, int major, int minor) {
  for (const std::string_view word : Split(architectures, ',')) {
    int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc()) continue;
    std::string_view suffix(end, static_cast<size_t>(word.data() + word.size() - end));
    const bool exact = suffix.starts_with("a");
    const bool family = suffix.starts_with("f");
    if (exact || family) suffix.remove_prefix(1);
    const int code_major = number / 10, code_minor = number % 10;
    const bool same = code_major == major && code_minor == minor;
    const bool newer = code_major == major && code_minor <= minor;
    if (exact ? same : newer) return true;
    const bool is_virtual = suffix.empty() || suffix == "-virtual";
    if (!exact && !family && is_virtual && code_major < major) return true;
  }
  return false;
}

Readiness ReadinessOf(const MachineFacts& facts) {
  Readiness ready;
  const LibraryFacts& libraries = facts.executor.libraries;
  ready.why_not_cpu = WhyExecutorFails(facts.executor);
  ready.why_not_cuda = ready.why_not_cpu;
  if (!ready.cpu()) return ready;
  if (!libraries.cuda) {
    ready.why_not_cuda = "this build has no CUDA executor";
  } else if (libraries.gpus == 0) {
    ready.why_not_cuda = WhyNoGpu(libraries, !facts.gpus.gpus.empty());
  } else if (libraries.cublaslt == 0) {
    ready.why_not_cuda = libraries.why_no_cublaslt;
  } else {
    ready.gpus = libraries.nccl == 0 ? 1 : libraries.gpus;
    for (const GpuState& gpu : facts.gpus.gpus) {
      if (!gpu.visible) continue;
      if (gpu.compute_major && gpu.compute_minor &&
          !HasCodeFor(libraries.architectures, *gpu.compute_major, *gpu.compute_minor)) {
        ready.why_not_cuda =
            fmt::format("this build has no code for GPU {}, whose compute capability is {}.{}",
                        gpu.index, *gpu.compute_major, *gpu.compute_minor);
      } else if (gpu.compute_mode == GpuState::ComputeMode::kProhibited) {
        ready.why_not_cuda = fmt::format("the compute mode of GPU {} is prohibited", gpu.index);
      }
    }
  }
  return ready;
}

std::vector<Finding> ExecutorFindings(const MachineFacts& facts) {
  const ExecutorFacts& executor = facts.executor;
  if (executor.state != State::kAnswers) {
    const bool absent = executor.state == State::kAbsent;
    return {{"executor", CheckState::kMissing, WhyExecutorFails(executor),
             "train, generate, merge, checkpoint and hw measure cannot run; planning can",
             absent ? ExecutorAdvice()
                    : fmt::format("ldd {} names libraries that are not found (LD_LIBRARY_PATH, or "
                                  "install them)",
                                  executor.path)}};
  }
  const LibraryFacts& libraries = executor.libraries;
  std::vector<Finding> findings;
  if (libraries.version == kVersion) {
    findings.push_back({"executor", CheckState::kOk,
                        fmt::format("{} {} starts", kExecutorProgram, libraries.version)});
  } else {
    findings.push_back({"executor", CheckState::kCosts,
                        fmt::format("{} is of version {}, zeroplan of {}", kExecutorProgram,
                                    libraries.version, kVersion),
                        "train --plan refuses plans of another version", ExecutorAdvice()});
  }
  findings.push_back(CudaFinding(facts));
  if (libraries.cuda) {
    findings.push_back(NcclFinding(libraries));
    findings.push_back(CudnnFinding(libraries, HasGpus(facts)));
  } else {
    for (const char* check : {"nccl", "cudnn"}) {
      findings.push_back(
          {check, CheckState::kUnknown, "not looked for: a build without CUDA does not use it"});
    }
  }
  return findings;
}

namespace {

constexpr size_t kMostText = 1 << 20;
using Clock = std::chrono::steady_clock;

struct Pipe {
  UniqueFd read, write;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) ThrowRuntime("cannot make a pipe: {}", std::strerror(errno));
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
};

[[noreturn]] void RunChild(const Pipe& out, const Pipe& err, const std::function<int()>& work) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(out.write.get(), STDOUT_FILENO);
  dup2(err.write.get(), STDERR_FILENO);
  int code = 1;
  try {
    code = work();
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
  std::fflush(nullptr);
  _exit(code);
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
}

// Until both are closed; false if that takes too long.
bool ReadBoth(Clock::time_point deadline, std::array<UniqueFd*, 2> pipes,
              std::array<std::string*, 2> texts) {
  while (*pipes[0] || *pipes[1]) {
    std::array<pollfd, 2> waits;
    for (size_t i = 0; i < 2; ++i) waits[i] = {pipes[i]->get(), POLLIN, 0};
    const int ready = poll(waits.data(), waits.size(), MillisecondsUntil(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    for (size_t i = 0; i < 2; ++i) {
      if (waits[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(pipes[i]->get(), buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        pipes[i]->Close();
      } else if (texts[i]->size() < kMostText) {
        texts[i]->append(buffer, static_cast<size_t>(count));
      }
    }
  }
  return true;
}

}  // namespace

ChildResult RunLimited(double seconds, const std::function<int()>& work) {
  Pipe out, err;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) ThrowRuntime("cannot start a process: {}", WhyNoThread(errno));
  if (child == 0) RunChild(out, err, work);
  out.write.Close();
  err.write.Close();
  ChildResult result;
  const auto deadline =
      Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  result.in_time = ReadBoth(deadline, {&out.read, &err.read}, {&result.out, &result.err});
  // One that closed both pipes and goes on is out of time, too.
  int status = 0;
  pid_t ended = 0;
  while (result.in_time && (ended = waitpid(child, &status, WNOHANG)) == 0) {
    if (Clock::now() > deadline) result.in_time = false;
    usleep(1000);
  }
  if (!result.in_time) {
    kill(child, SIGKILL);
    // One that the kernel holds (a dead network disk) ends later; it is not waited for.
    for (int i = 0; i < 100 && waitpid(child, &status, WNOHANG) == 0; ++i) usleep(1000);
    return result;
  }
  if (ended == child && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (ended == child && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace zeroplan
