// What `train --watch` shows: the loss, the speed, memory against the plan, and what the machine is
// doing, as lines of text for any size of terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/terminal.h"
#include "machine/machine_load.h"

namespace zeroplan {

// Numbers of a run, one after the other, in bounded memory: past kMost, each two become their mean.
class Series {
 public:
  static constexpr size_t kMost = 4096;
  void Add(double value);
  bool empty() const { return points_.empty() && pending_count_ == 0; }
  // At most `most` means over equal parts, oldest first; fewer where there are fewer numbers. What
  // is no number (a loss of a skipped step) counts in none.
  std::vector<double> Means(size_t most) const;

 private:
  std::vector<double> points_;
  size_t per_point_ = 1;  // numbers in each
  double pending_sum_ = 0;
  size_t pending_count_ = 0;
};

struct WatchState {
  std::string model;
  int ranks = 1;
  int64_t step = 0, steps = 0;
  int64_t first_step = 0;  // of this process's run: the one before its first
  double elapsed_seconds = 0, left_seconds = 0;
  std::vector<LinePart> parts;  // of the last step
  Series losses, speeds;        // a step each, from first_step + 1 on
  // Planned bytes: of one rank's GPU, and of this host's ranks in host memory.
  std::optional<uint64_t> planned_gpu_bytes;
  uint64_t planned_host_bytes = 0;
  MachineLoad load;
};

// At most `rows` lines of at most `columns`; `messages`, the newest last, stand at the foot. What
// there is no room for is left out from below: curves shrink first.
std::vector<std::string> WatchLines(const WatchState& state, size_t columns, size_t rows,
                                    const std::vector<std::string>& messages);

// What the machine is doing, for a line of progress (`train --monitor`).
std::vector<LinePart> LoadParts(const MachineLoad& load);

// "1h02m", "3m05s".
std::string DurationText(double seconds);

}  // namespace zeroplan
