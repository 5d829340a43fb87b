// The bandwidth of this host's memory, in well under a second: what plans with offload on this
// machine need where nobody ran 'zeroplan hw measure'.
#pragma once

#include <cstdint>

namespace zeroplan {

// Bytes a second of a[i] = b[i] + s * c[i] in fp32 on `threads` threads, 12 bytes an element
// (McCalpin 1995, STREAM triad), as host.triad_bandwidth of a profile: the median of several rounds
// over three arrays of `bytes` together, each thread over what it touched first. 0 if memory or
// threads cannot be had. REQUIRES: bytes of at least 1 MiB, threads >= 1.
double MeasureTriad(uint64_t bytes, int threads);

// Bytes for MeasureTriad: several times what the caches of that many cores hold, and at most an
// eighth of the memory that is free.
uint64_t TriadBytes(int threads);

}  // namespace zeroplan
