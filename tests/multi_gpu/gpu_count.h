#pragma once

namespace zeroplan {

int GpuCount();  // that CUDA sees here, 0 without a driver

}  // namespace zeroplan
