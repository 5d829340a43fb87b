// The margin of error that answers name, by runtime and model.
#pragma once

#include <string>

namespace zeroplan {

struct Cluster;
struct HardwareProfile;
struct ModelSpec;
class Runtime;

// Runtime::MarginText; of a model that zeroplan does not train, that its runs were not of such.
std::string MarginTextFor(const Runtime& runtime, const ModelSpec& model, const Cluster& cluster,
                          const HardwareProfile& hardware);

}  // namespace zeroplan
