// How long a step takes in a runtime other than zeroplan's own executor.
#pragma once

namespace zeroplan {

// Seconds of one GPU's step: all micro-steps and the update. step_seconds is the sum of the others.
struct RuntimeTime {
  double step_seconds = 0;
  double compute = 0;  // kernels of the compute stream: model, gradients, update
  // What the compute stream waits for, when it has nothing to run:
  double exposed_communication = 0;  // collectives
  double transfers = 0;              // copies between GPU and host
  double host_update = 0;            // the optimizer on the host, and clipping and casts there
  double host_overhead = 0;          // the Python thread, which launches too late or does not yet
};

}  // namespace zeroplan
