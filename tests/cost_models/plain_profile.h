// A node of round numbers without measured rows: 100 multiprocessors, 100 TFLOP/s (200 in eight
// bits), 1 TB/s.
#pragma once

#include "hwprofiles/profile.h"

namespace zeroplan {

inline Figure Number(double value) {
  Figure figure;
  figure.value = value;
  return figure;
}

inline HardwareProfile PlainProfile() {
  HardwareProfile profile;
  profile.name = "plain";
  profile.gpu.name = "plain GPU";
  profile.gpu.architecture = "hopper";
  profile.gpu.bf16 = profile.gpu.fp16 = profile.gpu.flash_attention = true;
  profile.gpu.hbm_bandwidth = Number(1e12);
  profile.gpu.sm_count = Number(100);
  profile.gpu.launch_overhead = Number(1e-6);
  profile.gpu.dense_peaks[Dtype::kBF16] = Number(100e12);
  profile.gpu.dense_peaks[Dtype::kE4M3] = Number(200e12);
  NodeProfile& node = profile.node;
  node.gpus = Number(8);
  node.gpu_link = Number(100e9);
  node.triad_bandwidth = Number(100e9);
  node.adam_bandwidth = Number(120e9);
  node.nvme_read = Number(4e9);
  node.nvme_write = Number(2e9);
  node.pcie.to_device_single = Number(50e9);
  node.pcie.from_device_single = Number(40e9);
  node.pcie.both_single = Number(80e9);
  node.pcie.to_device_all = Number(160e9);
  node.pcie.from_device_all = Number(80e9);
  node.pcie.both_all = Number(200e9);
  return profile;
}

// What `hw measure` found of an H200, under a limit of so many watts.
inline PowerProfile H200Power(double watts) {
  return {Number(watts), Number(124), Number(1.06e-12), Number(69e-12), Number(0.5)};
}

// With a limit 600 W above what the GPU draws busy with nothing; a TFLOP draws 10 J, a TB 100 J.
inline HardwareProfile LimitedProfile() {
  HardwareProfile profile = PlainProfile();
  profile.gpu.power = {Number(700), Number(100), Number(10e-12), Number(100e-12), Number(0.5)};
  return profile;
}

}  // namespace zeroplan
