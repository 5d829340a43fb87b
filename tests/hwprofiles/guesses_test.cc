#include "hwprofiles/guesses.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

bool Names(const std::vector<Guess>& guesses, std::string_view key) {
  return std::any_of(guesses.begin(), guesses.end(),
                     [&](const Guess& guess) { return guess.key == key; });
}

TEST_CASE("what is derived is a guess, what is measured or a datasheet's is none") {
  const MachinePart parts[] = {MachinePart::kHost, MachinePart::kPcie, MachinePart::kStorage,
                               MachinePart::kLink, MachinePart::kNetwork};
  const auto measured = GuessedFigures(LoadProfile(MeasuredH200()), parts, 8);
  REQUIRE(measured.size() == 1);  // nothing across nodes was measured
  CHECK(measured[0].key == "network.latency");
  CHECK(GuessNote(measured) ==
        "Guessed, not measured: network.latency 14 us; 'zeroplan hw measure' on two of those hosts "
        "measures them.");

  // No built-in machine passes one host's measurements off as its own.
  const auto sold = GuessedFigures(LoadProfile("hgx-h200"), parts, 8);
  for (const char* key : {"host.triad_bandwidth", "pcie.from_device_all", "host.nvme_read"}) {
    CAPTURE(std::string(key));
    CHECK(Names(sold, key));
  }

  const auto generic = GuessedFigures(LoadProfile("4x-rtx4090"), parts, 4);
  for (const char* key : {"host.adam_bandwidth", "host.triad_bandwidth", "pcie.to_device_all",
                          "pcie.both_all", "host.nvme_read", "link.bandwidth", "network.latency"}) {
    CAPTURE(std::string(key));
    CHECK(Names(generic, key));
  }
  CHECK(!Names(generic, "network.bandwidth_per_node"));  // a standard's
  CHECK(!Names(generic, "pcie.to_device_single"));       // four copy at once
  CHECK(GuessNote(generic).ends_with("'zeroplan hw measure' on two of those hosts measures them."));
  CHECK(Names(GuessedFigures(LoadProfile("4x-rtx4090"), parts, 1), "pcie.to_device_single"));
}

TEST_CASE("only the parts that a choice uses count") {
  TrainSetup setup;
  CHECK(PartsUsed(setup, 1, 1).empty());
  CHECK(PartsUsed(setup, 2, 8) ==
        std::vector<MachinePart>{MachinePart::kLink, MachinePart::kNetwork});
  setup.zero.stage = 2;
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  const auto cpu = PartsUsed(setup, 1, 1);
  CHECK(cpu == std::vector<MachinePart>{MachinePart::kHost, MachinePart::kPcie});
  setup.zero.stage = 3;
  setup.zero.offload_param.device = OffloadDevice::kNvme;
  CHECK(PartsUsed(setup, 1, 1) ==
        std::vector<MachinePart>{MachinePart::kHost, MachinePart::kPcie, MachinePart::kStorage});
  const std::string note = GuessNote(GuessedFigures(LoadProfile("rtx4090"), cpu, 1));
  CHECK(note.starts_with("Guessed, not measured: host.adam_bandwidth 57.6 GB/s"));
  CHECK(note.find("pcie.from_device_single 25.8 GB/s") != std::string::npos);
  CHECK(note.find("'zeroplan hw measure' on that machine measures them.") != std::string::npos);
  CHECK(GuessNote({}).empty());
}

TEST_CASE("activations on the host use it, as states there do") {
  TrainSetup setup;
  setup.recompute.offload.device = OffloadDevice::kCpu;
  CHECK(PartsUsed(setup, 1, 1) == std::vector<MachinePart>{MachinePart::kHost, MachinePart::kPcie});
}

// The latency is still the profile's if the network's rate was typed.
TEST_CASE("what an option gives is no guess") {
  HardwareProfile profile = LoadProfile("4x-rtx4090");
  const MachinePart parts[] = {MachinePart::kLink, MachinePart::kNetwork};
  CHECK(Names(GuessedFigures(profile, parts, 4), "link.bandwidth"));
  ApplyGpuLink(profile, "30GB/s");
  ApplyNetwork(profile, "2x100Gb");
  const std::vector<Guess> guesses = GuessedFigures(profile, parts, 4);
  REQUIRE(guesses.size() == 1);
  CHECK(guesses.front().key == "network.latency");
  CHECK(profile.node.gpu_link.source == FigureSource::kGiven);
  CHECK(NetworkNote(profile).find("25 GB/s (given)") != std::string::npos);
  CHECK(ParseProfile(WriteProfile(profile), profile.source) == profile);
}

TEST_CASE("what is taken for granted of a network is said, and where to say better") {
  HardwareProfile profile = LoadProfile("dgx-a100-80gb");
  CHECK(NetworkNote(profile) ==
        "Collectives are assumed to reach 0.92 of network.bandwidth_per_node, 1600 Gb/s "
        "(datasheet); network.reached in a profile says what yours do.");
  Figure reached;
  reached.value = reached.written = 0.75;
  reached.unit = "ratio";
  reached.source = FigureSource::kMeasured;
  reached.reference = "all_gather_perf on 4 nodes";
  profile.network->reached = reached;
  CHECK(NetworkNote(profile) ==
        "Collectives are taken to reach 0.75 (network.reached, measured) of "
        "network.bandwidth_per_node, 1600 Gb/s (datasheet).");
  CHECK(ParseProfile(WriteProfile(profile), profile.source) == profile);
}

TEST_CASE("collectives that were measured under other variables of NCCL are named") {
  HardwareProfile profile = LoadProfile("hgx-h200");
  CHECK(NcclNote(profile, "NCCL_P2P_DISABLE=1").empty());  // the profile does not say
  profile.node.nccl_environment = "";
  CHECK(NcclNote(profile, "").empty());
  CHECK(NcclNote(profile, "NCCL_P2P_DISABLE=1").find("here NCCL runs under NCCL_P2P_DISABLE=1") !=
        std::string::npos);
  profile.node.nccl_environment = "NCCL_SHM_DISABLE=1";
  CHECK(NcclNote(profile, "NCCL_SHM_DISABLE=1").empty());
  const std::string note = NcclNote(profile, "");
  CHECK(note.starts_with("The collectives of hgx-h200 were measured under NCCL_SHM_DISABLE=1; "));
  CHECK(note.find("here NCCL runs under no variables NCCL_*") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
