// What each DeepSpeed key of offload does to the program. Model and method as in
// config_keys_test.cc. A rank's shards have 512 (embeddings), 2176, 2176 (layers) and 64 (final
// norm) elements; sub-groups of 1500 cut a layer's in two, so 6 pieces are updated.
#include <doctest/doctest.h>

#include <set>

#include "tests/core/lowering/config_program.h"

namespace zeroplan::testing {
namespace {

constexpr uint64_t kShard = 512 + 2176 + 2176 + 64;
const json kCpu = {{"device", "cpu"}};
const json kNvme = {{"device", "nvme"}, {"nvme_path", "/tmp"}};

json Optimizer(int stage, const json& offload) {
  return WithZero(BaseConfig(stage), "offload_optimizer", offload);
}
json Param(const json& offload) { return WithZero(BaseConfig(3), "offload_param", offload); }
json And(json offload, const char* key, json value) {
  offload[key] = std::move(value);
  return offload;
}

uint64_t RoleBytes(const Program& p, Role role, Space space) {
  uint64_t bytes = 0;
  for (const Buffer& b : p.buffers) bytes += b.role == role && b.space == space ? b.bytes : 0;
  return bytes;
}
// How many different buffers of this label the micro-step or the optimizer step touches.
size_t SlotsUsed(const Program& p, const std::string& label) {
  std::set<BufferId> used;
  for (Section section : {Section::kMicroStep, Section::kOptimizerStep}) {
    for (const Instruction& i : p.section(section)) {
      ForEachAccess(p, i, [&](const Ref& ref, ArgMode) {
        if (p.buffers[ref.buffer].label == label) used.insert(ref.buffer);
      });
    }
  }
  return used.size();
}

TEST_CASE("key offload_optimizer.device: cpu updates on the host") {
  for (int stage = 1; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage)), b = LowerConfig(Optimizer(stage, kCpu));
    Changes changes{// The update moves, in sub-groups; new parameters come back.
                    {"optimizer_step compute adamw", -4},
                    {"optimizer_step host adamw", 6},
                    {"optimizer_step host_to_device copy", 6},
                    // So do the initial weights, and checkpoints go straight to the file.
                    {"init compute param_init", -4},
                    {"init compute convert", -4},
                    {"init compute fill", -8},
                    {"init host param_init", 6},
                    {"init host convert", 6},
                    {"init host fill", 12},
                    {"init host_to_device copy", 6},
                    {"save device_to_host copy", -12},
                    {"save storage file_write", 6},
                    {"load storage file_read", 6},
                    {"load host_to_device copy", -12 + 6},
                    {"load compute convert", -4},
                    {"load host convert", 6}};
    // Gradients: at stage 1 once they are summed, else as each unit's shard arrives; the norm is
    // taken where they are whole first, and comes back from the host.
    if (stage == 1) {
      changes["optimizer_step device_to_host copy"] = 6;
      changes["optimizer_step compute norm_sq"] = 6 - 4;
    } else {
      changes["micro_step device_to_host copy"] = 4;
      changes["micro_step host norm_sq"] = 4;
      changes["optimizer_step compute norm_sq"] = -4;
      changes["optimizer_step host_to_device copy"] += 1;
    }
    CheckChanges(a, b, changes);
    CHECK(SameCompute(a, b));
    CHECK(SameSections(a, b, {Section::kEval}));
    const uint64_t grads = stage == 1 ? 0 : kShard * 2;
    CHECK(Persistent(a, Space::kDevice) - Persistent(b, Space::kDevice) == kShard * 12 + grads);
    CHECK(Arena(b, Space::kPageable) == kShard * 12);
    CHECK(RoleBytes(b, Role::kGradHost, Space::kPinned) == kShard * 2);
  }
}

TEST_CASE("key offload_optimizer.device: nvme swaps the states through slots") {
  const Program a = LowerConfig(Optimizer(2, kCpu)), b = LowerConfig(Optimizer(2, kNvme));
  // Three states of 6 pieces.
  CheckChanges(a, b,
               {{"optimizer_step storage file_read", 18},
                {"optimizer_step storage_write file_write", 18},
                {"init storage_write file_write", 18},
                {"load storage_write file_write", 18},
                {"save storage file_read", 18}});
  CHECK(SameSections(a, b, {Section::kMicroStep, Section::kEval}));
  CHECK(Arena(b, Space::kDevice) == Arena(a, Space::kDevice));
  CHECK(Arena(b, Space::kPageable) == 0);
  CHECK(Arena(b, Space::kFile) >= kShard * 12);
}

TEST_CASE("key offload_optimizer.ratio: this share is offloaded, last units first") {
  const Program a = LowerConfig(Optimizer(2, kCpu));
  const Program b = LowerConfig(Optimizer(2, And(kCpu, "ratio", 0.4)));
  // 0.4 of 4928 elements: the norm's 64, and 1908 of layer 1's, aligned 1920. So 3 host pieces,
  // and 3 on the device: the rest of layer 1, layer 0, the embeddings.
  constexpr uint64_t kOffloaded = 64 + 1920;
  CHECK(Persistent(b, Space::kPageable) == kOffloaded * 12);
  CHECK(RoleBytes(b, Role::kOptimizerState, Space::kDevice) == (kShard - kOffloaded) * 12);
  CHECK(RoleBytes(b, Role::kGradHost, Space::kPinned) == kOffloaded * 2);
  CHECK(RoleBytes(b, Role::kGradShard, Space::kDevice) == (kShard - kOffloaded) * 2);
  CheckChanges(a, b,
               {{"optimizer_step compute adamw", 3},
                {"optimizer_step compute norm_sq", 3},
                {"optimizer_step host adamw", -3},
                {"optimizer_step host_to_device copy", -3},
                {"micro_step device_to_host copy", -2},
                {"micro_step host norm_sq", -2},
                {"micro_step reduce convert", 3},
                {"init compute param_init", 3},
                {"init compute convert", 3},
                {"init compute fill", 6},
                {"init host param_init", -3},
                {"init host convert", -3},
                {"init host fill", -6},
                {"init host_to_device copy", -3},
                {"save device_to_host copy", 9},
                {"load host_to_device copy", 9 - 3},
                {"load compute convert", 3},
                {"load host convert", -3}});
  CHECK(SameCompute(a, b));
  CHECK(SameSections(a, b, {Section::kEval}));
}

TEST_CASE("keys offload_*.pin_memory: transfer buffers move to pageable memory, no more") {
  struct Case {
    json base;
    const char* section;
  };
  for (const auto& [base, section] :
       {Case{Optimizer(2, kCpu), "offload_optimizer"},
        Case{Optimizer(2, kNvme), "offload_optimizer"}, Case{Param(kCpu), "offload_param"}}) {
    CAPTURE(section);
    const Program a = LowerConfig(base);
    const Program b = LowerConfig(WithZero(base, std::string(section) + ".pin_memory", false));
    CHECK(FormatProgram(a) == FormatProgram(b));
    const uint64_t moved = Persistent(a, Space::kPinned) - Persistent(b, Space::kPinned);
    CHECK(moved > 0);
    // Up to the alignment of what lies beside it.
    CHECK(Persistent(b, Space::kPageable) - Persistent(a, Space::kPageable) >= moved - 128);
    CHECK(Persistent(b, Space::kPageable) - Persistent(a, Space::kPageable) <= moved + 128);
    CHECK(Arena(a, Space::kDevice) == Arena(b, Space::kDevice));
    // The step's scalars and the tokens, which every step copies, stay pinned.
    CHECK(Persistent(b, Space::kPinned) == 256);
  }
}

TEST_CASE("key offload_optimizer.buffer_count: staging slots that take turns") {
  for (const json& device : {kCpu, kNvme}) {
    const char* label = device == kCpu ? "param_slot" : "state_slot";
    CAPTURE(label);
    const Program a = LowerConfig(Optimizer(2, device));
    for (int count : {1, 2, 4, 6, 9}) {
      CAPTURE(count);
      const Program b = LowerConfig(Optimizer(2, And(device, "buffer_count", count)));
      CheckChanges(a, b, {});
      CHECK(SameSections(a, b, {Section::kMicroStep, Section::kEval}));
      const int of_slot = device == kCpu ? 1 : 3;  // buffers: one a state
      CHECK(SlotsUsed(b, label) == static_cast<size_t>(of_slot * std::min(count, 6)));  // 6 pieces
      CHECK(Arena(a, Space::kDevice) == Arena(b, Space::kDevice));
    }
  }
  // Gradients that are summed on the host arrive through slots too: 4 units.
  const json sums = With(Optimizer(2, kCpu), "gradient_accumulation_steps", 2);
  CHECK(SlotsUsed(LowerConfig(sums), "grad_slot") == 4);
  const json fewer = WithZero(sums, "offload_optimizer.buffer_count", 3);
  CHECK(SlotsUsed(LowerConfig(fewer), "grad_slot") == 3);
}

TEST_CASE("key sub_group_size: offloaded states are updated so many elements at a time") {
  for (const json& device : {kCpu, kNvme}) {
    const Program a = LowerConfig(Optimizer(2, device));
    const Program b = LowerConfig(WithZero(Optimizer(2, device), "sub_group_size", 700));
    // A layer's 2176 in 4 pieces instead of 2.
    Changes changes{{"optimizer_step host adamw", 4},
                    {"optimizer_step host_to_device copy", 4},
                    {"init host param_init", 4},
                    {"init host convert", 4},
                    {"init host fill", 8},
                    {"init host_to_device copy", 4},
                    {"save storage file_write", 12},
                    {"load storage file_read", 12},
                    {"load host convert", 4},
                    {"load host_to_device copy", 4}};
    if (device == kNvme) {
      for (const char* swap : {"optimizer_step storage file_read", "save storage file_read",
                               "optimizer_step storage_write file_write",
                               "init storage_write file_write", "load storage_write file_write"}) {
        changes[swap] = 12;
      }
    }
    CheckChanges(a, b, changes);
    CHECK(SameSections(a, b, {Section::kMicroStep, Section::kEval}));
    CHECK(Arena(b, Space::kPinned) < Arena(a, Space::kPinned));  // smaller slots
  }
  // States on the device are updated whole.
  CHECK(SameProgram(LowerConfig(BaseConfig(2)),
                    LowerConfig(WithZero(BaseConfig(2), "sub_group_size", 700))));
}

TEST_CASE("key offload_param.device: shards come from the host before each gather") {
  const Program a = LowerConfig(BaseConfig(3)), b = LowerConfig(Param(kCpu));
  CheckChanges(a, b,
               {{"micro_step host_to_device copy", 8},
                {"eval host_to_device copy", 5},
                {"optimizer_step device_to_host copy", 4},
                {"init device_to_host copy", 4},
                {"load device_to_host copy", 4}});
  CHECK(SameCompute(a, b));
  CHECK(Persistent(a, Space::kDevice) - Persistent(b, Space::kDevice) == kShard * 2);
  CHECK(RoleBytes(b, Role::kParamShard, Space::kPinned) == kShard * 2);

  const Program c = LowerConfig(Param(And(kNvme, "max_in_cpu", 0)));
  CheckChanges(b, c,
               {{"micro_step storage file_read", 8},
                {"eval storage file_read", 5},
                {"optimizer_step storage_write file_write", 4},
                {"init storage_write file_write", 4},
                {"load storage_write file_write", 4}});
  CHECK(RoleBytes(c, Role::kParamShard, Space::kFile) == kShard * 2);
}

TEST_CASE("key offload_param.max_in_cpu: what stays in host memory is not read from disk") {
  const json config = Param(And(kNvme, "max_in_cpu", 0));
  const Program a = LowerConfig(config);
  const Program b = LowerConfig(WithZero(config, "offload_param.max_in_cpu", 2800));
  // Embeddings, layer 0 and the norm fit: layer 1 alone is on disk, used twice (once in eval).
  CHECK(RoleBytes(b, Role::kParamShard, Space::kPinned) == (kShard - 2176) * 2);
  CHECK(RoleBytes(b, Role::kParamShard, Space::kFile) == 2176 * 2);
  CheckChanges(a, b,
               {{"micro_step storage file_read", 2 - 8},
                {"eval storage file_read", 1 - 5},
                {"optimizer_step storage_write file_write", 1 - 4},
                {"init storage_write file_write", 1 - 4},
                {"load storage_write file_write", 1 - 4}});
}

TEST_CASE("key offload_param.buffer_count: staging slots between disk and device") {
  const json config = Param(And(kNvme, "max_in_cpu", 0));
  const Program a = LowerConfig(config);
  CHECK(SlotsUsed(a, "param_read_slot") == 5);
  const Program b = LowerConfig(WithZero(config, "offload_param.buffer_count", 1));
  CheckChanges(a, b, {});
  CHECK(SlotsUsed(b, "param_read_slot") == 1);
  CHECK(Arena(b, Space::kPinned) < Arena(a, Space::kPinned));
}

}  // namespace
}  // namespace zeroplan::testing
