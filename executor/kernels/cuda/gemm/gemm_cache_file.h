// The results of tuning matmuls, kept on disk from one run to the next: JSON, one file for each GPU
// model and version of cuBLASLt. A file that cannot be read causes a warning and counts as empty.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "core/base/hash.h"

namespace zeroplan {

struct TunedProduct {
  std::string algorithm_hex;  // the library's opaque description
  double milliseconds = 0;    // measured, of one matmul
};

// Whether the fused way (an epilogue) beat the matmul followed by a kernel of its own.
struct FusionChoice {
  bool fused = false;
  double fused_ms = 0, separate_ms = 0;  // fused_ms 0: the library cannot fuse this
};

struct GemmCacheContent {
  std::map<std::string, TunedProduct> products;  // by GemmProblemText
  std::map<std::string, FusionChoice> fusions;
};

// The default folder of tuned algorithms: CacheFolder (core/base/files.h).
std::string DefaultCacheFolder();

// <folder>/gemm-<gpu name>-cublaslt<version>.json, with unusual characters of the name replaced by
// '-'.
std::string GemmCachePath(const std::string& folder, const std::string& gpu_name,
                          std::size_t cublaslt_version);

// The file's content; empty if there is no file, or (with a warning) if it is damaged or was
// written for another GPU model or version.
GemmCacheContent ReadGemmCache(const std::string& path, const std::string& gpu_name,
                               std::size_t cublaslt_version);

// Adds `content` to the file's present content (ranks tune concurrently) and replaces the file in
// one step. Makes folders as needed. A failure is a warning: the next run tunes again.
void WriteGemmCache(const std::string& path, const std::string& gpu_name,
                    std::size_t cublaslt_version, const GemmCacheContent& content);

// False unless `hex` is exactly `count` bytes.
bool HexToBytes(const std::string& hex, void* bytes, std::size_t count);

}  // namespace zeroplan
