// Reads and writes safetensors files: an 8-byte little-endian header length, a JSON header with the
// position of each tensor, then the tensors' bytes without gaps. Source:
// https://github.com/huggingface/safetensors, README, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/files.h"
#include "text/files/mapped_file.h"

namespace zeroplan {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the format spells it: "F32", "BF16", ...
  std::vector<uint64_t> shape;
  uint64_t elements = 0;  // product of the shape; 1 for a scalar
  uint64_t begin = 0;     // bytes from the start of the tensors' data
  uint64_t end = 0;
};

// "[2, 3]", as messages print a shape.
std::string FormatShape(std::span<const uint64_t> shape);

// Makes a string from an untrusted file safe for a terminal: no control characters, at most 120
// characters.
std::string Printable(std::string_view text);

// A memory-mapped file. Open validates the whole header before anything uses it, so that a hostile
// file only causes an error. Thread-safe.
class SafetensorsFile {
 public:
  // Throws Error(kUsage) that names file and tensor for anything that the format forbids: a header
  // that is truncated, larger than 100 MB, no JSON object, or has a name twice; unknown dtypes;
  // sizes that overflow or differ from shape times dtype; tensors outside the file, overlapping, or
  // with gaps between or after them.
  static SafetensorsFile Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t file_bytes() const { return file_.size(); }
  // In the order of their data.
  std::span<const SafetensorsEntry> entries() const { return entries_; }
  // nullptr if there is no tensor of that name.
  const SafetensorsEntry* Find(std::string_view name) const;
  // The "__metadata__" strings.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // HashBytes of the header's bytes, including the length.
  uint64_t header_hash() const { return header_hash_; }

  // The tensor's bytes, as stored; not aligned.
  std::span<const std::byte> Bytes(const SafetensorsEntry& entry) const;
  // Prefetch requests the read of these bytes of a tensor, and some that follow, from disk before
  // they are used. DropResident releases them after use.
  void Prefetch(const SafetensorsEntry& entry, uint64_t begin, uint64_t bytes) const;
  void DropResident(const SafetensorsEntry& entry, uint64_t begin, uint64_t bytes) const;
  // Reads elements [begin, begin + out.size()), widened to fp32. Throws Error(kUsage) if the dtype
  // is none of F32, BF16, F16. Prefetches and releases as it proceeds, so that a file far larger
  // than memory can be read. REQUIRES: the elements lie within the tensor.
  void ReadFloats(const SafetensorsEntry& entry, uint64_t begin, std::span<float> out) const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  MappedFile file_;
  uint64_t data_offset_ = 0;
  uint64_t header_hash_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views of entries_' names
  std::map<std::string, std::string> metadata_;
};

// The layout of a file of F32, BF16, F16 or U8 tensors, which is known before the first value.
struct SafetensorsPlan {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    Dtype dtype = Dtype::kF32;

    uint64_t elements() const;
    uint64_t bytes() const { return elements() * DtypeBytes(dtype); }
  };
  std::string header;            // length and JSON, padded to a multiple of 8 bytes
  std::vector<uint64_t> offset;  // the position of each tensor's first byte in the file
  std::vector<uint64_t> elements;
  std::vector<Dtype> dtype;
  uint64_t file_bytes = 0;
};

// Places tensors in the given order. Adds "format": "pt" to `metadata`, because transformers
// requires it. REQUIRES: distinct names.
SafetensorsPlan PlanSafetensors(std::span<const SafetensorsPlan::Tensor> tensors,
                                std::map<std::string, std::string> metadata = {});

// Streams the values of planned tensors into a file.
class SafetensorsWriter {
 public:
  // Creates the file, allocates its disk space and writes the header. Throws Error(kRuntime).
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsPlan plan,
                    IoHook* hook = nullptr);

  const SafetensorsPlan& plan() const { return plan_; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Writes elements [begin, begin + values.size()) of a tensor; calls may be in any order. Rounds
  // values to the tensor's dtype as masters are rounded to parameters: to bf16 with halves away
  // from zero (core/base/split_master.h), to fp16 with halves to even. REQUIRES: the elements lie
  // within the tensor, and its dtype is no integer type.
  void WriteAt(size_t tensor, uint64_t begin, std::span<const float> values);
  // The same for elements in their stored form.
  void WriteStored(size_t tensor, uint64_t begin, std::span<const std::byte> stored);
  // fsync and close. Values never written are zero.
  void Finish() { file_.Finish(); }

 private:
  SafetensorsPlan plan_;
  DurableFile file_;
};

// Below: the JSON header of a safetensors file.

// A file begins with the length of its header.
constexpr uint64_t kLengthBytes = 8;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Parses a header and checks it against the `data_bytes` that follow it. Throws Error(kUsage) that
// names `path`, see SafetensorsFile::Open.
SafetensorsHeader ParseSafetensorsHeader(std::string_view text, uint64_t data_bytes,
                                         const std::filesystem::path& path);

}  // namespace zeroplan
