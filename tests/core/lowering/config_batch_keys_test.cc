// What the DeepSpeed keys of batch, recompute and precision do to the program, and that those of
// the optimizer do nothing to it. Model and method as in config_keys_test.cc.
#include <doctest/doctest.h>

#include "tests/core/lowering/config_program.h"

namespace zeroplan::testing {
namespace {

constexpr Section kSectionsOfStates[] = {Section::kInit, Section::kOptimizerStep, Section::kSave,
                                         Section::kLoad};
bool SameStates(const Program& a, const Program& b) {
  return SameSections(a, b, {std::begin(kSectionsOfStates), std::end(kSectionsOfStates)});
}

TEST_CASE("key activation_checkpointing.number_checkpoints: segments that are computed twice") {
  for (int stage : {0, 3}) {
    CAPTURE(stage);
    const ConfigContext four{2, 4};
    const Program none = LowerConfig(BaseConfig(stage), four);
    const auto with = [&](int checkpoints) {
      return LowerConfig(With(BaseConfig(stage), "activation_checkpointing",
                              {{"number_checkpoints", checkpoints}}),
                         four);
    };
    // A layer's forward has 2 norms, 4 matmuls, attention and GELU; the matmul that makes a
    // segment's output is not repeated. No gathers are added: a segment stays whole until its
    // backward is over.
    const auto changes = [](int segments) {
      return Changes{{"micro_step compute layer_norm_forward", 8},
                     {"micro_step compute attention_forward", 4},
                     {"micro_step compute gelu_forward", 4},
                     {"micro_step compute matmul_forward", 16 - segments}};
    };
    for (const auto& [checkpoints, segments] :
         std::initializer_list<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 2}, {4, 4}, {9, 4}}) {
      CAPTURE(checkpoints);
      const Program p = with(checkpoints);
      CHECK(p.setup.recompute.every == 4 / segments);
      CheckChanges(none, p, changes(segments));
      CHECK(SameStates(none, p));
      CHECK(SameSections(none, p, {Section::kEval}));
    }
    // More segments: less is computed again at once.
    CHECK(Arena(with(4), Space::kDevice) < Arena(with(2), Space::kDevice));
    CHECK(Arena(with(2), Space::kDevice) < Arena(with(1), Space::kDevice));
    CHECK(Arena(with(4), Space::kDevice) < Arena(none, Space::kDevice));
  }
}

TEST_CASE("key _zeroplan.checkpointing: norms and GELU twice, the same states and gathers") {
  const ConfigContext four{2, 4};
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program none = LowerConfig(BaseConfig(stage), four);
    const Program selective =
        LowerConfig(With(BaseConfig(stage), "_zeroplan", {{"checkpointing", "selective"}}), four);
    CheckChanges(
        none, selective,
        {{"micro_step compute layer_norm_forward", 8}, {"micro_step compute gelu_forward", 4}});
    CHECK(SameStates(none, selective));
    CHECK(SameSections(none, selective, {Section::kEval}));
    CHECK(Arena(selective, Space::kDevice) < Arena(none, Space::kDevice));
  }
}

TEST_CASE("key gradient_accumulation_steps: the first micro-step writes, the others add") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage));
    const Program b = LowerConfig(With(BaseConfig(stage), "gradient_accumulation_steps", 3));
    CHECK(b.setup.batch.grad_accum == 3);
    if (stage <= 1) {
      // Every kernel that writes gradients of weights twice over: once for each way.
      CheckChanges(a, b,
                   {{"micro_step compute loss_reduce", 1},
                    {"micro_step compute matmul_backward_weight", 2 * 4 + 1},
                    {"micro_step compute layer_norm_backward", 2 * 2 + 1},
                    {"micro_step compute embed_backward", 1}});
    } else {
      // A reduced unit is written to its shard, or added.
      CheckChanges(a, b,
                   {{"micro_step compute loss_reduce", 1}, {"micro_step reduce convert", 2 * 4}});
    }
    for (const Instruction& i : b.section(Section::kMicroStep)) {
      const auto* collective = std::get_if<Collective>(&i.op);
      if (collective == nullptr) continue;
      CHECK(i.when == (stage <= 1 ? kReduces : kEvery));
    }
    CHECK(SameStates(a, b));
    CHECK(SameSections(a, b, {Section::kEval}));
  }
  // On the host: one copy a unit, and a write or an addition there.
  const json offload = WithZero(BaseConfig(2), "offload_optimizer", {{"device", "cpu"}});
  CheckChanges(LowerConfig(offload), LowerConfig(With(offload, "gradient_accumulation_steps", 3)),
               {{"micro_step compute loss_reduce", 1}, {"micro_step host convert", 2 * 4}});
}

TEST_CASE("key train_micro_batch_size_per_gpu: the same instructions over more rows") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage));
    const Program b = LowerConfig(With(BaseConfig(stage), "train_micro_batch_size_per_gpu", 4));
    CheckChanges(a, b, {});
    CHECK(SameSections(a, b, {Section::kOptimizerStep, Section::kSave, Section::kLoad}));
    const auto& list = b.section(Section::kMicroStep);
    REQUIRE(list.size() == a.section(Section::kMicroStep).size());
    int64_t rows_a = 0, rows_b = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const auto* launch = std::get_if<LaunchKernel>(&list[i].op);
      if (launch == nullptr || launch->kernel != KernelId::kMatmulForward) continue;
      rows_a += std::get<LaunchKernel>(a.section(Section::kMicroStep)[i].op).dims[0];
      rows_b += launch->dims[0];
    }
    CHECK(rows_b == 2 * rows_a);
    CHECK(Persistent(b, Space::kPinned) == Persistent(a, Space::kPinned) + 128);  // tokens
    CHECK(Arena(b, Space::kDevice) > Arena(a, Space::kDevice));
  }
}

// The dtypes of data that is sent between ranks in a program, scalars apart.
std::vector<Dtype> SentDtypes(const Program& p) {
  std::vector<Dtype> dtypes;
  for (const auto& section : p.sections) {
    for (const Instruction& i : section) {
      const auto* collective = std::get_if<Collective>(&i.op);
      if (collective != nullptr && !collective->scalar) dtypes.push_back(collective->dtype);
    }
  }
  return dtypes;
}

TEST_CASE("keys bf16.enabled and fp16.enabled: what parameters and activations are made of") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const json bf16 = BaseConfig(stage), fp32 = With(bf16, "bf16.enabled", false);
    const Program a = LowerConfig(bf16), b = LowerConfig(fp32);
    const Program c = LowerConfig(With(fp32, "fp16.enabled", true));
    // In fp32 the parameters are the master weights: nothing is converted.
    CheckChanges(a, b, {{"init compute convert", -4}, {"load compute convert", -4}});
    CHECK(SameCompute(a, b));
    for (Dtype dtype : SentDtypes(a)) CHECK(dtype == Dtype::kBF16);
    for (Dtype dtype : SentDtypes(b)) CHECK(dtype == Dtype::kF32);
    for (Dtype dtype : SentDtypes(c)) CHECK(dtype == Dtype::kF16);
    CHECK(Arena(b, Space::kDevice) > Arena(a, Space::kDevice));
    for (const Buffer& buffer : b.buffers) CHECK_FALSE(buffer.holds(StateKind::kMaster));
    // The two 16-bit formats differ in nothing else; fp16 scales its loss.
    CheckChanges(a, c, {});
    CHECK(a.arena_bytes == c.arena_bytes);
    CHECK(c.setup.precision.loss_scale == 0);
  }
}

TEST_CASE("key data_types.grad_accum_dtype: where fp32 sums are kept") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const json config = With(BaseConfig(stage), "gradient_accumulation_steps", 2);
    const Program a = LowerConfig(config);
    const Program b = LowerConfig(With(config, "data_types.grad_accum_dtype", "fp32"));
    CheckChanges(a, b, {});
    CHECK(SameCompute(a, b));
    CHECK(SameSections(a, b, {Section::kEval, Section::kSave, Section::kLoad}));
    for (const Buffer& buffer : b.buffers) {
      if (buffer.role == Role::kGradShard) CHECK(buffer.dtype == Dtype::kF32);
      if (buffer.role != Role::kGradFull) continue;
      // Summed in place, or sent as the kernels wrote them and summed in the shards.
      CHECK(buffer.dtype == (stage <= 1 ? Dtype::kF32 : Dtype::kBF16));
    }
    for (const Instruction& i : b.section(Section::kMicroStep)) {
      const auto* sent = std::get_if<Collective>(&i.op);
      if (sent == nullptr || i.stream != Stream::kReduce) continue;
      CHECK(sent->dtype == (stage <= 1 ? Dtype::kF32 : Dtype::kBF16));
    }
  }
  // Without accumulation shards still have their dtype, so what arrives is converted.
  CheckChanges(LowerConfig(BaseConfig(2)),
               LowerConfig(With(BaseConfig(2), "data_types.grad_accum_dtype", "fp32")),
               {{"micro_step reduce convert", 4}});
}

TEST_CASE("key communication_data_type: gradients travel in fp32") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* summed_in : {"bf16", "fp32"}) {
      CAPTURE(stage);
      CAPTURE(summed_in);
      const json config = With(With(BaseConfig(stage), "gradient_accumulation_steps", 2),
                               "data_types.grad_accum_dtype", summed_in);
      const Program a = LowerConfig(config);
      const Program b = LowerConfig(With(config, "communication_data_type", "fp32"));
      const bool has_effect = stage >= 2 || std::string(summed_in) == "bf16";
      if (!has_effect) {
        CHECK(SameProgram(a, b));
        continue;
      }
      // Gradients that stay in bf16 are converted before they are reduced and after, unit by unit;
      // transient ones are written in fp32.
      CheckChanges(a, b, stage <= 1 ? Changes{{"micro_step reduce convert", 2 * 4}} : Changes{});
      CHECK(SameCompute(a, b));
      CHECK(SameSections(a, b,
                         {Section::kInit, Section::kOptimizerStep, Section::kEval, Section::kSave,
                          Section::kLoad}));
      uint64_t in_bf16 = 0, in_fp32 = 0;
      for (const Program* p : {&a, &b}) {
        for (const Instruction& i : p->section(Section::kMicroStep)) {
          const auto* sent = std::get_if<Collective>(&i.op);
          if (sent == nullptr || i.stream != Stream::kReduce) continue;
          CHECK(sent->dtype == (p == &a ? Dtype::kBF16 : Dtype::kF32));
          for (const Segment& s : p->segs(*sent)) (p == &a ? in_bf16 : in_fp32) += s.src.bytes;
        }
      }
      CHECK(in_fp32 == 2 * in_bf16);
      CHECK(Arena(b, Space::kDevice) > Arena(a, Space::kDevice));
    }
  }
  // One rank sends nothing.
  const json config = With(BaseConfig(2), "communication_data_type", "fp32");
  CHECK(SameProgram(LowerConfig(BaseConfig(2), {1}), LowerConfig(config, {1})));
}

TEST_CASE("communication_data_type fp32: what goes to the host is no wider than it is summed") {
  const json config = With(WithZero(BaseConfig(2), "offload_optimizer", {{"device", "cpu"}}),
                           "gradient_accumulation_steps", 2);
  const auto slots = [](const Program& p) {
    Dtype dtype = Dtype::kU8;
    for (const Buffer& buffer : p.buffers) {
      if (std::string(buffer.label) == "grad_slot") dtype = buffer.dtype;
    }
    return dtype;
  };
  const json reduced = With(config, "communication_data_type", "fp32");
  const Program a = LowerConfig(config), b = LowerConfig(reduced);
  // A conversion a unit before the copy, which has the same bytes as without.
  CheckChanges(a, b, {{"micro_step reduce convert", 4}});
  CHECK(slots(b) == Dtype::kBF16);
  CHECK(Arena(b, Space::kPinned) == Arena(a, Space::kPinned));
  const Program c = LowerConfig(With(reduced, "data_types.grad_accum_dtype", "fp32"));
  CheckChanges(a, c, {});
  CHECK(slots(c) == Dtype::kF32);
}

TEST_CASE("keys that steer no instruction end in the setup") {
  const json config =
      With(BaseConfig(2), "optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}});
  const Program base = LowerConfig(config);
  const auto check = [&](const std::string& key, const json& value, const auto& holds) {
    CAPTURE(key);
    const Program other = LowerConfig(With(config, key, value));
    CHECK(SameProgram(base, other));
    CHECK_FALSE(holds(base.setup));
    CHECK(holds(other.setup));
  };
  using Setup = const TrainSetup&;
  check("gradient_clipping", 0.25, [](Setup s) { return s.optimizer.gradient_clipping == 0.25; });
  check("gradient_clipping", 0, [](Setup s) { return s.optimizer.gradient_clipping == 0; });
  check("optimizer.params.lr", 3e-4, [](Setup s) { return s.optimizer.lr == 3e-4; });
  check("optimizer.params.betas", {0.8, 0.95},
        [](Setup s) { return s.optimizer.betas == std::array<double, 2>{0.8, 0.95}; });
  check("optimizer.params.eps", 1e-6, [](Setup s) { return s.optimizer.eps == 1e-6; });
  check("optimizer.params.weight_decay", 0.1,
        [](Setup s) { return s.optimizer.weight_decay == 0.1; });
  check("optimizer.params.bias_correction", false,
        [](Setup s) { return !s.optimizer.bias_correction; });
  check("scheduler",
        {{"type", "WarmupDecayLR"},
         {"params",
          {{"warmup_max_lr", 2e-3},
           {"warmup_num_steps", 7},
           {"total_num_steps", 70},
           {"warmup_type", "linear"}}}},
        [](Setup s) {
          const ScheduleConfig& schedule = s.optimizer.schedule;
          return schedule.kind == ScheduleKind::kWarmupDecay && schedule.warmup_max_lr == 2e-3 &&
                 schedule.warmup_steps == 7 && schedule.total_steps == 70 && !schedule.log_warmup;
        });
}

}  // namespace
}  // namespace zeroplan::testing
