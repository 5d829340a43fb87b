// The display of `train --watch`: the loss, the speed, memory against the plan, and the machine's
// load, as lines of text for any size of terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/terminal.h"
#include "machine/machine_load.h"

namespace zeroplan {

// A series of numbers in bounded memory: beyond kMost numbers, each two become their mean.
class Series {
 public:
  static constexpr size_t kMost = 4096;
  void Add(double value);
  bool empty() const { return points_.empty() && pending_count_ == 0; }
  // At most `most` means over equal parts, oldest first; fewer if there are fewer numbers. NaN (the
  // loss of a skipped step) counts in none.
  std::vector<double> Means(size_t most) const;

 private:
  std::vector<double> points_;
  size_t per_point_ = 1;  // numbers in each point
  double pending_sum_ = 0;
  size_t pending_count_ = 0;
};

struct WatchState {
  std::string model;
  int ranks = 1;
  int64_t step = 0, steps = 0;
  int64_t first_step = 0;  // step before the first of this process's run
  double elapsed_seconds = 0, left_seconds = 0;
  std::vector<LinePart> parts;  // the last step's
  Series losses, speeds;        // one value a step, from first_step + 1 on
  // Planned bytes: of one rank's GPU, and of this host's ranks in host memory.
  std::optional<uint64_t> planned_gpu_bytes;
  uint64_t planned_host_bytes = 0;
  MachineLoad load;
};

// At most `rows` lines of at most `columns`; `messages`, the newest last, are at the bottom. Parts
// without room are left out from below: curves shrink first.
std::vector<std::string> WatchLines(const WatchState& state, size_t columns, size_t rows,
                                    const std::vector<std::string>& messages);

// The machine's load, for a line of progress (`train --monitor`).
std::vector<LinePart> LoadParts(const MachineLoad& load);

// "1h02m", "3m05s".
std::string DurationText(double seconds);

}  // namespace zeroplan
