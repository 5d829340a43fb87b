// Which figures of a profile are guesses, so that an answer that rests on one can say so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Parts of a machine whose rates decide between choices. The GPU's own decide every choice alike.
enum class MachinePart : uint8_t {
  kHost,     // bandwidth of host memory
  kPcie,     // copies between host and GPU
  kStorage,  // reading and writing the disk
  kLink,     // between the GPUs of a node
  kNetwork,  // between nodes
};

// A rate of a profile that is neither measured nor a datasheet's.
struct Guess {
  MachinePart part;
  std::string key;  // "host.adam_bandwidth"
  Figure figure;    // its reference says what it was derived from
};
// The guesses among `parts`, in their order. Of a rate that is given alone and for all GPUs at
// once, the one that `ranks_per_node` GPUs use.
std::vector<Guess> GuessedFigures(const HardwareProfile& profile,
                                  std::span<const MachinePart> parts, int ranks_per_node);

// What a step of `setup` waits for beside its GPU, on `nodes` nodes of `ranks_per_node` GPUs each.
std::vector<MachinePart> PartsUsed(const TrainSetup& setup, int nodes, int ranks_per_node);

// "Guessed, not measured: host.triad_bandwidth 57.6 GB/s, ...; 'zeroplan hw measure' on that
// machine measures them." (The network's it does not measure.) "" without guesses.
std::string GuessNote(const std::vector<Guess>& guesses);

// What collectives are taken to reach of the adapters' bandwidth where network.reached does not
// say: 4096 bytes of payload a packet with some 70 of headers (InfiniBand architecture
// specification, volume 1) and the ring's own steps. Assumed, not measured here.
inline constexpr double kAssumedNetworkShare = 0.92;
// What times across nodes take for granted, in a sentence. REQUIRES: profile.network.
std::string NetworkNote(const HardwareProfile& profile);

// One line where the profile's collectives were measured under other variables NCCL_* than
// `environment`, which is as NodeProfile::nccl_environment; "" where they are the same or the
// profile does not say.
std::string NcclNote(const HardwareProfile& profile, const std::string& environment);

}  // namespace zeroplan
