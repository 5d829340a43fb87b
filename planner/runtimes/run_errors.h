// How runs differ from what is predicted for them. Margins of error state nothing else.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"

namespace zeroplan {

// By how much runs took more (below 0: less) than predicted, as shares of the prediction: measured
// over predicted, less 1.
struct RunErrors {
  int runs = 0;
  double median = 0;  // the median of the errors' sizes
  // The error of the run that took least, and of the one that took most.
  double least = 0, most = 0;

  constexpr double worst() const { return std::max(-least, most); }
  // Fewer runs make no margin: they are named one by one.
  constexpr bool MakeMargin() const { return runs >= 3; }
};

// "4 % less than predicted"; of two runs "4 % less and 2 % more than predicted"; of more "6 % more
// or less than predicted in the median, 32 % more and 17 % less at most".
// REQUIRES: errors.runs > 0
std::string DifferenceText(const RunErrors& errors);

// Published runs of a runtime on one card.
struct PublishedMargin {
  std::string_view runtime;   // "fsdp2"
  std::string_view gpu;       // GpuProfile::name, with the card's form: "NVIDIA A100 SXM 80 GB"
  std::string_view kind;      // the words that names of all its forms share: "A100"
  std::string_view programs;  // the programs that ran, if not the runtime: "LLM.Q"
  RunErrors time, memory;     // memory: where it was published
  // Whether at least three of `time` had states in the memory of a host that nobody measured.
  bool on_guessed_hosts = false;
};
// Null: no run on this very card was compared.
const PublishedMargin* PublishedMarginOf(std::string_view runtime, const HardwareProfile& hardware);
// The published runs on another form of this card (an H100 SXM for an H100 PCIe); null: there are
// none.
const PublishedMargin* PublishedOnAnotherForm(std::string_view runtime,
                                              const HardwareProfile& hardware);

// Whether the profile is of this very card, form included: "NVIDIA H200 SXM".
inline bool IsCard(const HardwareProfile& hardware, std::string_view gpu) {
  return hardware.gpu.name == gpu;
}
// The GPU of nearly all measured runs. A GH200 is none.
inline bool IsH200(const HardwareProfile& hardware) { return IsCard(hardware, "NVIDIA H200 SXM"); }

inline bool IsH100(const HardwareProfile& hardware) { return IsCard(hardware, "NVIDIA H100 SXM"); }

// Whether a rate of the host's memory under an update was measured.
bool HostWasMeasured(const HardwareProfile& hardware);

}  // namespace zeroplan
