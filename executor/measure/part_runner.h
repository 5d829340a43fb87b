// Runs the parts of a measurement one after the other: says what runs and how long it took, and
// keeps one part's failure from the others.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "executor/measure/measurement.h"

namespace zeroplan {

class PartRunner {
 public:
  using Say = std::function<void(const std::string&)>;
  // Puts its results into the measurement that it is given.
  using Measure = std::function<void(MachineMeasurement&)>;

  // `result` outlives it. `say` is told "gemm: matrix products" and later "gemm: 12.3 s".
  PartRunner(MachineMeasurement& result, Say say) : result_(result), say_(std::move(say)) {}

  // Parts that `measure` finishes are listed in `measured`. If it throws, the result stays
  // unchanged, and `failed` and the error name the part. Errors of how the command was called (any
  // code but kRuntime) leave as they are.
  void Run(const std::string& name, const std::string& what, const Measure& measure);
  // The same, but the other parts go on; false if it failed.
  bool Try(const std::string& name, const std::string& what, const Measure& measure);

 private:
  MachineMeasurement& result_;
  Say say_;
};

}  // namespace zeroplan
