// Writes hardware profiles that LoadProfile reads back to equal figures and rows.
#pragma once

#include <string>

#include "hwprofiles/profile.h"

namespace zeroplan {

// The profile in full, every part of it, in the schema zeroplan.hw/1. Figures are written in their
// own unit; tables in the unit that suits people if the numbers survive it, else in the base unit.
// Checks nothing: ParseProfile does.
std::string WriteProfile(const HardwareProfile& profile);

}  // namespace zeroplan
