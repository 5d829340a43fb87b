#include "cost_models/traffic.h"

#include <doctest/doctest.h>

#include "tests/cost_models/tiny_program.h"

namespace zeroplan {
namespace {

TEST_CASE("each kind of micro-step counts as often as it occurs; other sections do not") {
  TinyProgram tiny(4, 5);  // first, 3 x middle, last
  const BufferId device = tiny.Add("device", 4096, MemoryClass::kBuffers);
  const BufferId pinned = tiny.Add("pinned", 4096, MemoryClass::kBuffers, Space::kPinned);
  auto gather = [&](uint64_t bytes) {
    return tiny.MakeCollective(CollectiveKind::kAllGather, bytes / 4, bytes);
  };
  tiny.Do(Section::kMicroStep, Phase::kForward, gather(400));             // 5 x 300
  tiny.Do(Section::kMicroStep, Phase::kForward, gather(800), kMiddle);    // 3 x 600
  tiny.Do(Section::kMicroStep, Phase::kForward, gather(1200), kReduces);  // 1 x 900
  tiny.Do(Section::kMicroStep, Phase::kForward, gather(1600), kOnly);     // never
  tiny.Do(Section::kOptimizerStep, Phase::kStep, gather(40));             // 1 x 30
  tiny.Do(Section::kEval, Phase::kForward, gather(4000));
  Collective scalar = tiny.MakeCollective(CollectiveKind::kAllReduce, 24, 24);
  scalar.scalar = true;
  tiny.Do(Section::kOptimizerStep, Phase::kStep, scalar);  // 2 * 18

  tiny.Do(Section::kMicroStep, Phase::kForward, Copy{{pinned, 0, 10, 0}, {device, 0, 10, 0}});
  tiny.Do(Section::kMicroStep, Phase::kBackward, Copy{{device, 0, 7, 0}, {pinned, 0, 7, 0}},
          kAddsGrads);  // middle and last: 4 times
  tiny.Do(Section::kOptimizerStep, Phase::kStep, Copy{{pinned, 0, 5, 0}, {pinned, 8, 5, 0}});
  tiny.Do(Section::kOptimizerStep, Phase::kStep, Copy{{device, 0, 5, 0}, {device, 8, 5, 0}});
  FileIo read{};
  read.write = false;
  read.host = {pinned, 0, 64, 0};
  FileIo write = read;
  write.write = true;
  write.host.bytes = 32;
  tiny.Do(Section::kOptimizerStep, Phase::kStep, read);
  tiny.Do(Section::kOptimizerStep, Phase::kStep, write);
  tiny.Do(Section::kSave, Phase::kSave, write);

  const StepTraffic traffic = WalkTraffic(tiny.program);
  CHECK(traffic.collective_bytes == 5 * 300 + 3 * 600 + 900 + 30);
  CHECK(traffic.scalar_bytes == 36);
  CHECK(traffic.host_to_device_bytes == 50);
  CHECK(traffic.device_to_host_bytes == 28);
  CHECK(traffic.pcie_bytes() == 78);
  CHECK(traffic.file_read_bytes == 64);
  CHECK(traffic.file_write_bytes == 32);
}

TEST_CASE("a reduction to owners sends its range, not the shard it names") {
  TinyProgram tiny(4, 1);
  tiny.Add("device", 4096, MemoryClass::kBuffers);
  tiny.Do(Section::kMicroStep, Phase::kBackward,
          tiny.MakeCollective(CollectiveKind::kReduceToOwners, 40, 400));
  CHECK(WalkTraffic(tiny.program).collective_bytes == 30);
}

}  // namespace
}  // namespace zeroplan
