// What tuning matrix products found, kept on disk from one run to the next: JSON, one file for each
// GPU model and version of cuBLASLt. A file that cannot be read is a warning and counts as empty.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "core/base/hash.h"

namespace zeroplan {

struct TunedProduct {
  std::string algorithm_hex;  // the library's opaque description
  double milliseconds = 0;    // of one product, as measured
};

// Whether the fused way (an epilogue) beat the product followed by a kernel of its own.
struct FusionChoice {
  bool fused = false;
  double fused_ms = 0, separate_ms = 0;  // fused_ms 0: the library cannot fuse this
};

struct GemmCacheContent {
  std::map<std::string, TunedProduct> products;  // by GemmProblemText
  std::map<std::string, FusionChoice> fusions;
};

// Where tuned algorithms are kept unless told otherwise: CacheFolder (core/base/files.h).
std::string DefaultCacheFolder();

// <folder>/gemm-<gpu name>-cublaslt<version>.json, the name's odd characters made '-'.
std::string GemmCachePath(const std::string& folder, const std::string& gpu_name,
                          std::size_t cublaslt_version);

// What the file holds; nothing if there is none, or (with a warning) if it is damaged or was
// written for another GPU model or version.
GemmCacheContent ReadGemmCache(const std::string& path, const std::string& gpu_name,
                               std::size_t cublaslt_version);

// Adds `content` to what the file holds by now (ranks tune at the same time) and replaces it in one
// step. Folders are made as needed. A failure is a warning: the next run tunes again.
void WriteGemmCache(const std::string& path, const std::string& gpu_name,
                    std::size_t cublaslt_version, const GemmCacheContent& content);

// False unless `hex` is exactly `count` bytes.
bool HexToBytes(const std::string& hex, void* bytes, std::size_t count);

}  // namespace zeroplan
