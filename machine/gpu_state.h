// The state of this machine's NVIDIA GPUs and their libraries: their settings and present use as
// reported by the driver's management library, for 'zeroplan doctor'. detect.h has names and memory
// for planning.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

// The CUDA libraries with which the executor was built, and those that it finds: plain numbers, for
// programs that load none of them.

// Versions in the libraries' own numbers: CUDA 13000, NCCL 22803, cuDNN 91400.
struct LibraryFacts {
  std::string version;        // zeroplan's
  bool cuda = false;          // built with CUDA; without it the other members are empty
  std::string architectures;  // architectures of the compiled kernels: "80-real,90-real"
  int runtime = 0;            // CUDA's, linked in
  int driver = 0;             // the newest CUDA that the driver supports; 0: no driver
  int gpus = 0;               // usable by CUDA here
  int failure = 0;            // CUDA's error code if it can use none
  std::string why;            // and its message
  int cublaslt = 0;           // 0: not found; here and below
  std::string why_no_cublaslt;
  int nccl = 0, nccl_at_build = 0;
  std::string why_no_nccl;
  int cudnn = 0, cudnn_at_build = 0;  // 0 at build: not built with
  std::string why_no_cudnn;
};

// How to get a library for programs that were built with CUDA `runtime` (13000): "pip install
// nvidia-nccl-cu13, or name its folder in LD_LIBRARY_PATH".
enum class CudaLibrary : uint8_t { kCublasLt, kNccl, kCudnn };
std::string InstallAdvice(CudaLibrary library, int runtime);

// The first thing that work on `gpus` GPUs lacks, and what gets it. Nothing if all is there.
// `shown`: the driver's management library lists GPUs. REQUIRES: facts.cuda.
struct CudaLack {
  std::string fact, fix;
};
std::optional<CudaLack> FindCudaLack(const LibraryFacts& facts, int gpus, bool shown);

// The result of page-locking memory on trial; all of it is freed again.
struct PinnedFacts {
  uint64_t asked_bytes = 0, locked_bytes = 0;
  std::string refusal;  // the driver's message when it refused more; "": it refused nothing
};

// "13.0" for 13000.
std::string CudaVersionText(int version);
// "2.28.3" for NCCL's 22803, "9.14.0" for cuDNN's 91400; also for cuBLASLt's numbers.
std::string LibraryVersionText(int version);

// Whether the user disabled detection: ZEROPLAN_NO_DETECT=1.
bool DetectionIsOff();

// The indices in CUDA_VISIBLE_DEVICES, in its order; nothing if it is not set or names devices
// otherwise than by index.
std::optional<std::vector<unsigned>> VisibleDevices();

// NVML, the driver's management library, loaded at run time: planning needs no CUDA to build or
// run. Callers declare the functions that they use; NVML's ABI keeps the declarations stable.
class ManagementLibrary {
 public:
  static constexpr int kSuccess = 0;

  // Loads and initialises it; without a driver ready() is false.
  ManagementLibrary() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    const auto init = Find<int (*)()>("nvmlInit_v2");
    shutdown_ = Find<int (*)()>("nvmlShutdown");
    if (init != nullptr && shutdown_ != nullptr) status_ = init();
  }
  ~ManagementLibrary() {
    if (ready()) shutdown_();
  }
  ManagementLibrary(const ManagementLibrary&) = delete;
  ManagementLibrary& operator=(const ManagementLibrary&) = delete;

  bool ready() const { return status_ == kSuccess; }
  // Whether the library exists, that is, the driver is installed.
  bool found() const { return library_ != nullptr; }
  // The library's message about why it is not ready; "" if it has none.
  std::string WhyNotReady() const {
    const auto say = Find<const char* (*)(int)>("nvmlErrorString");
    return found() && !ready() && say != nullptr && status_ != kNotAsked ? say(status_) : "";
  }
  // Null if the library lacks the function.
  template <typename Function>
  Function Find(const char* name) const {
    if (!library_) return nullptr;
    return reinterpret_cast<Function>(dlsym(library_.get(), name));
  }
  // The value that the function writes to its last argument; nothing if it is missing or fails.
  template <typename Value, typename... Args>
  std::optional<Value> Ask(const char* name, Args... arguments) const {
    const auto function = ready() ? Find<int (*)(Args..., Value*)>(name) : nullptr;
    Value value{};
    if (function == nullptr || function(arguments..., &value) != kSuccess) return std::nullopt;
    return value;
  }
  // The same for a function that writes a text; "" for nothing.
  template <typename... Args>
  std::string AskText(const char* name, Args... arguments) const {
    const auto function = ready() ? Find<int (*)(Args..., char*, unsigned)>(name) : nullptr;
    char text[128] = {};
    return function != nullptr && function(arguments..., text, sizeof text) == kSuccess ? text : "";
  }

 private:
  static constexpr int kNotAsked = -1;
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  std::unique_ptr<void, Close> library_;
  int (*shutdown_)() = nullptr;
  int status_ = kNotAsked;
};

struct GpuProcess {
  unsigned pid = 0;
  std::optional<uint64_t> bytes;  // bytes of this GPU's memory
};

// Empty members: not reported by the driver.
struct GpuState {
  unsigned index = 0;   // the driver's
  bool visible = true;  // included in CUDA_VISIBLE_DEVICES
  std::string name;     // "NVIDIA H200"
  std::string bus;      // "00000000:3b:00.0"
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> used_bytes;  // excludes the driver's own
  std::optional<int> compute_major, compute_minor;
  std::optional<bool> ecc, mig;
  // the limit enforced now, and the default
  std::optional<double> limit_watts, default_limit_watts;
  std::optional<int> pcie_generation, most_pcie_generation;
  std::optional<int> pcie_width, most_pcie_width;  // lanes
  std::optional<int> performance_state;            // 0: full clocks, 8 and more: idle
  enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };
  std::optional<ComputeMode> compute_mode;
  std::optional<std::vector<GpuProcess>> processes;  // compute processes that this user may see
  int links = 0, active_links = 0;                   // NVLink; 0: none
  std::optional<int> numa_node;
};

struct GpuPair {
  unsigned a = 0, b = 0;     // the driver's indices
  std::optional<bool> peer;  // each can read and write the other's memory
  std::string why_not;       // the reason if not
  bool nvlink = false;
};

struct GpuStates {
  bool is_off = false;         // ZEROPLAN_NO_DETECT: nothing was queried
  bool library = false;        // libnvidia-ml.so.1 exists
  bool answers = false;        // and has a driver that answers
  std::string why;             // the library's reason for not answering
  std::string driver;          // "580.82.07"
  std::optional<int> cuda;     // the newest CUDA that the driver supports: 13000
  std::vector<GpuState> gpus;  // all, including invisible ones
  std::vector<GpuPair> pairs;  // pairs of visible GPUs
};

// Never throws.
GpuStates QueryGpuStates();

// GB/s of one lane of that generation, each way, after line coding (8b/10b in generations 1 and 2,
// 128b/130b from 3 to 5, PAM4 with FLITs of 242/256 in 6). 0: unknown.
double PcieLaneBandwidth(int generation);

}  // namespace zeroplan
