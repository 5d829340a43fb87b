#include "hwprofiles/guesses.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

bool Names(const std::vector<Guess>& guesses, std::string_view key) {
  return std::any_of(guesses.begin(), guesses.end(),
                     [&](const Guess& guess) { return guess.key == key; });
}

TEST_CASE("what is derived is a guess, what is measured or a datasheet's is none") {
  const MachinePart parts[] = {MachinePart::kHost, MachinePart::kPcie, MachinePart::kStorage,
                               MachinePart::kLink, MachinePart::kNetwork};
  const auto measured = GuessedFigures(LoadProfile("hgx-h200"), parts, 8);
  REQUIRE(measured.size() == 1);  // nothing across nodes was measured
  CHECK(measured[0].key == "network.latency");
  CHECK(GuessNote(measured) == "Guessed, not measured: network.latency 14 us.");

  const auto generic = GuessedFigures(LoadProfile("4x-rtx4090"), parts, 4);
  for (const char* key : {"host.adam_bandwidth", "host.triad_bandwidth", "pcie.to_device_all",
                          "pcie.both_all", "host.nvme_read", "link.bandwidth", "network.latency"}) {
    CAPTURE(std::string(key));
    CHECK(Names(generic, key));
  }
  CHECK(!Names(generic, "network.bandwidth_per_node"));  // a standard's
  CHECK(!Names(generic, "pcie.to_device_single"));       // four copy at once
  CHECK(GuessNote(generic).find("all but the network's") != std::string::npos);
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

}  // namespace
}  // namespace zeroplan
