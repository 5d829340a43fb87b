// `train --tensorboard`: a folder of event files, one for each process that wrote to it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace zeroplan {

// Called before the work. Throws Error(kUsage) if `folder` is no folder, cannot be written or made,
// or, without `resume`, holds event files, because TensorBoard would draw both runs as one.
void CheckTensorboardFolder(const std::filesystem::path& folder, bool resume);

// The name of the next event file of `folder`, which sorts after the existing ones, because
// TensorBoard reads a folder's files by name. `now`: seconds since 1970.
std::string NextEventFileName(const std::filesystem::path& folder, int64_t now);

class TensorboardLog {
 public:
  // Makes the folder, if needed, and a file in it. `first_step`: the first step of this process;
  // later steps that an earlier process wrote become void. Throws Error(kRuntime) naming the file
  // if it cannot be made.
  TensorboardLog(const std::filesystem::path& folder, int64_t first_step);

  // Writes and flushes the scalars as one record. A failed write ends the file with a warning, not
  // the run.
  void Add(int64_t step, std::span<const std::pair<std::string_view, double>> scalars);

 private:
  void Write(std::string_view event);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// The bytes of TensorBoard's event files: Event messages (protocol buffers), each as one record of
// a TFRecord file. Written by hand, because a run needs five fields of them. Both formats are fixed
// since TensorFlow 1.0 (its record_writer.cc, event.proto and summary.proto).

// CRC-32C (Castagnoli): polynomial 0x1edc6f41, bits reflected, begun and ended with all ones (RFC
// 3720, appendix B.4 has test vectors).
uint32_t Crc32c(std::string_view bytes);
// TFRecord's mask: rotated right by 15 bits, plus 0xa282ead8.
uint32_t MaskedCrc32c(std::string_view bytes);

// All numbers little-endian:
//   u64 size of the payload, u32 masked CRC of these 8 bytes, payload, u32 masked CRC of it
std::string TfRecord(std::string_view payload);

// Event messages, payloads of records. `wall_time`: seconds since 1970.
//   Event:      1 wall_time (double), 2 step (int64), 3 file_version (string),
//               5 summary (Summary), 7 session_log (SessionLog)
//   Summary:    1 value, repeated (Summary.Value)
//   Value:      1 tag (string), 2 simple_value (float)
//   SessionLog: 1 status (1: START)

// The first event of every file.
std::string FileVersionEvent(double wall_time);
// Marks that a process starts to write. TensorBoard drops earlier files' events of `first_step` and
// later steps.
std::string SessionStartEvent(double wall_time, int64_t first_step);
// All scalars of one step in one record, so that they are either all there or all missing. Stored
// as fp32.
std::string ScalarsEvent(double wall_time, int64_t step,
                         std::span<const std::pair<std::string_view, double>> scalars);

}  // namespace zeroplan
