// Bandwidths of a host's memory.
#pragma once

#include <cstdint>

#include "executor/measure/measurement.h"

namespace zeroplan {

// `bytes` of memory at most, on `threads` threads; medians of `rounds` after one that warms up.
//   triad  a[i] = b[i] + s * c[i] in fp32, 12 bytes an element (McCalpin 1995)
//   adam   the CPU backend's AdamW row as an offloaded optimizer runs it: gradient in bf16 read,
//          master and both moments in fp32 read and written, parameter in bf16 written
// REQUIRES: bytes of at least 1 MiB.
HostBandwidths MeasureHostMemory(uint64_t bytes, int threads, int rounds);

// Memory that one measurement may take of `available_bytes`: several times any cache, and a part of
// what is there.
uint64_t HostMeasureBytes(uint64_t available_bytes, bool quick);

}  // namespace zeroplan
