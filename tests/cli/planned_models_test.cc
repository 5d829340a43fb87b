// Models that zeroplan does not train, as estimate and plan answer for other programs, and what of
// them is refused.
#include "tests/planned_models.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "planner/runtimes/planned/planned_models.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// A folder with the config.json of a published model.
class PublishedFolder {
 public:
  explicit PublishedFolder(const std::string& name) {
    for (const PublishedConfig& model : PublishedModels()) {
      if (std::string(model.names[0]).ends_with("/" + name)) {
        WriteJson(dir_.path("config.json"), nlohmann::ordered_json::parse(model.config));
        return;
      }
    }
    for (const ModelPreset& preset : ModelPresets()) {
      for (const PublishedName& known : preset.published) {
        if (!std::string(known.name).ends_with("/" + name)) continue;
        WriteJson(dir_.path("config.json"),
                  nlohmann::ordered_json::parse(WriteHuggingFaceConfig(preset.spec)));
        return;
      }
    }
    FAIL("nothing is published as " << name);
  }
  std::string model() const { return " --model " + dir_.path(); }

 private:
  TempDir dir_;
};

TEST_CASE("plan and estimate: a model of another type is planned for DeepSpeed at once") {
  for (const char* command : {"plan google/gemma-3-4b-it", "estimate openai/gpt-oss-20b --stage 3",
                              "estimate phi-4 --stage 3", "estimate qwen3-next --stage 3"}) {
    CAPTURE(command);
    const RunResult run = RunZeroplan(std::string(command) + " --hw 8xh100 --seq-len 2048");
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(WordsIn(run.err), wording::kRuntimeDeepspeedAsZeroplan));
    CHECK(Has(run.out, " under deepspeed "));
  }
  const RunResult trained =
      RunZeroplan("train google/gemma-3-4b-it --data " + SourcePath("LICENSE"));
  CHECK(trained.exit_code == 2);
  CHECK(Has(trained.err, "is planned for other programs alone"));
}

TEST_CASE("mixtures and mixed attention: planned for others by name, their speed not known") {
  struct Case {
    const char* model;
    const char* untimed;
    const char* approximated;  // in estimate --explain
  };
  for (const Case& c :
       {Case{"openai/gpt-oss-20b", "routing to experts", "as published"},
        Case{"zai-org/GLM-4.5-Air", "routing to experts", "what only some have is spread over all"},
        Case{"Qwen/Qwen3.5-9B", "linear attention",
             "24 of 32 layers have attention of a linear kind"},
        Case{"Qwen/Qwen3.5-35B-A3B", "linear attention and routing to experts",
             "30 of 40 layers"}}) {
    CAPTURE(c.model);
    const std::string asked =
        std::string("estimate ") + c.model + " --hw hgx-h200 --gpus 32 --stage 3";
    const RunResult run = RunZeroplan(asked);
    CHECK(run.exit_code == 0);
    CHECK(Has(WordsIn(run.out), "the speed of this model is not known: its " +
                                    std::string(c.untimed) + " is not timed"));
    const RunResult all = RunZeroplan(asked + " --explain");
    CHECK(Has(WordsIn(all.out), c.approximated));
  }
}

const std::string kPlannedOnH200 =
    " --hw h200 --gpus 1 --micro-batch 1 --seq-len 2048 --checkpointing none";

Json EstimatedChoice(const std::string& options) {
  const RunResult run = RunZeroplan("estimate --format json" + kPlannedOnH200 + options);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out)["choices"][0];
}

double ActivationBytes(const Json& choice) {
  return choice["gpu_bytes"]["phases"]["forward_backward"]["classes"]["activations"].get<double>();
}

std::string RefusedWords(const std::string& command) {
  const RunResult run = RunZeroplan(command);
  CHECK(run.exit_code == 2);
  return WordsIn(run.err);
}

TEST_CASE("estimate names what is approximated of a model that zeroplan does not train") {
  const PublishedFolder gemma("gemma-2-2b");
  const RunResult run =
      RunZeroplan("estimate --explain --runtime ddp" + kPlannedOnH200 + gemma.model());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string text = WordsIn(run.out);
  CHECK(Has(text, wording::kTransformersCodeNotCompiledEager));
  CHECK(Has(text, wording::kParametersOfTypeGemmaWhich));
  CHECK(Has(text, wording::kApproximatedNoWeightsLieBeside));
  CHECK(Has(text, wording::kAllocatedMemoryWasOffBy));
  const RunResult other = RunZeroplan(
      "estimate --explain --runtime fsdp2 --gpus 8 --hw 8xh200 --stage 3 "
      "--micro-batch 1 --seq-len 2048 --model Qwen/Qwen3-30B-A3B");
  REQUIRE(other.exit_code == 0);
  CHECK(Has(WordsIn(other.out), wording::kExpertsAreTheGroupedProducts));
}

TEST_CASE("experts: all are gathered and updated, a token is multiplied with some") {
  const Json choice = EstimatedChoice(
      " --runtime ddp --param-dtype bf16 --gpu-memory 1TB --model Qwen/Qwen1.5-MoE-A2.7B");
  const Json& phases = choice["gpu_bytes"]["phases"];
  CHECK(phases["forward_backward"]["classes"]["params"].get<double>() ==
        doctest::Approx(2 * 14315784192.0).epsilon(0.001));
  // 2.7B parameters are multiplied with a token: at the H200's dense peak in bf16 and no faster.
  const double least = 6 * 2.6e9 * 2048 / 989e12;
  const double compute = choice["step_parts"]["compute"].get<double>();
  CHECK(compute > least);
  CHECK(compute < 30 * least);
}

TEST_CASE("towers that see: images, and a frozen one") {
  const PublishedFolder llava("llava-1.5-7b-hf");
  const std::string options = " --runtime ddp --gpu-memory 1TB" + llava.model();
  const Json one = EstimatedChoice(options),
             two = EstimatedChoice(options + " --image-tokens 1152");
  const Json frozen = EstimatedChoice(options + " --freeze 'vision_tower.*'");
  // Of CLIP's 24 layers, under autocast: 577 patches, 24 bytes for each of 1024 channels, 6 for
  // each of the MLP's 4096, 16 beside them and 4 a head; what is around the layers, two norms and a
  // product.
  const double layers = 24 * 577.0 * (24 * 1024 + 6 * 4096 + 16 + 4 * 16);
  const double ends = 6 * 577.0 * 1024 + 4 * 576.0 * 4096;
  const double pixels = 2 * 577.0 * 3 * 14 * 14;
  // Blocks are as much as 2 MiB larger than their tensors.
  const double slack = 26 * 2097152.0;
  const auto more = [&](const Json& choice, const Json& than, double bytes) {
    const double difference = ActivationBytes(choice) - ActivationBytes(than);
    CHECK(difference > bytes - slack);
    CHECK(difference < bytes + slack);
  };
  more(two, one, layers + ends + pixels);
  more(one, frozen, layers);
  CHECK(frozen["step_parts"]["compute"] < one["step_parts"]["compute"]);
  CHECK(one["step_parts"]["compute"] < two["step_parts"]["compute"]);
}

TEST_CASE("plan chooses for another program, and asks zeroplan's own for nothing") {
  const PublishedFolder gemma("gemma-3-4b-pt");
  const RunResult run = RunZeroplan(
      "plan --explain --runtime deepspeed --gpus 2 --hw 2xh200 --seq-len 2048 "
      "--global-batch 16 --stage 2,3 --micro-batch 2 --checkpointing none --offload-optimizer "
      "none" +
      gemma.model());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string text = WordsIn(run.out);
  CHECK(Has(text, wording::kChosenForDeepspeedStage));
  CHECK(Has(text, wording::kFreezesTheTowerThatSees));
  CHECK(Lacks(text, wording::kOwnExecutorWouldReach));
  CHECK(Has(
      RefusedWords(
          "plan --explain --runtime deepspeed --gpus 2 --hw 2xh200 --plan-out /tmp/x.json --quick "
          "--seq-len 2048 --global-batch 16" +
          gemma.model()),
      "does not train models of type gemma3"));
}

// A case of estimate with --json, all offloads off.
Json EstimateOf(const std::string& options) {
  const RunResult run = RunZeroplan(
      "estimate --format json --offload-optimizer none --offload-param none --micro-batch 1 "
      "--grad-accum 1 --code hf " +
      options);
  CAPTURE(options);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out);
}
double SecondsOf(const Json& answer) {
  return answer["choices"][0]["step_seconds"]["total"].get<double>();
}

TEST_CASE("estimate: experts as modules wait for Python at stage 3, a leaf module less") {
  const std::string at = "--hw dgx-a100-80gb --runtime deepspeed --stage 3 --checkpointing full ";
  for (const char* asked : {"--gpus 16 --seq-len 8192 --model Qwen/Qwen3-30B-A3B",
                            "--gpus 8 --seq-len 2048 --model allenai/OLMoE-1B-7B-0924",
                            "--gpus 32 --seq-len 4096 --model zai-org/GLM-4.5-Air"}) {
    CAPTURE(asked);
    const auto seconds = [&](const char* experts) {
      return SecondsOf(EstimateOf(at + asked + " --experts " + experts));
    };
    const double fused = seconds("fused"), modules = seconds("modules"), leaf = seconds("leaf");
    CHECK(modules > 2 * leaf);
    CHECK(leaf > 1.5 * fused);
  }
}

TEST_CASE("plan and estimate: a margin of error of a mixture under DeepSpeed is not known") {
  const std::string at =
      "--model Qwen/Qwen3-30B-A3B --hw hgx-h200 --gpus 8 --runtime deepspeed --stage 3 --seq-len "
      "4096 "
      "--checkpointing full --offload-optimizer none --offload-param none --micro-batch 1 "
      "--grad-accum 1 ";
  const std::string text = WordsIn(RunZeroplan("estimate --explain " + at).out);
  CHECK(Has(text, "none of their errors is this model's"));
  CHECK(Has(text, "times as long as predicted"));
  CHECK(Lacks(text, "times by"));
  const RunResult plan = RunZeroplan("plan --format json --quick " + at);
  CAPTURE(plan.err);
  REQUIRE(plan.exit_code == 0);
  CHECK(Has(plan.out, "\"margins\": {}"));
}

TEST_CASE("adapters of mixtures and of models that see are planned for each program") {
  struct Case {
    const char* model;
    const char* trained;  // parameters, at rank 16
    const char* said;
  };
  for (const Case& c :
       {Case{"Qwen/Qwen3-30B-A3B", "13.4M", "Its experts have no adapter"},
        Case{"mistralai/Mixtral-8x7B-v0.1", "13.6M", "Its experts have no adapter"},
        Case{"allenai/OLMoE-1B-7B-0924", "4.19M", "Its experts have no adapter"},
        Case{"openai/gpt-oss-20b", "7.96M", "Its experts have no adapter"},
        Case{"google/gemma-3-4b-it", "29.8M", "The tower that sees is frozen"},
        Case{"Qwen/Qwen2.5-VL-7B-Instruct", "40.4M", "The tower that sees is frozen"}}) {
    CAPTURE(c.model);
    for (const char* runtime : {"ddp", "fsdp2 --gpus 2", "deepspeed --stage 2 --gpus 2",
                                "deepspeed --stage 3 --gpus 2"}) {
      for (const char* method : {"lora", "qlora"}) {
        CAPTURE(runtime);
        CAPTURE(method);
        const bool quantized = std::string_view(method) == "qlora";
        const RunResult run = RunZeroplan(
            "estimate --explain --hw hgx-h200 --seq-len 2048 --micro-batch 1 --grad-accum 1 "
            "--checkpointing full --offload-optimizer none --offload-param none --runtime " +
            std::string(runtime) + " --method " + method + " --model " + c.model +
            (std::string_view(runtime) == "ddp" ? " --gpus 1" : ""));
        CAPTURE(run.err);
        REQUIRE(run.exit_code == 0);
        const std::string text = WordsIn(run.out);
        CHECK(Has(text, c.said));
        CHECK(Has(text, std::string(c.trained) + " parameters are trained"));
        const bool mixture = std::string_view(c.said).starts_with("Its experts");
        if (quantized && mixture) CHECK(Has(text, "stay in 16 bit"));
      }
    }
  }
}

TEST_CASE("what is not known of such a model is refused by name") {
  const PublishedFolder gemma("gemma-2-2b"), experts("Mixtral-8x7B-v0.1"), llava("llava-1.5-7b-hf");
  const auto refused = [](const PublishedFolder& model, const std::string& options) {
    return RefusedWords("estimate --gpus 1 --hw h200 --micro-batch 1 --seq-len 1024 " + options +
                        model.model());
  };
  CHECK(Has(RefusedWords("train --data x --gpus 1" + gemma.model()), "model_type: \"gemma2\""));
  CHECK(Has(refused(gemma, "--runtime ddp --compile layers"), "--compile: compiled code"));
  CHECK(Has(refused(gemma, "--runtime ddp --code torchtitan"), "use hf or liger"));
  CHECK(Has(refused(experts, "--runtime ddp --code liger"), "use hf"));
  CHECK(Has(refused(gemma, "--runtime ddp --attn sdpa"), "--attn: sdpa bounds no scores"));
  const PublishedFolder qwen("Qwen3-30B-A3B"), oss("gpt-oss-20b");
  CHECK(Has(refused(experts, "--runtime ddp --lora-targets all-linear"), "q_proj,k_proj,v_proj"));
  CHECK(Has(refused(qwen, "--runtime ddp --lora-targets q_proj,gate_proj"),
            "gate_proj: of a mixture"));
  CHECK(Has(refused(llava, "--runtime ddp --lora-targets all-linear"), "the tower that sees"));
  CHECK(Has(refused(experts, "--runtime ddp --method qlora --kbit"), "--kbit: prepare_model_for"));
  CHECK(Has(refused(qwen, "--runtime deepspeed --method qlora --experts modules"), "in 4 bit"));
  CHECK(Has(refused(oss, "--runtime deepspeed --experts modules"), "--experts modules:"));
  CHECK(Has(refused(gemma, "--runtime ddp --experts leaf"), "has no experts"));
  CHECK(Has(refused(qwen, "--runtime fsdp2 --experts leaf"), "DeepSpeed's stage 3"));
  CHECK(Has(refused(gemma, "--runtime fsdp2 --checkpointing selective"), "selective"));
  CHECK(Has(refused(gemma, "--runtime ddp --image-tokens 9"), "--image-tokens: 9 has no effect"));
  CHECK(Has(refused(gemma, "--runtime ddp --freeze 'model.norm.*'"), "nothing can be frozen"));
  CHECK(Has(refused(llava, "--runtime ddp --freeze '*.norm.weight'"), "use 'vision_tower.*'"));
}

}  // namespace
}  // namespace zeroplan
