// Finds the guessed figures of a profile, so that an answer that depends on one can report it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/settings/zero_config.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Parts of a machine whose rates decide between choices. The GPU's own rates affect every choice
// alike.
enum class MachinePart : uint8_t {
  kHost,     // bandwidth of host memory
  kPcie,     // copies between host and GPU
  kStorage,  // reading and writing the disk
  kLink,     // between the GPUs of a node
  kNetwork,  // between nodes
};

// A rate of a profile that is neither measured nor from a datasheet.
struct Guess {
  MachinePart part;
  std::string key;  // "host.adam_bandwidth"
  Figure figure;    // its reference gives the source that it was derived from
};
// The guesses among `parts`, in their order. If a rate has a figure for one GPU and one for all at
// once, the one that `ranks_per_node` GPUs use.
std::vector<Guess> GuessedFigures(const HardwareProfile& profile,
                                  std::span<const MachinePart> parts, int ranks_per_node);

// The parts besides its GPU that a step of `setup` waits for, on `nodes` nodes of `ranks_per_node`
// GPUs each.
std::vector<MachinePart> PartsUsed(const TrainSetup& setup, int nodes, int ranks_per_node);

// "Guessed, not measured: host.triad_bandwidth 57.6 GB/s, ...; 'zeroplan hw measure' on that
// machine measures them." (It does not measure the network's.) "" without guesses.
std::string GuessNote(const std::vector<Guess>& guesses);

// The share of the adapters' bandwidth that collectives are assumed to reach if network.reached is
// absent: 4096 bytes of payload a packet with some 70 of headers (InfiniBand architecture
// specification, volume 1) and the ring's own steps. Assumed, not measured here.
inline constexpr double kAssumedNetworkShare = 0.92;
// NCCL over TCP sockets reaches less: of 32 Gb/s at most 0.6 in 2019 (github.com/NVIDIA/nccl, issue
// 209). A run of DeepSpeed's stage 3 on two nodes, whose containers had an overlay network on 10
// Gb/s (github.com/hiyouga/LlamaFactory, issue 5014), took longer than predicted by this share:
// 0.51 of the bandwidth.
inline constexpr double kSocketsWorst = 0.79;
// True if collectives between nodes may use sockets, and the profile does not record what they
// reach: Ethernet, or an unknown network, of at most 50 Gb/s a node.
bool MayUseSockets(const HardwareProfile& profile);
// The assumptions behind times across nodes, in a sentence. REQUIRES: profile.network.
std::string NetworkNote(const HardwareProfile& profile);

// One line if the profile's collectives were measured under other variables NCCL_* than
// `environment`, which has the form of NodeProfile::nccl_environment; "" if they are the same or
// the profile does not record them.
std::string NcclNote(const HardwareProfile& profile, const std::string& environment);

}  // namespace zeroplan
