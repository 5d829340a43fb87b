// Reading and writing of safetensors files: an 8-byte little-endian header length, a JSON header
// that says where each tensor lies, then the tensors' bytes without gaps. Source:
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

// Strings from a file that nobody has vouched for, fit for a terminal: no control characters, at
// most 120 characters.
std::string Printable(std::string_view text);

// A memory-mapped file, validated in full by Open: nothing that its header says is believed before
// it is checked, so hostile files give an error and no more. Thread-safe.
class SafetensorsFile {
 public:
  // Throws Error(kUsage) naming file and tensor for whatever the format forbids: a header that is
  // cut off, larger than 100 MB, no JSON object, or gives a name twice; unknown dtypes; sizes that
  // overflow or differ from shape times dtype; tensors outside the file, overlapping, or with gaps
  // between or behind them.
  static SafetensorsFile Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t file_bytes() const { return file_.size(); }
  // In the order of their data.
  std::span<const SafetensorsEntry> entries() const { return entries_; }
  // nullptr if there is none of that name.
  const SafetensorsEntry* Find(std::string_view name) const;
  // The "__metadata__" strings.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // HashBytes of the header's bytes, length included.
  uint64_t header_hash() const { return header_hash_; }

  // The tensor's bytes, as stored; not aligned.
  std::span<const std::byte> Bytes(const SafetensorsEntry& entry) const;
  // Asks for these bytes of a tensor, and some that follow, to be read from disk ahead of a look at
  // them; lets go of them after it.
  void Prefetch(const SafetensorsEntry& entry, uint64_t begin, uint64_t bytes) const;
  void DropResident(const SafetensorsEntry& entry, uint64_t begin, uint64_t bytes) const;
  // Elements [begin, begin + out.size()), widened to fp32. Throws Error(kUsage) if the dtype is
  // none of F32, BF16, F16. Reads ahead of and lets go behind itself, so that a file far larger
  // than memory can be read. REQUIRES: they lie within the tensor.
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

// Where everything of a file of F32, BF16, F16 or U8 tensors lies, known before the first value is.
struct SafetensorsPlan {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    Dtype dtype = Dtype::kF32;

    uint64_t elements() const;
    uint64_t bytes() const { return elements() * DtypeBytes(dtype); }
  };
  std::string header;            // length and JSON, padded to a multiple of 8 bytes
  std::vector<uint64_t> offset;  // of each tensor's first byte in the file
  std::vector<uint64_t> elements;
  std::vector<Dtype> dtype;
  uint64_t file_bytes = 0;
};

// Tensors lie in the order given. "format": "pt" is added to `metadata`: transformers asks for it.
// REQUIRES: distinct names.
SafetensorsPlan PlanSafetensors(std::span<const SafetensorsPlan::Tensor> tensors,
                                std::map<std::string, std::string> metadata = {});

// Streams the values of planned tensors into a file.
class SafetensorsWriter {
 public:
  // Creates the file, takes its room on the disk and writes the header. Throws Error(kRuntime).
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsPlan plan,
                    IoHook* hook = nullptr);

  const SafetensorsPlan& plan() const { return plan_; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Elements [begin, begin + values.size()) of a tensor, in any order, rounded to its dtype as
  // masters are to parameters: to bf16 halves away from zero (core/base/split_master.h), to fp16 to
  // even. REQUIRES: within the tensor, whose dtype is none of integers.
  void WriteAt(size_t tensor, uint64_t begin, std::span<const float> values);
  // The same of elements as they are stored.
  void WriteStored(size_t tensor, uint64_t begin, std::span<const std::byte> stored);
  // fsync and close. Values never written are zero.
  void Finish() { file_.Finish(); }

 private:
  SafetensorsPlan plan_;
  DurableFile file_;
};

// The JSON header of a safetensors file.

// A file begins with the length of its header.
constexpr uint64_t kLengthBytes = 8;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Parses and checks a header against the `data_bytes` that follow it. Throws Error(kUsage), see
// SafetensorsFile::Open; `path` is named.
SafetensorsHeader ParseSafetensorsHeader(std::string_view text, uint64_t data_bytes,
                                         const std::filesystem::path& path);

}  // namespace zeroplan
