// Names of machines as makers and clouds write them, for readers who do not know profiles.
#pragma once

#include <string>

#include "hwprofiles/profile.h"

namespace zeroplan {

// `gpus` GPUs of the profile on `nodes` nodes, from its description and the name of its GPU:
// "8 x DGX B300 (64 GPUs)", "Amazon EC2 p5.48xlarge (4 of 8 GPUs)", "16 x RTX 4090 24 GB in 2
// servers". `cards`: the GPUs are rented by the card, whichever machine they are planned in:
// "8 x H100 SXM 80 GB".
std::string MachineTitle(const HardwareProfile& profile, int gpus, int nodes, bool cards);

// Whether `hw`, as ⟦hw⟧ takes it, names a card or a number of cards: who names one rents cards.
// "": false. Throws Error(kUsage) for an unknown name.
bool NamesCards(const std::string& hw);

}  // namespace zeroplan
