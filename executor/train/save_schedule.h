// Decides when a run saves between two steps: after a fixed number, or at the best interval for its
// interruptions and its measured save times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

// The interval chosen after a save, and its inputs.
struct ChosenInterval {
  int64_t steps = 0;        // from one save to the next
  double rate = 0;          // interruptions a second
  double step_seconds = 0;  // median of the last steps
  double save_seconds = 0;  // median of the time that steps waited for a save
  // median from then until it was complete; 0: steps waited for all of it
  double write_seconds = 0;
};

// All ranks have one and call it at the same points of the run, with their own measured times.
class SaveSchedule {
 public:
  // Saves every `every` steps; 0: only if `rate`, in interruptions a second, is above 0. Then the
  // first save comes after kFirst steps, and the next once it is complete and its times are known.
  SaveSchedule(int64_t every, double rate) : every_(every), rate_(rate) {}

  bool is_auto() const { return rate_ > 0; }
  void NoteStep(double seconds);
  // Whether to save after step `done`, counted over the whole run.
  bool IsDue(int64_t done) const;
  // Notes that the states of the last step are being saved, or are saved, for any reason.
  void NoteBegun();
  // Notes a complete checkpoint: steps waited `save_seconds` for it, and `write_seconds` passed
  // from then until it was complete, not counting waits for the previous save.
  void NoteSaved(double save_seconds, double write_seconds);

  // The best interval by this rank's medians. REQUIRES: is_auto(), steps and a save were noted.
  ChosenInterval Choose() const;
  // Converts one rank's choice, which is for all, to text and back.
  static std::string Write(const ChosenInterval& chosen);
  void Take(const std::string& written);
  // The choice last taken over.
  const std::optional<ChosenInterval>& chosen() const { return chosen_; }

  // The first step or two may load and tune kernels; the median of five is a usual one.
  static constexpr int64_t kFirst = 5;

 private:
  static constexpr size_t kWindow = 32;  // same as StepLimit's

  int64_t every_;
  double rate_;
  int64_t since_ = 0;  // steps since the last save, or the start
  bool begun_ = false;
  std::vector<double> steps_, saves_, writes_;  // the last ones
  std::optional<ChosenInterval> chosen_;
};

}  // namespace zeroplan
