// The machine zeroplan runs on, as the hardware that is planned for where nobody names a profile.
#pragma once

#include "hwprofiles/profile.h"

namespace zeroplan {

// What 'hw measure' kept of this machine, else its GPUs (detect.h).
// `measure_host`: where nothing is kept, the bandwidth of the host's memory too.
FoundMachine FindThisMachine(bool measure_host);

}  // namespace zeroplan
