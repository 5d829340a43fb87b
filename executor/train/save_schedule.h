// When a run saves between two steps: after every so many, or as often as its interruptions and
// what its saves really take make best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

// What was chosen after a save, and from what.
struct ChosenInterval {
  int64_t steps = 0;         // from one save to the next
  double rate = 0;           // interruptions a second
  double step_seconds = 0;   // the median of the last steps
  double save_seconds = 0;   // the median of what steps waited for a save
  double write_seconds = 0;  // the median from then until it was complete; 0: steps waited for all
};

// All ranks have one and call it at the same points of the run, with the times that each measured.
class SaveSchedule {
 public:
  // `every` steps; 0: only where `rate` is above 0, which is of interruptions a second. Then the
  // first save comes after kFirst steps, and the next once it is complete and its times are known.
  SaveSchedule(int64_t every, double rate) : every_(every), rate_(rate) {}

  bool is_auto() const { return rate_ > 0; }
  void NoteStep(double seconds);
  // After step `done`, of all that the run has made.
  bool IsDue(int64_t done) const;
  // The states of the step that was just made are being saved, or are saved, for whatever reason.
  void NoteBegun();
  // A checkpoint is complete: steps waited `save_seconds` for it, and `write_seconds` passed from
  // then until it was complete; not counting what was waited for the save before.
  void NoteSaved(double save_seconds, double write_seconds);

  // What the medians of this rank make best. REQUIRES: is_auto(), steps and a save were noted.
  ChosenInterval Choose() const;
  // One rank's choice for all, as a text and back.
  static std::string Write(const ChosenInterval& chosen);
  void Take(const std::string& written);
  // The last that was taken.
  const std::optional<ChosenInterval>& chosen() const { return chosen_; }

  // The first step, or two, may load and tune kernels; of five the median is a usual one.
  static constexpr int64_t kFirst = 5;

 private:
  static constexpr size_t kWindow = 32;  // as StepLimit's

  int64_t every_;
  double rate_;
  int64_t since_ = 0;  // steps since the last save, or the start
  bool begun_ = false;
  std::vector<double> steps_, saves_, writes_;  // the last ones
  std::optional<ChosenInterval> chosen_;
};

}  // namespace zeroplan
