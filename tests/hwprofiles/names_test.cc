// What people call cards and machines, and what that is taken for.
#include <doctest/doctest.h>

#include <string>

#include "core/base/error.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

struct Taken {
  const char* name;
  int wanted;  // --gpus
  const char* profile;
  int gpus;          // that the name says
  const char* note;  // part of it; "": none
};

TEST_CASE("names of cards mean the most common card, and one line says which") {
  for (const Taken& taken : {
           Taken{"h100", 0, "h100-80gb-sxm", 0, "h100-80gb-pcie or h100-94gb-nvl name others"},
           Taken{"H100 80GB", 0, "h100-80gb-sxm", 0, "h100-80gb-pcie names another"},
           Taken{"a100", 0, "a100-80gb-sxm", 0, "\"a100\" is taken as a100-80gb-sxm (1 x"},
           Taken{"a100-80gb", 0, "a100-80gb-sxm", 0, "a100-80gb-pcie names another"},
           Taken{"A100 40GB", 0, "a100-40gb-sxm", 0, "a100-40gb-pcie names another"},
           Taken{"a100 pcie", 0, "a100-80gb-pcie", 0, "a100-40gb-pcie names another"},
           Taken{"v100", 0, "v100-16gb-sxm2", 0, "v100-32gb-sxm2"},
           Taken{"3080", 0, "rtx3080-10gb", 0, "rtx3080-12gb names another"},
           Taken{"gh200", 0, "gh200-96gb", 0, "gh200-144gb names another"},
           // What only one card is called needs no line.
           Taken{"4090", 0, "rtx4090", 0, ""},
           Taken{"RTX 4090 24GB", 0, "rtx4090", 0, ""},
           Taken{"h100 nvl", 0, "h100-94gb-nvl", 0, ""},
           Taken{"h100-80gb-pcie", 0, "h100-80gb-pcie", 0, ""},
       }) {
    CAPTURE(taken.name);
    const NamedProfile named = FindProfile(taken.name, taken.wanted);
    CHECK(named.profile.name == taken.profile);
    CHECK(named.profile.node.gpus.value == 1);
    CHECK(named.gpus == taken.gpus);
    CHECK(named.note.empty() == (*taken.note == '\0'));
    CHECK_MESSAGE(named.note.find(taken.note) != std::string::npos, named.note);
  }
}

TEST_CASE("a number of cards means the machine that has so many") {
  for (const Taken& taken : {
           Taken{"8xh100", 0, "dgx-h100", 8, "8 x h100-80gb-sxm, as in dgx-h100"},
           Taken{"8x a100", 0, "dgx-a100-80gb", 8, "as in dgx-a100-80gb"},
           Taken{"8 x A100 40GB", 0, "dgx-a100-40gb", 8, "as in dgx-a100-40gb"},
           Taken{"h100 x8", 0, "dgx-h100", 8, "as in dgx-h100"},
           Taken{"4xh100", 0, "dgx-h100", 4, "4 of the 8 x h100-80gb-sxm of dgx-h100"},
           Taken{"16xh100", 0, "dgx-h100", 16, "in 2 machines as dgx-h100"},
           Taken{"2x3090", 0, "2x-rtx3090", 2, "as in 2x-rtx3090"},
           Taken{"3x3090", 0, "4x-rtx3090", 3, "3 of the 4 x rtx3090 of 4x-rtx3090"},
           Taken{"8x3090", 0, "8x-rtx3090", 8, "in one generic host"},
           Taken{"2x h100 nvl", 0, "2x-h100-94gb-nvl", 2, "as in 2x-h100-94gb-nvl"},
           Taken{"2x t4", 0, "g4dn-12xlarge", 2, "2 of the 4 x t4 of g4dn-12xlarge"},
           // --gpus beside a card.
           Taken{"4090", 2, "2x-rtx4090", 0, "2 x rtx4090, as in 2x-rtx4090"},
           Taken{"rtx4090", 4, "4x-rtx4090", 0, "as in 4x-rtx4090"},
           Taken{"h100", 8, "dgx-h100", 0, "as in dgx-h100"},
           // ... and beside a machine, which stays.
           Taken{"dgx-h100", 16, "dgx-h100", 0, ""},
       }) {
    CAPTURE(taken.name);
    const NamedProfile named = FindProfile(taken.name, taken.wanted);
    CHECK(named.profile.name == taken.profile);
    CHECK(named.gpus == taken.gpus);
    CHECK(named.note.empty() == (*taken.note == '\0'));
    CHECK_MESSAGE(named.note.find(taken.note) != std::string::npos, named.note);
  }
  CHECK(FindProfile("8x3090").profile.node.gpus.value == 8);
  // Eight cards stand in no desktop.
  CHECK(FindProfile("2x3060").profile.node.host_memory.value ==
        FindProfile("3060").profile.node.host_memory.value);
  CHECK(FindProfile("8x3060").profile.node.host_memory.value ==
        FindProfile("4x3090").profile.node.host_memory.value);
  // Modules of one GPU each are no machine of two.
  CHECK(FindProfile("2xgh200").profile.node.gpus.value == 1);
  CHECK(LoadProfile("8x3090").name == "8x-rtx3090");
}

TEST_CASE("a rack's trays: so many are joined, and no more") {
  const HardwareProfile tray = LoadProfile("gb200-nvl72");
  CHECK(tray.node.gpus.value == 4);
  CHECK_NOTHROW(CheckNetwork(tray, 72, 4));
  CHECK_THROWS_WITH_AS(CheckNetwork(tray, 76, 4),
                       doctest::Contains("76 GPUs are 19 nodes, and the NVLink of an NVL72 rack "
                                         "joins 18; use 72 GPUs at most, or ⟦network⟧"),
                       Error);
  HardwareProfile more = tray;
  ApplyNetwork(more, "4x400Gb");
  CHECK_NOTHROW(CheckNetwork(more, 76, 4));
  for (const char* name : {"GB200 NVL72", "gb200-nvl72", "8xgb200", "4x GB200"}) {
    CAPTURE(name);
    CHECK(FindProfile(name, 0).profile.name == "gb200-nvl72");
  }
  CHECK(FindProfile("gb200", 0).profile.name == "gb200-186gb");
  for (const char* name : {"dgx-spark", "DGX Spark", "gb10"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(FindProfile(name, 0), doctest::Contains("share one memory of 128 GB"),
                         Error);
  }
}

TEST_CASE("other makers' cards are refused as such") {
  for (const auto& [name, maker] : {std::pair{"mi300x", "AMD's"},
                                    {"RX 7900 XTX", "AMD's"},
                                    {"8x MI250", "AMD's"},
                                    {"Radeon VII", "AMD's"},
                                    {"Arc A770", "Intel's"},
                                    {"M3 Max", "Apple's"},
                                    {"tpu-v4", "Google's"}}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(FindProfile(name), doctest::Contains(maker), Error);
    CHECK_THROWS_WITH_AS(FindProfile(name), doctest::Contains("NVIDIA GPUs alone"), Error);
  }
}

}  // namespace
}  // namespace zeroplan
