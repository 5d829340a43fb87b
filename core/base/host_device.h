// Marks a function that CUDA code may call too; nothing elsewhere.
#pragma once

#if defined(__CUDACC__)
#define ZEROPLAN_HOST_DEVICE __host__ __device__
#else
#define ZEROPLAN_HOST_DEVICE
#endif
