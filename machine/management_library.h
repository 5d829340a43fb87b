// NVML, the driver's management library, loaded at run time: planning needs no CUDA to build or
// run. Whoever calls a function of it declares it; NVML's ABI keeps declarations stable.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>

namespace zeroplan {

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

 private:
  static constexpr int kNotAsked = -1;
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  std::unique_ptr<void, Close> library_;
  int (*shutdown_)() = nullptr;
  int status_ = kNotAsked;
};

}  // namespace zeroplan
