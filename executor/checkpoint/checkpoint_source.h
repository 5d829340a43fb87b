// Reading a checkpoint back: any range of any tensor, however many ranks wrote it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

// The folder to resume from: what DIR/checkpoints/latest names; `path` itself if it is a checkpoint
// (holds a meta.json). If `latest` is missing, as after a first save that was cut off right before
// its end, the newest complete checkpoint, with a warning. Throws Error(kUsage) if there is none.
std::filesystem::path FindCheckpoint(const std::filesystem::path& path);

class CheckpointSource : public StateSource {
 public:
  // Opens FindCheckpoint(path). Everything is checked before anything is read: that the model is
  // the same, that each file is there, whole and the one that was saved, that together they hold
  // every element of every state once. Throws Error(kUsage) naming the file and the fix; if the
  // checkpoint is damaged, also the newest intact one and how to resume from that.
  static CheckpointSource Open(const std::filesystem::path& path, const ModelSpec& spec,
                               std::span<const ParamTensor> table);

  const CheckpointMeta& meta() const { return meta_; }
  const std::filesystem::path& folder() const { return folder_; }

  // What it reads is held against its checksums first. Throws Error(kUsage) as Open does where the
  // data is not what was saved.
  void Read(const TensorRange& range, std::span<float> out) const override;
  // Holds all data against its checksums. Throws as Read does.
  void Verify() const;

 private:
  // Elements [begin, begin + count) of a tensor's state, stored as fp32.
  struct Piece {
    uint64_t begin = 0;
    uint64_t count = 0;
    const std::byte* data = nullptr;
    size_t first_chunk = 0;  // in checksums_
    size_t file = 0;
  };

  CheckpointSource() = default;
  static CheckpointSource OpenFolder(const std::filesystem::path& folder, CheckpointMeta meta,
                                     std::span<const ParamTensor> table);
  // One sentence about the newest checkpoint beside `damaged` that opens.
  static std::string Intact(const std::filesystem::path& damaged, const ModelSpec& spec,
                            std::span<const ParamTensor> table);
  void AddFile(const CheckpointFile& expected,
               const std::unordered_map<std::string_view, size_t>& index_of);
  void CheckCover() const;
  void VerifyAll() const;
  // What `look` returns; damage that it throws goes on with what Intact says.
  template <typename Fn>
  static auto WithWayOut(const std::filesystem::path& folder, const ModelSpec& spec,
                         std::span<const ParamTensor> table, const Fn& look);
  void VerifyPiece(const Piece& piece, size_t tensor_and_state, uint64_t begin,
                   uint64_t count) const;

  std::filesystem::path folder_;
  CheckpointMeta meta_;
  std::vector<SafetensorsFile> files_;
  std::vector<ParamTensor> table_;
  std::vector<std::vector<Piece>> pieces_;         // by tensor and state; sorted, without gaps
  std::vector<uint64_t> checksums_;                // of all files
  std::unique_ptr<std::atomic<bool>[]> verified_;  // by checksum
};

}  // namespace zeroplan
