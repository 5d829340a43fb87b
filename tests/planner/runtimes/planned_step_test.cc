// Models that zeroplan plans and does not train: what a step keeps for backward against what
// autograd keeps of the real modules, rows of parts against their counts, and what a request is
// told.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/model/param_table.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/planned_parts.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/planned_models.h"
#include "tests/planner/runtimes/runtime_rows.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// Counts gradients, and holds none of what it is given.
class Idle : public TorchRuntime {
 public:
  using TorchRuntime::TorchRuntime;
  void Init() override {}
  void EndBackward() override {}
  void Step() override {}
  void BeforeForward(int module) override { forward.push_back(module); }
  void BeforeBackward(int module) override { backward.push_back(module); }
  void Gradient(int param, Tensor /*grad*/) override { ++gradients[static_cast<size_t>(param)]; }

  std::vector<int> forward, backward;
  std::vector<int> gradients = std::vector<int>(model_.params.size());
};

ModelSpec Fixture(const std::string& name, const std::string& frozen = "") {
  const TempDir dir;
  const Json& model = PlannedFixture(name);
  WriteJson(dir.path("config.json"), model["config"]);
  WriteSafetensors(dir.path("model.safetensors"), model["tensors"]);
  OtherModels others = {.allowed = true, .preferred = true};
  if (name == "qwen2_5_vl") others.image_tokens = 16;
  ModelSpec spec = FindModel(dir.path(), others).spec;
  spec.frozen = frozen;
  return spec;
}

struct Played {
  uint64_t kept = 0;  // after the forward pass, without what cuBLAS takes and the batch itself
  uint64_t left = 0;  // after backward
  std::vector<int> forward, backward, gradients;
};

Played PlayOf(const ModelSpec& spec, TorchRun run, ExpertModules experts = ExpertModules::kFused) {
  const TorchModel model(spec, experts);
  const PlannedCode& code = *spec.family->planned();
  run.code = CodeStyle::kHf;
  run.attention = code.bounded_scores ? TorchAttention::kEager : TorchAttention::kSdpa;
  run.compute_capability = 90;
  TorchMemory memory;
  TorchTimer timer(nullptr, {});
  Idle hooks(model, {}, &memory, &timer);
  Played played;
  {
    TorchStep step(model, run, &memory, &hooks, &timer);
    step.Forward();
    constexpr uint64_t kWorkspace = uint64_t{32} << 20;
    const auto tokens = static_cast<uint64_t>(run.tokens());
    const auto pixels = static_cast<uint64_t>(2 * run.micro_batch * code.vision.Patches() *
                                              code.vision.patch_elements);
    played.kept = memory.allocator().allocated() - kWorkspace - 16 * tokens - pixels;
    step.Backward();
  }
  played.left = memory.allocator().allocated();
  played.forward = hooks.forward;
  played.backward = hooks.backward;
  played.gradients = hooks.gradients;
  return played;
}

TorchRun FixtureRun() {
  TorchRun run;
  run.micro_batch = PlannedFixtures()["batch"].get<int64_t>();
  run.seq_len = PlannedFixtures()["length"].get<int64_t>();
  return run;
}

double Kept(const ModelSpec& spec) { return static_cast<double>(PlayOf(spec, FixtureRun()).kept); }

TEST_CASE("what a step keeps for backward is what autograd keeps of transformers' modules") {
  // Blocks of 512 bytes, masks of booleans and what pools a tower's patches are the difference.
  for (const Json& model : PlannedFixtures()["models"]) {
    const std::string name = model["name"].get<std::string>();
    CAPTURE(name);
    const double measured = model["saved_bytes"].get<double>();
    CHECK(Kept(Fixture(name)) == doctest::Approx(measured).epsilon(0.02));
    if (!model.contains("saved_bytes_frozen")) continue;
    const ModelSpec frozen = Fixture(name, name == "qwen2_5_vl" ? "visual.*" : "vision_tower.*");
    const double without = model["saved_bytes_frozen"].get<double>();
    CHECK(Kept(frozen) == doctest::Approx(without).epsilon(0.02));
    const uint64_t tower = model["tower_parameters"].get<uint64_t>();
    CHECK(frozen.ParamCount() - frozen.TrainedParamCount() == tower);
    CHECK(TorchModel(frozen).trained_elements() == frozen.TrainedParamCount());
  }
}

TEST_CASE("every module runs once, and every parameter that is trained has one gradient") {
  for (const Json& fixture : PlannedFixtures()["models"]) {
    const std::string name = fixture["name"].get<std::string>();
    for (const bool recompute : {false, true}) {
      CAPTURE(name);
      CAPTURE(recompute);
      const ModelSpec spec = Fixture(name);
      const TorchModel model(spec);
      TorchRun run = FixtureRun();
      run.recompute = recompute;
      Played played = PlayOf(spec, run);
      CHECK(played.left == 0);
      // The embedding's gradient is one where the head is tied to it.
      CHECK(std::all_of(played.gradients.begin(), played.gradients.end(),
                        [](int times) { return times == 1; }));
      std::sort(played.backward.begin(), played.backward.end());
      CHECK(played.backward.size() == model.modules.size());
      CHECK(std::adjacent_find(played.backward.begin(), played.backward.end()) ==
            played.backward.end());
      const size_t again = recompute ? static_cast<size_t>(model.layer_modules * spec.layers) : 0;
      CHECK(played.forward.size() == model.modules.size() + again);
      if (recompute) CHECK(played.kept < 0.7 * Kept(spec));
    }
  }
}

// Adapters of rank 8, as the fixtures have them: of a mixture's attention alone.
ModelSpec Adapted(const std::string& name) {
  ModelSpec spec = Fixture(name);
  spec.lora_rank = 8;
  spec.lora_alpha = 16;
  spec.lora_targets = kAllLinear;
  return spec;
}

TEST_CASE("below adapters a step keeps what autograd keeps of PEFT's models") {
  for (const Json& model : PlannedFixtures()["models"]) {
    const std::string name = model["name"].get<std::string>();
    CAPTURE(name);
    const ModelSpec spec = Adapted(name);
    const TorchModel torch(spec);
    CHECK(spec.TrainedParamCount() == model["lora_parameters"].get<uint64_t>());
    CHECK(torch.trained_elements() == spec.TrainedParamCount());
    CHECK_FALSE(torch.vision_trained);
    CHECK(Kept(spec) == doctest::Approx(model["saved_bytes_lora"].get<double>()).epsilon(0.02));
    for (const bool recompute : {false, true}) {
      TorchRun run = FixtureRun();
      run.recompute = recompute;
      const Played played = PlayOf(spec, run);
      CHECK(played.left == 0);
      for (size_t i = 0; i < torch.params.size(); ++i) {
        CHECK(played.gradients[i] == (torch.params[i].trained ? 1 : 0));
      }
    }
  }
}

TEST_CASE(
    "bitsandbytes quantizes linears: attention's and a shared expert's, no router, no experts") {
  for (const char* name : {"qwen3_moe", "qwen2_moe", "mixtral", "phi3", "gemma3"}) {
    CAPTURE(name);
    ModelSpec spec = Adapted(name);
    spec.lora_quantized = true;
    const TorchModel model(spec);
    for (const TorchParam& param : model.params) {
      const std::string_view of = param.name;
      if (param.trained || param.vector) continue;
      CAPTURE(of);
      const bool linear = of.find("self_attn.") != std::string_view::npos ||
                          of.find("shared_expert") != std::string_view::npos ||
                          of.find("attention.out_proj") != std::string_view::npos ||
                          (of.find("mlp.") != std::string_view::npos &&
                           of.find("experts") == std::string_view::npos &&
                           of.find("mlp.gate.") == std::string_view::npos);
      CHECK((param.quantized > 0) == linear);
    }
  }
}

TEST_CASE("transformers 4's experts: a linear module for each matrix of each, alike in all else") {
  for (const char* name : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    CAPTURE(name);
    const ModelSpec spec = Fixture(name);
    const int64_t experts = spec.family->planned()->experts;
    const TorchModel fused(spec), modules(spec, ExpertModules::kModules);
    CHECK(modules.elements() == fused.elements());
    CHECK(modules.layer_modules == fused.layer_modules + 3 * experts - 1);
    CHECK(modules.params.size() ==
          fused.params.size() + static_cast<size_t>(spec.layers * (3 * experts - 2)));
    const TorchModule& first =
        modules.modules[static_cast<size_t>(modules.first_layer_module + modules.up_module() + 1)];
    CHECK(first.name.ends_with("experts.0.gate_proj"));
    CHECK(modules.params[static_cast<size_t>(first.params.front())].elements ==
          static_cast<uint64_t>(spec.hidden * spec.ffn));
    for (const bool recompute : {false, true}) {
      for (const bool adapters : {false, true}) {
        TorchRun run = FixtureRun();
        run.recompute = recompute;
        const Played played = PlayOf(adapters ? Adapted(name) : spec, run, ExpertModules::kModules);
        CHECK(played.left == 0);
        if (adapters) continue;
        CHECK(std::all_of(played.gradients.begin(), played.gradients.end(),
                          [](int times) { return times == 1; }));
      }
    }
  }
}

TEST_CASE("parts of unknown use go with a layer's first module") {
  ModelSpec spec = Fixture("gemma2");
  const TempDir dir;
  Json tensors = PlannedFixture("gemma2")["tensors"];
  for (int layer = 0; layer < 3; ++layer) {
    tensors[fmt::format("model.layers.{}.self_attn.sinks", layer)] = {4};
  }
  WriteJson(dir.path("config.json"), PlannedFixture("gemma2")["config"]);
  WriteSafetensors(dir.path("model.safetensors"), tensors);
  const TorchModel model(FindModel(dir.path(), {.allowed = true, .preferred = true}).spec);
  CHECK(model.layer_modules == TorchModel(spec).layer_modules);
  CHECK(model.elements() == TorchModel(spec).elements() + 12);
  CHECK(model.modules[1].params.size() == 2);
}

TEST_CASE("sequences longer than a window have a mask in the layers that have one") {
  const ModelSpec spec = Fixture("gemma3_text");
  TorchRun run = FixtureRun();
  const auto kept = [&](int64_t seq_len, int64_t window_layers) {
    run.seq_len = seq_len;
    Json config = PlannedFixture("gemma3_text")["config"];
    config["layer_types"] = Json::array();
    for (int layer = 0; layer < 3; ++layer) {
      config["layer_types"].push_back(layer < window_layers ? "sliding_attention"
                                                            : "full_attention");
    }
    const TempDir dir;
    WriteJson(dir.path("config.json"), config);
    return PlayOf(FindModel(dir.path(), {.allowed = true, .preferred = true}).spec, run).kept;
  };
  CHECK(kept(64, 2) == kept(64, 0));
  // The mask, and keys and values for each of 4 query heads in place of 2.
  const uint64_t mask = 2 * 2 * 128 * 128, more = 2 * 2 * (2 * 128) * (4 - 2) * 16;
  CHECK(kept(128, 2) - kept(128, 0) == 2 * (mask + more));
}

TEST_CASE("rows of parts are what was counted of the modules") {
  std::ifstream file(SourcePath("tests/data/runtimes/planned_counts.jsonl"));
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    if (row["style"] == "hf4") continue;
    const bool fp32 = row["autocast_fp32"].get<bool>(), frozen = row.value("frozen", false);
    const PlannedParts& parts = PlannedPartsOf(fp32, frozen);
    PlannedCode gemma;
    gemma.gemma_norms = true;
    const StyleCode& style = PlannedStyle(CodeStyle::kHf, fp32, gemma, frozen);
    const std::string name = row["part"].get<std::string>();
    const CodePart& part = name == "rms_norm"            ? style.rms_norm
                           : name == "head_norm"         ? style.head_norm
                           : name == "gated"             ? style.gated
                           : name == "post_norm"         ? parts.post_norm
                           : name == "attention_bounded" ? parts.eager_bounded
                           : name == "loss_bounded"      ? parts.bounded_loss
                           : name == "gated_of_one"      ? parts.gated
                           : name == "rotary_of_one"     ? parts.rotary
                           : name == "experts"           ? parts.experts
                                                         : parts.experts_plain_shares;
    CAPTURE(name);
    CAPTURE(fp32);
    CHECK(part.forward == row["forward"].get<std::string>());
    CHECK(part.backward == row["backward"].get<std::string>());
    CHECK(part.forward_moves == row["forward_moves"].get<std::string>());
    CHECK(part.backward_moves == row["backward_moves"].get<std::string>());
    // Casts of a call take a launch less where they change nothing.
    CHECK(std::abs(part.forward_launches - row["forward_launches"].get<int>()) <= 1);
    CHECK(std::abs(part.backward_launches - row["backward_launches"].get<int>()) <= 1);
    ++rows;
  }
  CHECK(rows == 24);
}

// Bytes of elements `of` that a script leaves at its end.
int64_t Left(std::string_view words, char of) {
  std::map<char, int64_t> bytes;
  int64_t sum = 0;
  while (!words.empty()) {
    const CodeWord word = NextWord(&words);
    if (word.kind == CodeWord::kMakes) bytes[word.slot] = word.element == of ? word.bytes : 0;
    if (word.kind == CodeWord::kFrees) bytes[word.slot] = 0;
  }
  for (const auto& [slot, left] : bytes) sum += left;
  return sum;
}

TEST_CASE("an expert that is modules keeps and launches what was counted of one more") {
  std::ifstream file(SourcePath("tests/data/runtimes/planned_counts.jsonl"));
  std::map<std::pair<int, bool>, Json> counted;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    if (row["style"] == "hf4") counted[{row["experts"], row["frozen"]}] = row;
  }
  REQUIRE(counted.size() == 4);
  for (const bool frozen : {false, true}) {
    CAPTURE(frozen);
    const CodePart& one = PlannedPartsOf(false, frozen).one_expert;
    const Json &two = counted[{2, frozen}], &three = counted[{3, frozen}];
    const auto more = [&](const char* key) { return three[key].get<int>() - two[key].get<int>(); };
    CHECK(one.forward_launches == more("forward_launches"));
    CHECK(one.backward_launches == more("backward_launches"));
    const std::string all = three["forward"].get<std::string>();
    for (const char element : {'h', 'f'}) {
      CAPTURE(element);
      CHECK(3 * Left(one.forward, element) == Left(all, element));
    }
  }
}

TEST_CASE("runs of such models by the Trainer, beside what is predicted of them") {
  const HardwareProfile hardware = LoadProfile(MeasuredH200());
  std::ifstream file(SourcePath("tests/data/runtimes/planned_runs.jsonl"));
  int runs = 0;
  Errors allocated_errors, reserved_errors, times;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    CAPTURE(row["name"].get<std::string>());
    const TempDir dir;
    WriteJson(dir.path("config.json"), row["config"]);
    TorchPlay play;
    play.model = FindModel(dir.path(), {.allowed = true, .preferred = true}).spec;
    CHECK(play.model.ParamCount() == row["parameters"].get<uint64_t>());
    TrainSetup& setup = play.setup;
    setup.zero = ReaderZeroDefaults(0);
    setup.batch = {row["micro_batch"], 1, 1, row["seq_len"]};
    setup.precision.dtype = Dtype::kBF16;
    setup.optimizer.gradient_clipping = 1;
    if (row["recompute"].get<bool>()) setup.recompute = FullRecompute();
    play.recipe.code = CodeStyle::kHf;
    if (play.model.family->planned()->bounded_scores)
      play.recipe.attention = TorchAttention::kEager;
    play.recipe.param_dtype = Dtype::kBF16;
    play.recipe.optimizer = TorchOptimizer::kAdamWFused;
    play.hardware = &hardware;
    const TorchMachine machine(hardware, ClusterShape{1, 8});
    TorchTimer timer(&machine, {});
    const TorchFootprint footprint =
        dynamic_cast<const TorchBased&>(DdpRuntime()).Play(play, &timer);
    const double gib = 1 << 30, seconds = timer.Time(1)->step_seconds;
    const double allocated = static_cast<double>(footprint.TensorBytes()) / gib;
    const double reserved = static_cast<double>(footprint.ReservedBytes()) / gib;
    allocated_errors.Add(allocated, row["allocated"]);
    reserved_errors.Add(reserved, row["reserved"]);
    times.Add(1000 * seconds, row["step_ms"]);
    ++runs;
  }
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.02).scale(0); };
  CHECK(allocated_errors.worst == near(kPlannedMargins.allocated));
  CHECK(reserved_errors.worst == near(kPlannedMargins.reserved));
  CHECK(times.worst == near(kPlannedMargins.time));
  CHECK(runs == kPlannedMargins.runs);
}

TEST_CASE("a published run of a mixture at stage 3, beside what is predicted of it") {
  const HardwareProfile hardware = LoadProfile("dgx-a100-80gb");
  TorchPlay play;
  play.model = FindModel("Qwen/Qwen3-30B-A3B", {.allowed = true, .preferred = true}).spec;
  play.setup.zero = ReaderZeroDefaults(3);
  play.setup.batch.micro_batch = 1;
  play.setup.batch.world_size = 16;
  play.setup.batch.seq_len = 8192;
  play.setup.precision.dtype = Dtype::kBF16;
  play.setup.recompute = FullRecompute();
  play.recipe.code = CodeStyle::kHf;
  play.hardware = &hardware;
  play.gpus_per_node = 8;
  const TorchMachine machine(hardware, ClusterShape{16, 8});
  const auto seconds = [&](ExpertModules experts) {
    play.recipe.experts = experts;
    TorchTimer timer(&machine, {});
    dynamic_cast<const TorchBased&>(DeepSpeedRuntime()).Play(play, &timer);
    return timer.Time(1)->step_seconds;
  };
  const double modules = seconds(ExpertModules::kModules);
  CHECK(kPublishedMixture.seconds / modules ==
        doctest::Approx(kPublishedMixture.times).epsilon(0.01));
  // Python has less to do where experts are one parameter, or one module.
  CHECK(seconds(ExpertModules::kLeaf) < modules / 3);
  CHECK(seconds(ExpertModules::kFused) < modules / 15);
}

}  // namespace
}  // namespace zeroplan
