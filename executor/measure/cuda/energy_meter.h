// What the driver's management library says of a GPU's power and clock.
#pragma once

#include <memory>

namespace zeroplan {

class EnergyMeter {
 public:
  // Meters a CUDA device. Throws Error(kRuntime) saying what is missing: the library, or a GPU that
  // counts energy (Volta and newer).
  explicit EnergyMeter(int device);
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  double Joules() const;      // since the driver was loaded; rises about ten times a second
  double ClockHz() const;     // of the multiprocessors, now
  double LimitWatts() const;  // that the driver enforces

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  void* device_ = nullptr;
};

}  // namespace zeroplan
