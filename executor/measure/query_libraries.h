// The CUDA libraries of this build and this machine.
#pragma once

#include "machine/gpu_state.h"

namespace zeroplan {

// Loads what is found, makes no context on a GPU. Only in builds with CUDA. Never throws.
LibraryFacts QueryLibraries();

}  // namespace zeroplan
