#include "planner/plan/deepspeed_headroom.h"

namespace zeroplan {
namespace {

constexpr uint64_t kBytesPerLogit = 20;
constexpr uint64_t kFixedBytes = 4'700'000'000;
// Bytes a parameter, by where parameters lie.
constexpr double kWhole = 2.8;      // stages 0 to 2: every GPU holds all
constexpr double kSharded = 1.2;    // stage 3
constexpr double kOffloaded = 0.5;  // stage 3, parameters on host or disk

}  // namespace

ExtraMemory DeepSpeedExtraMemory(const ModelSpec& model, const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  const double bytes = zero.stage < 3                                      ? kWhole
                       : zero.offload_param.device == OffloadDevice::kNone ? kSharded
                                                                           : kOffloaded;
  ExtraMemory extra;
  extra.fixed_bytes =
      kFixedBytes + static_cast<uint64_t>(bytes * static_cast<double>(model.ParamCount()));
  extra.bytes_per_sequence = kBytesPerLogit * static_cast<uint64_t>(setup.batch.seq_len) *
                             static_cast<uint64_t>(model.padded_vocab);
  return extra;
}

}  // namespace zeroplan
