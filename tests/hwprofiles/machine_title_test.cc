#include "hwprofiles/machine_title.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {

std::string TitleOf(const std::string& name, int gpus, int nodes) {
  return MachineTitle(LoadProfile(name), gpus, nodes, NamesCards(name));
}

TEST_CASE("machines are called as makers and clouds call them") {
  CHECK(TitleOf("dgx-b300", 64, 8) == "8 x DGX B300 (64 GPUs)");
  CHECK(TitleOf("dgx-a100-40gb", 8, 1) == "DGX A100 40 GB (8 GPUs)");
  CHECK(TitleOf("dgx-h100", 4, 1) == "DGX H100 (4 of 8 GPUs)");
  CHECK(TitleOf("hgx-h200", 16, 2) == "2 x HGX H200 (16 GPUs)");
  CHECK(TitleOf("p5-48xlarge", 8, 1) == "Amazon EC2 p5.48xlarge (8 GPUs)");
  CHECK(TitleOf("nd96isr-h100-v5", 8, 1) == "Microsoft Azure ND96isr_H100_v5 (8 GPUs)");
  CHECK(TitleOf("p3-2xlarge", 1, 1) == "Amazon EC2 p3.2xlarge (1 GPU)");
  CHECK(TitleOf("4x-rtx4090", 8, 2) == "8 x RTX 4090 24 GB in 2 workstations");
  CHECK(TitleOf("8x-l40s", 8, 1) == "8 x L40S 48 GB in a server");
  // Cards are no machine, whichever one they are planned in.
  CHECK(TitleOf("h100-80gb-sxm", 1, 1) == "1 x H100 SXM 80 GB");
  CHECK(MachineTitle(LoadProfile("dgx-h100"), 8, 1, NamesCards("8xh100")) == "8 x H100 SXM 80 GB");
  CHECK(MachineTitle(FindProfile("4090+3090").profile, 2, 1, true).find(" + 1 x RTX 3090 24 GB") !=
        std::string::npos);
}

TEST_CASE("no two built-in machines have one title, and none is called by its key") {
  std::map<std::string, std::string> titles;
  for (const std::string& name : ProfileNames()) {
    const HardwareProfile profile = LoadProfile(name);
    const std::string title = TitleOf(name, profile.node.gpu_count(), 1);
    CAPTURE(name);
    CAPTURE(title);
    const auto [known, is_new] = titles.try_emplace(title, name);
    INFO("as ", known->second);
    CHECK(is_new);
    // A cloud's own name may be the key.
    if (title.find("Google Cloud") == std::string::npos) {
      CHECK(title.find(name) == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace zeroplan
