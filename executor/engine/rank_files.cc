#include "executor/engine/rank_files.h"

#include <span>

namespace zeroplan {

void RankFiles::Run(const FileIo& io, const ResolvedInstruction& resolved) {
  switch (io.target) {
    case FileTarget::kSwap:
      return RunSwap(io, resolved);
    case FileTarget::kCheckpoint:
      return RunCheckpointIo(program_, io, rank_, binding_,
                             {reinterpret_cast<float*>(resolved.src), io.count});
  }
}

void RankFiles::RunSwap(const FileIo& io, const ResolvedInstruction& resolved) {
  const std::span<std::byte> host(resolved.src, resolved.bytes);
  if (io.write) {
    swap_.Write(resolved.file_offset, host);
    written_bytes_ += resolved.bytes;
  } else {
    swap_.Read(resolved.file_offset, host);
    read_bytes_ += resolved.bytes;
  }
}

}  // namespace zeroplan
