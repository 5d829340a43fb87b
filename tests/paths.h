// Where a test finds the source tree and what was built beside it.
#pragma once

#include <string>

namespace zeroplan {

// Of the source tree, "" for the tree itself: SourcePath("LICENSE").
std::string SourcePath(const std::string& relative);
// A file of the build folder: BinaryPath("zeroplan"). The programs are those of the folder in
// ZEROPLAN_TESTED_PROGRAMS, where it is set: tests/python/run.sh tests installed ones.
std::string BinaryPath(const std::string& relative);
// The profile of the virtual machine with eight H200 on which the baselines were measured.
inline std::string MeasuredH200() {
  return SourcePath("benchmarks/measure/results/vm_8x_h200.json");
}

}  // namespace zeroplan
