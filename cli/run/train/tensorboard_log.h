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

// Called before the work. Throws Error(kUsage) if `folder` is none, cannot be written or made, or,
// without `resume`, holds event files: TensorBoard would draw both runs as one.
void CheckTensorboardFolder(const std::filesystem::path& folder, bool resume);

// The name of the next event file of `folder`, which sorts after those that are there: TensorBoard
// reads a folder's files by name. `now`: seconds since 1970.
std::string NextEventFileName(const std::filesystem::path& folder, int64_t now);

class TensorboardLog {
 public:
  // Makes the folder, if need be, and a file in it. `first_step`: the step that this process begins
  // with; later steps that an earlier process wrote are void. Throws Error(kRuntime) naming the
  // file if it cannot be made.
  TensorboardLog(const std::filesystem::path& folder, int64_t first_step);

  // Written and flushed as one record. What cannot be written ends the file with a warning, not the
  // run.
  void Add(int64_t step, std::span<const std::pair<std::string_view, double>> scalars);

 private:
  void Write(std::string_view event);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace zeroplan
