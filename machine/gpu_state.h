// The NVIDIA GPUs of this machine and their libraries: how they are set up and used now, as the
// driver's management library says it, what 'zeroplan doctor' looks at. Names and memory for
// planning are detect.h's.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

// The CUDA libraries that a build of the executor was built with, and those that it finds: plain
// numbers, for programs that load none of them.

// Versions are numbers as the libraries give them: CUDA 13000, NCCL 22803, cuDNN 91400.
struct LibraryFacts {
  std::string version;        // zeroplan's
  bool cuda = false;          // built with CUDA; without it the rest is empty
  std::string architectures;  // that kernels were compiled for: "80-real,90-real"
  int runtime = 0;            // of CUDA, linked in
  int driver = 0;             // the newest CUDA that the driver takes; 0: no driver
  int gpus = 0;               // that CUDA can use here
  int failure = 0;            // CUDA's error code where it can use none
  std::string why;            // and what it says
  int nccl = 0, nccl_at_build = 0;
  int cudnn = 0, cudnn_at_build = 0;  // 0: not found, not built with
  std::string why_no_cudnn;
};

// What the driver page-locked when it was tried, all of it let go again.
struct PinnedFacts {
  uint64_t asked_bytes = 0, locked_bytes = 0;
  std::string refusal;  // what the driver said where it refused more; "": it refused none
};

// "13.0" of 13000.
std::string CudaVersionText(int version);
// "2.28.3" of NCCL's 22803, "9.14.0" of cuDNN's 91400; cuBLASLt counts so too.
std::string LibraryVersionText(int version);

// Whether the user wants no detection: ZEROPLAN_NO_DETECT=1.
bool DetectionIsOff();

// Indices that CUDA_VISIBLE_DEVICES leaves, in its order; nothing if it is not set or names devices
// by something else than an index.
std::optional<std::vector<unsigned>> VisibleDevices();

// NVML, the driver's management library, loaded at run time: planning needs no CUDA to build or
// run. Whoever calls a function of it declares it; NVML's ABI keeps declarations stable.
class ManagementLibrary {
 public:
  static constexpr int kSuccess = 0;

  // Loads and initialises it; not ready() without a driver.
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
  // Whether the library is there at all: the driver is installed.
  bool found() const { return library_ != nullptr; }
  // Why it is not ready, in its own words; "" where it does not say.
  std::string WhyNotReady() const {
    const auto say = Find<const char* (*)(int)>("nvmlErrorString");
    return found() && !ready() && say != nullptr && status_ != kNotAsked ? say(status_) : "";
  }
  // Null if the library lacks it.
  template <typename Function>
  Function Find(const char* name) const {
    if (!library_) return nullptr;
    return reinterpret_cast<Function>(dlsym(library_.get(), name));
  }
  // What the function writes to its last argument; nothing if it is missing or fails.
  template <typename Value, typename... Args>
  std::optional<Value> Ask(const char* name, Args... arguments) const {
    const auto function = ready() ? Find<int (*)(Args..., Value*)>(name) : nullptr;
    Value value{};
    if (function == nullptr || function(arguments..., &value) != kSuccess) return std::nullopt;
    return value;
  }
  // The same of one that writes a text; "" for nothing.
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
  std::optional<uint64_t> bytes;  // of this GPU's memory
};

// What the driver does not say is empty.
struct GpuState {
  unsigned index = 0;   // the driver's
  bool visible = true;  // CUDA_VISIBLE_DEVICES leaves it
  std::string name;     // "NVIDIA H200"
  std::string bus;      // "00000000:3b:00.0"
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> used_bytes;  // without what the driver keeps for itself
  std::optional<int> compute_major, compute_minor;
  std::optional<bool> ecc, mig;
  std::optional<double> limit_watts, default_limit_watts;  // the one enforced now
  std::optional<int> pcie_generation, most_pcie_generation;
  std::optional<int> pcie_width, most_pcie_width;  // lanes
  std::optional<int> performance_state;            // 0: full clocks, 8 and more: at rest
  enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };
  std::optional<ComputeMode> compute_mode;
  std::optional<std::vector<GpuProcess>> processes;  // that compute; those this user may see
  int links = 0, active_links = 0;                   // NVLink; 0: none
  std::optional<int> numa_node;
};

struct GpuPair {
  unsigned a = 0, b = 0;     // indices of the driver
  std::optional<bool> peer;  // reads and writes each other's memory
  std::string why_not;       // where it does not
  bool nvlink = false;
};

struct GpuStates {
  bool is_off = false;         // ZEROPLAN_NO_DETECT: nothing was asked
  bool library = false;        // libnvidia-ml.so.1 is there
  bool answers = false;        // and has a driver to ask
  std::string why;             // why it does not answer, in its words
  std::string driver;          // "580.82.07"
  std::optional<int> cuda;     // the newest CUDA that the driver takes: 13000
  std::vector<GpuState> gpus;  // all, also those that are not visible
  std::vector<GpuPair> pairs;  // of the visible ones
};

// Never throws.
GpuStates QueryGpuStates();

// GB/s that one lane of that generation moves each way, after line coding (8b/10b in generations 1
// and 2, 128b/130b from 3 to 5, PAM4 with FLITs of 242/256 in 6). 0: not known.
double PcieLaneBandwidth(int generation);

}  // namespace zeroplan
