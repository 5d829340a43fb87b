#include "executor/kernels/cuda/gemm/gemm_cache_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/files.h"
#include "core/base/log.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kFormat = 1;

GemmCacheContent Parse(const Json& json) {
  GemmCacheContent content;
  for (const auto& [key, entry] : json.at("products").items()) {
    content.products[key] = {entry.at("algorithm").get<std::string>(),
                             entry.at("milliseconds").get<double>()};
  }
  for (const auto& [key, entry] : json.at("fusions").items()) {
    content.fusions[key] = {entry.at("fused").get<bool>(), entry.at("fused_ms").get<double>(),
                            entry.at("separate_ms").get<double>()};
  }
  return content;
}

}  // namespace

std::string DefaultCacheFolder() { return CacheFolder(); }

std::string GemmCachePath(const std::string& folder, const std::string& gpu_name,
                          std::size_t cublaslt_version) {
  std::string name = gpu_name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return fmt::format("{}/gemm-{}-cublaslt{}.json", folder, name, cublaslt_version);
}

GemmCacheContent ReadGemmCache(const std::string& path, const std::string& gpu_name,
                               std::size_t cublaslt_version) {
  std::ifstream file(path);
  if (!file) return {};
  try {
    const Json json = Json::parse(file);
    if (json.at("format").get<int>() != kFormat || json.at("gpu").get<std::string>() != gpu_name ||
        json.at("cublaslt").get<std::size_t>() != cublaslt_version) {
      LogWarning("{} was written for another GPU or library version; tuning again", path);
      return {};
    }
    return Parse(json);
  } catch (const Json::exception& error) {
    LogWarning("{} is damaged ({}); tuning again", path, error.what());
    return {};
  }
}

void WriteGemmCache(const std::string& path, const std::string& gpu_name,
                    std::size_t cublaslt_version, const GemmCacheContent& content) {
  static std::atomic<int> count = 0;  // ranks of one process must not share a temporary file
  std::error_code failure;
  fs::create_directories(fs::path(path).parent_path(), failure);

  GemmCacheContent all = content;
  GemmCacheContent old = ReadGemmCache(path, gpu_name, cublaslt_version);
  all.products.merge(old.products);  // keeps the new where both have an entry
  all.fusions.merge(old.fusions);
  Json products = Json::object(), fusions = Json::object();
  for (const auto& [key, entry] : all.products) {
    products[key] = {{"algorithm", entry.algorithm_hex}, {"milliseconds", entry.milliseconds}};
  }
  for (const auto& [key, entry] : all.fusions) {
    fusions[key] = {
        {"fused", entry.fused}, {"fused_ms", entry.fused_ms}, {"separate_ms", entry.separate_ms}};
  }
  const Json json = {{"format", kFormat},
                     {"gpu", gpu_name},
                     {"cublaslt", cublaslt_version},
                     {"products", products},
                     {"fusions", fusions}};

  const std::string temporary = fmt::format("{}.{}.{}", path, getpid(), count++);
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << json.dump(1) << '\n';
    file.close();
    if (!file) {
      LogWarning("cannot write {}; matrix products will be tuned again at the next start",
                 temporary);
      fs::remove(temporary, failure);
      return;
    }
  }
  fs::rename(temporary, path, failure);
  if (failure) {
    LogWarning("cannot replace {}: {}", path, failure.message());
    fs::remove(temporary, failure);
  }
}

bool HexToBytes(const std::string& hex, void* bytes, std::size_t count) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (hex.size() != 2 * count) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    static_cast<unsigned char*>(bytes)[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return true;
}

}  // namespace zeroplan
