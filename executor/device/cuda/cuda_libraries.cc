#include "executor/device/cuda/cuda_libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/base/shell_process.h"
#include "core/base/strings.h"
#include "machine/gpu_state.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Folders = std::vector<fs::path>;

constexpr int kCuda = CUDART_VERSION / 1000;  // its major version, which the names of files have

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

// The folders lib of the packages nvidia/* in `site_packages`, sorted.
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

// The packages of that Python. It runs in the root folder, so that empty entries of PYTHONPATH name
// that and not the working folder, whose files others may have written.
Folders PackagesOf(const std::string& python) {
  Folders folders;
  if (python.empty() || python.find('\'') != std::string::npos) return folders;
  const std::string command = fmt::format(
      "cd / && '{}' -c 'import sys; print(*sys.path, sep=\"\\n\")' 2> /dev/null", python);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  std::string text;
  char buffer[4096];
  while (pipe != nullptr) {
    const size_t count = std::fread(buffer, 1, sizeof buffer, pipe.get());
    if (count == 0) break;
    text.append(buffer, count);
  }
  for (const std::string_view entry : Split(text, '\n')) {
    if (!entry.starts_with('/')) continue;
    const Folders packages = PackageFolders(entry);
    folders.insert(folders.end(), packages.begin(), packages.end());
  }
  return folders;
}

// The Python of the environment that pip installed this program into.
std::string PythonBesideProgram() {
  std::error_code unknown;
  const fs::path python = ProgramFolder() / "python3";
  return fs::exists(python, unknown) ? python.string() : "";
}

Folders OnThisMachine() {
  Folders folders = {"/usr/local/cuda/lib64"};
  for (const std::string_view folder : Split(ZEROPLAN_CUDA_FOLDERS, ':')) {
    if (!folder.empty()) folders.emplace_back(folder);
  }
  return folders;
}

struct Wanted {
  std::string file;
  std::vector<const char*> functions{};  // one that lacks them is too old
};

Wanted WantedOf(CudaLibrary library) {
  switch (library) {
    case CudaLibrary::kCublasLt:
#define ZEROPLAN_NAME(name) "cublasLt" #name,
      return {fmt::format("libcublasLt.so.{}", kCuda), {ZEROPLAN_LT_FUNCTIONS(ZEROPLAN_NAME)}};
#undef ZEROPLAN_NAME
    case CudaLibrary::kNccl:
#define ZEROPLAN_NAME(name) "nccl" #name,
      return {"libnccl.so.2", {ZEROPLAN_NCCL_FUNCTIONS(ZEROPLAN_NAME)}};
#undef ZEROPLAN_NAME
    case CudaLibrary::kCudnn:
      break;
  }
  return {"libcudnn.so.9", {"cudnnGetVersion"}};
}

// Opens the library of a path, or where the loader finds that name. Null if it does not open or is
// too old; `failure` then has the reason for the first that is there.
void* OpenAt(const std::string& path, const Wanted& wanted, std::string& failure) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::string why;
  if (handle == nullptr) {
    const char* said = dlerror();
    why = said != nullptr ? said : "";
    // The loader's words for a file that is nowhere.
    if (why.starts_with(wanted.file + ": cannot open shared object file")) return nullptr;
  } else {
    for (const char* name : wanted.functions) {
      if (dlsym(handle, name) != nullptr) continue;
      const link_map* file = nullptr;
      dlinfo(handle, RTLD_DI_LINKMAP, &file);
      why = fmt::format("{} is too old: it has no {}", file != nullptr ? file->l_name : path, name);
      dlclose(handle);
      handle = nullptr;
      break;
    }
  }
  if (handle == nullptr && failure.empty()) failure = why;
  return handle;
}

void* OpenIn(const Folders& folders, const Wanted& wanted, std::string& failure) {
  for (const fs::path& folder : folders) {
    std::error_code unknown;
    const fs::path path = folder / wanted.file;
    if (!fs::exists(path, unknown)) continue;
    if (void* handle = OpenAt(path.string(), wanted, failure)) return handle;
  }
  return nullptr;
}

void* Search(const Wanted& wanted, std::string& failure) {
  if (void* handle = OpenIn(ListedFolders("LD_LIBRARY_PATH"), wanted, failure)) return handle;
  static const Folders beside = PackagesOf(PythonBesideProgram());
  if (void* handle = OpenIn(beside, wanted, failure)) return handle;
  if (void* handle = OpenAt(wanted.file, wanted, failure)) return handle;
  static const Folders on_path = PackagesOf(FindProgram("python3"));
  if (void* handle = OpenIn(on_path, wanted, failure)) return handle;
  return OpenIn(OnThisMachine(), wanted, failure);
}

OpenedLibrary Open(CudaLibrary library) {
  if (library == CudaLibrary::kCudnn) {
    // cuDNN asks the loader for these by name, and takes what is open already.
    OpenCudaLibrary(CudaLibrary::kCublasLt);
    std::string ignored;
    Search({fmt::format("libnvrtc.so.{}", kCuda)}, ignored);
  }
  const Wanted wanted = WantedOf(library);
  OpenedLibrary opened;
  std::string failure;
  opened.handle = Search(wanted, failure);
  if (opened.handle != nullptr) return opened;
  opened.why = !failure.empty()
                   ? failure
                   : fmt::format(
                         "there is no {} ({}) in LD_LIBRARY_PATH, in Python's packages, or "
                         "where the loader looks",
                         wanted.file, TitleOf(library));
  return opened;
}

// The handle of the library; throws if there is none.
void* Require(CudaLibrary library) {
  const OpenedLibrary& opened = OpenCudaLibrary(library);
  if (opened.handle != nullptr) return opened.handle;
  ThrowRuntime("{}; {}", opened.why, InstallAdvice(library, CUDART_VERSION));
}

template <typename Function>
void Set(Function& function, void* handle, const char* name) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
}

}  // namespace

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
    void* handle = Require(CudaLibrary::kCublasLt);
    LtFunctions table{};
#define ZEROPLAN_SET(name) Set(table.name, handle, "cublasLt" #name);
    ZEROPLAN_LT_FUNCTIONS(ZEROPLAN_SET)
#undef ZEROPLAN_SET
    return table;
  }();
  return functions;
}

const NcclFunctions& Nccl() {
  static const NcclFunctions functions = [] {
    void* handle = Require(CudaLibrary::kNccl);
    NcclFunctions table{};
#define ZEROPLAN_SET(name) Set(table.name, handle, "nccl" #name);
    ZEROPLAN_NCCL_FUNCTIONS(ZEROPLAN_SET)
#undef ZEROPLAN_SET
    return table;
  }();
  return functions;
}

int LibraryVersion(CudaLibrary library) {
  void* handle = OpenCudaLibrary(library).handle;
  if (handle == nullptr) return 0;
  int version = 0;
  switch (library) {
    case CudaLibrary::kCublasLt:
      return static_cast<int>(Lt().GetVersion());
    case CudaLibrary::kNccl:
      return Nccl().GetVersion(&version) == ncclSuccess ? version : 0;
    case CudaLibrary::kCudnn:
      break;
  }
  return static_cast<int>(reinterpret_cast<size_t (*)()>(dlsym(handle, "cudnnGetVersion"))());
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
