#include "executor/device/cuda/cuda_libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/base/error.h"
#include "core/base/shell_process.h"
#include "core/base/strings.h"
#include "machine/gpu_state.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Folders = std::vector<fs::path>;

constexpr int kCuda = CUDART_VERSION / 1000;  // its major version, which the names of files have

// The file has the version of its ABI in its name.
std::string FileOf(CudaLibrary library) {
  switch (library) {
    case CudaLibrary::kCublasLt:
      return fmt::format("libcublasLt.so.{}", kCuda);
    case CudaLibrary::kNccl:
      return "libnccl.so.2";
    case CudaLibrary::kCudnn:
      break;
  }
  return "libcudnn.so.9";
}

const char* TitleOf(CudaLibrary library) {
  switch (library) {
    case CudaLibrary::kCublasLt:
      return "cuBLASLt";
    case CudaLibrary::kNccl:
      return "NCCL";
    case CudaLibrary::kCudnn:
      break;
  }
  return "cuDNN";
}

Folders ListedFolders(const char* variable) {
  Folders folders;
  const char* text = std::getenv(variable);
  for (const std::string_view folder : Split(text != nullptr ? text : "", ':')) {
    if (!folder.empty()) folders.emplace_back(folder);
  }
  return folders;
}

// The packages of that Python.
Folders PackagesOf(const std::string& python) {
  Folders folders;
  if (python.empty() || python.find('\'') != std::string::npos) return folders;
  const std::string command =
      fmt::format("'{}' -c 'import sys; print(*sys.path, sep=\"\\n\")' 2> /dev/null", python);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  std::string text;
  char buffer[4096];
  while (pipe != nullptr) {
    const size_t count = std::fread(buffer, 1, sizeof buffer, pipe.get());
    if (count == 0) break;
    text.append(buffer, count);
  }
  for (const std::string_view entry : Split(text, '\n')) {
    // The first entry is the working folder, which is no place for libraries.
    if (!entry.starts_with('/')) continue;
    const Folders packages = PackageFolders(entry);
    folders.insert(folders.end(), packages.begin(), packages.end());
  }
  return folders;
}

// The Python of the environment that pip installed this program into.
std::string PythonBesideProgram() {
  std::error_code unknown;
  const fs::path python = fs::read_symlink("/proc/self/exe", unknown).parent_path() / "python3";
  return fs::exists(python, unknown) ? python.string() : "";
}

Folders OnThisMachine() {
  Folders folders = {"/usr/local/cuda/lib64"};
  for (const std::string_view folder : Split(ZEROPLAN_CUDA_FOLDERS, ':'))
    folders.emplace_back(folder);
  return folders;
}

// The first of them that opens; null if the file is in none. `failure`: why one that is there does
// not open.
void* OpenIn(const Folders& folders, const std::string& file, std::string& failure) {
  for (const fs::path& folder : folders) {
    std::error_code unknown;
    const fs::path path = folder / file;
    if (!fs::exists(path, unknown)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    if (const char* why = dlerror(); why != nullptr && failure.empty()) failure = why;
  }
  return nullptr;
}

void* Search(const std::string& file, std::string& failure) {
  if (void* handle = OpenIn(ListedFolders("LD_LIBRARY_PATH"), file, failure)) return handle;
  static const Folders beside = PackagesOf(PythonBesideProgram());
  if (void* handle = OpenIn(beside, file, failure)) return handle;
  if (void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  static const Folders on_path = PackagesOf(FindProgram("python3"));
  if (void* handle = OpenIn(on_path, file, failure)) return handle;
  return OpenIn(OnThisMachine(), file, failure);
}

OpenedLibrary Open(CudaLibrary library) {
  const std::string file = FileOf(library);
  OpenedLibrary opened;
  std::string failure;
  if (library == CudaLibrary::kCudnn) {
    // cuDNN asks the loader for these by name, and takes what is open already.
    OpenCudaLibrary(CudaLibrary::kCublasLt);
    std::string ignored;
    Search(fmt::format("libnvrtc.so.{}", kCuda), ignored);
  }
  opened.handle = Search(file, failure);
  if (opened.handle != nullptr) return opened;
  opened.why = failure.empty()
                   ? fmt::format(
                         "there is no {} ({}) in LD_LIBRARY_PATH, in Python's packages, or "
                         "where the loader looks",
                         file, TitleOf(library))
                   : fmt::format("{} cannot be loaded: {}", TitleOf(library), failure);
  return opened;
}

// Its functions; throws if the library or one of them is not there.
template <typename Functions>
Functions Load(CudaLibrary library, std::initializer_list<std::pair<const char*, void**>> functions,
               Functions& table) {
  const OpenedLibrary& opened = OpenCudaLibrary(library);
  if (opened.handle == nullptr) {
    ThrowRuntime("{}; {}", opened.why, InstallAdvice(library, CUDART_VERSION));
  }
  for (const auto& [name, function] : functions) {
    *function = dlsym(opened.handle, name);
    if (*function == nullptr) {
      ThrowRuntime("{} is too old: it has no {}; {}", TitleOf(library), name,
                   InstallAdvice(library, CUDART_VERSION));
    }
  }
  return table;
}

}  // namespace

Folders PackageFolders(const fs::path& site_packages) {
  Folders folders;
  std::error_code none;
  for (fs::directory_iterator entry(site_packages / "nvidia", none), end; !none && entry != end;
       entry.increment(none)) {
    const fs::path folder = entry->path() / "lib";
    std::error_code unknown;
    if (fs::is_directory(folder, unknown)) folders.push_back(folder);
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

const OpenedLibrary& OpenCudaLibrary(CudaLibrary library) {
  switch (library) {
    case CudaLibrary::kCublasLt: {
      static const OpenedLibrary opened = Open(library);
      return opened;
    }
    case CudaLibrary::kNccl: {
      static const OpenedLibrary opened = Open(library);
      return opened;
    }
    case CudaLibrary::kCudnn:
      break;
  }
  static const OpenedLibrary opened = Open(CudaLibrary::kCudnn);
  return opened;
}

const LtFunctions& Lt() {
  static const LtFunctions functions = [] {
    LtFunctions table{};
#define ZEROPLAN_ENTRY(name) {"cublasLt" #name, reinterpret_cast<void**>(&table.name)},
    return Load(CudaLibrary::kCublasLt, {ZEROPLAN_LT_FUNCTIONS(ZEROPLAN_ENTRY)}, table);
#undef ZEROPLAN_ENTRY
  }();
  return functions;
}

const NcclFunctions& Nccl() {
  static const NcclFunctions functions = [] {
    NcclFunctions table{};
#define ZEROPLAN_ENTRY(name) {"nccl" #name, reinterpret_cast<void**>(&table.name)},
    return Load(CudaLibrary::kNccl, {ZEROPLAN_NCCL_FUNCTIONS(ZEROPLAN_ENTRY)}, table);
#undef ZEROPLAN_ENTRY
  }();
  return functions;
}

int LibraryVersion(CudaLibrary library) {
  void* handle = OpenCudaLibrary(library).handle;
  if (handle == nullptr) return 0;
  if (library == CudaLibrary::kNccl) {
    const auto get = reinterpret_cast<decltype(&::ncclGetVersion)>(dlsym(handle, "ncclGetVersion"));
    int version = 0;
    return get != nullptr && get(&version) == ncclSuccess ? version : 0;
  }
  const char* name = library == CudaLibrary::kCudnn ? "cudnnGetVersion" : "cublasLtGetVersion";
  const auto get = reinterpret_cast<size_t (*)()>(dlsym(handle, name));
  return get != nullptr ? static_cast<int>(get()) : 0;
}

std::string CudaLibraryVersions() {
  std::string text;
  for (const CudaLibrary library :
       {CudaLibrary::kCublasLt, CudaLibrary::kNccl, CudaLibrary::kCudnn}) {
    const int version = LibraryVersion(library);
    if (version == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", TitleOf(library),
                        LibraryVersionText(version));
  }
  return text.empty() ? "none found" : text;
}

}  // namespace zeroplan
