#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/base/error.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/device/cuda/cuda_libraries.h"
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"
#include "executor/measure/cuda/device_parts.h"
#include "machine/detect.h"
#include "machine/gpu_state.h"

namespace zeroplan {
namespace {

double Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess) return value;
  cudaGetLastError();
  return 0;
}

// "580.65.06" of "NVRM version: NVIDIA UNIX ... Kernel Module  580.65.06  ..."; "" if not there.
std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos &&
                        std::count(word.begin(), word.end(), '.') >= 1;
    if (number) return word;
  }
  return "";
}

std::string Libraries() {
  int runtime = 0, driver = 0;
  ZEROPLAN_CUDA(cudaRuntimeGetVersion(&runtime));
  ZEROPLAN_CUDA(cudaDriverGetVersion(&driver));
  std::string text = fmt::format("CUDA {} (driver for {}), {}", CudaVersionText(runtime),
                                 CudaVersionText(driver), CudaLibraryVersions());
  const std::string driver_version = DriverVersion();
  if (!driver_version.empty()) text += ", driver " + driver_version;
  if (const std::string variables = NcclEnvironment(); !variables.empty()) text += ", " + variables;
  return text;
}

}  // namespace

int VisibleGpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

DeviceProperties QueryDeviceProperties(int device) {
  DeviceProperties result;
  cudaDeviceProp properties{};
  ZEROPLAN_CUDA(cudaGetDeviceProperties(&properties, device));
  result.name = properties.name;
  result.compute_major = properties.major;
  result.compute_minor = properties.minor;
  result.sm_count = properties.multiProcessorCount;
  constexpr double kKilohertz = 1e3, kBitsOfByte = 8;
  result.max_sm_clock = Attribute(cudaDevAttrClockRate, device) * kKilohertz;
  result.memory_bandwidth = 2 * Attribute(cudaDevAttrMemoryClockRate, device) * kKilohertz *
                            Attribute(cudaDevAttrGlobalMemoryBusWidth, device) / kBitsOfByte;
  size_t free_bytes = 0, total_bytes = 0;
  ZEROPLAN_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  result.total_bytes = static_cast<double>(total_bytes);
  result.fused_attention = properties.major >= 8;  // own kernels, where there is no cuDNN
  result.libraries = Libraries();
  return result;
}

}  // namespace zeroplan
