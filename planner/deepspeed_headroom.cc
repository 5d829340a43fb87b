#include "planner/deepspeed_headroom.h"

namespace zeroplan {

double DeepSpeedMemoryFactor(const TrainSetup&) { return 1; }

}  // namespace zeroplan
