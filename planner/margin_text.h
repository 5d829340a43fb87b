// The margin of error that answers name, by runtime and model.
#pragma once

#include <string>

namespace zeroplan {

struct Cluster;
struct HardwareProfile;
struct ModelSpec;
class Runtime;

// Runtime::MarginText, with what was compared of mixtures of experts; of a model that is planned by
// the code of transformers, that its runs were not of such.
std::string MarginTextFor(const Runtime& runtime, const ModelSpec& model, const Cluster& cluster,
                          const HardwareProfile& hardware);

}  // namespace zeroplan
