// Folders that hold no model, and models of other architectures: each says what it is.
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

void Put(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// What is said of a folder that `fill` fills.
std::string SaidOf(const std::function<void(const std::string&)>& fill) {
  const TempDir dir;
  const std::string folder = dir.path("my-folder");
  fs::create_directory(folder);
  fill(folder);
  const std::string said = ErrorOf(ExitCode::kUsage, [&] { FindModel(folder); });
  CHECK(said.starts_with(folder + ": "));
  return said;
}

TEST_CASE("a folder that holds no model says what it is, and what to do") {
  CHECK(Has(SaidOf([](const auto&) {}), wording::kIsAnEmptyFolderGet));
  CHECK(Has(SaidOf([](const auto& at) {
              Put(at + "/adapter_config.json",
                  R"({"peft_type":"LORA","base_model_name_or_path":"meta-llama/Llama-3.1-8B"})");
              Put(at + "/adapter_model.safetensors", "x");
            }),
            "holds an adapter (LoRA), not a model; use the model below it, "
            "meta-llama/Llama-3.1-8B, with --adapter"));
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/model-Q4_K_M.gguf", "GGUF"); }),
            wording::kHoldsModelGgufGgufWeights));
  CHECK(Has(SaidOf([](const auto& at) {
              Put(at + "/model_index.json", "{}");
              fs::create_directory(at + "/unet");
            }),
            wording::kHoldsPipelineOfDiffusers));
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/tokenizer.json", "{}"); }),
            wording::kHoldsTokenizerTokenizerJsonAnd));
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/pytorch_model.bin", "x"); }),
            wording::kHoldsPytorchModelBinWeights));
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/model.safetensors", "x"); }),
            wording::kHoldsModelSafetensorsAndNo));
  CHECK(Has(SaidOf([](const auto& at) {
              Put(at + "/consolidated.00.pth", "x");
              Put(at + "/params.json", "{}");
            }),
            wording::kAsItsMakersOwnCode));
  const std::string run =
      SaidOf([](const auto& at) { fs::create_directories(at + "/checkpoints/step-00000010"); });
  CHECK(Has(run, wording::kHoldsCheckpointsOfRunOf));
  CHECK(Has(run, wording::kMyFolderAnd));
  CHECK(Has(SaidOf([](const auto& at) { fs::create_directory(at + "/step-00000010"); }),
            wording::kIsFolderOfCheckpointsOf));
  CHECK(Has(SaidOf([](const auto& at) {
              Put(at + "/meta.json", "{}");
              Put(at + "/rank-0000.safetensors", "x");
            }),
            wording::kIsCheckpointOfZeroplanTrain));
  CHECK(Has(SaidOf([](const auto& at) { fs::create_directory(at + "/checkpoint-500"); }),
            wording::kMyFolderCheckpoint));
  CHECK(Has(SaidOf([](const auto& at) { fs::create_directory(at + "/global_step20"); }),
            wording::kHoldsCheckpointsOfDeepspeedNot));
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/mp_rank_00_model_states.pt", "x"); }),
            "is one step of DeepSpeed's checkpoints"));
  for (const char* below : {"", "/pytorch_model_fsdp_0", "/step-100"}) {
    CHECK(Has(SaidOf([&](const auto& at) {
                Put(at + below + "/.metadata", "x");
                Put(at + below + "/__0_0.distcp", "x");
              }),
              "my-folder" + std::string(below) + " OUT' makes weights of them"));
  }
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/trainer_state.json", "{}"); }),
            "is a checkpoint of transformers' Trainer"));
  CHECK(Has(SaidOf([](const auto& at) { Put(at + "/README.md", "x"); }),
            wording::kIsFolderWithoutConfigJson));
  const TempDir dir;
  Put(dir.path("a.gguf"), std::string("GGUF\3\0\0\0", 8));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { FindModel(dir.path("a.gguf")); }), "is a GGUF file"));
  Put(dir.path("model.safetensors"), "x");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { FindModel(dir.path("model.safetensors")); }),
            "is a file of weights; name the folder that holds it"));
}

// A safetensors file with a header alone.
std::string Header(const std::string& json) {
  std::string text;
  for (int byte = 0; byte < 8; ++byte) {
    text += static_cast<char>(uint64_t{json.size()} >> 8 * byte & 0xff);
  }
  return text + json;
}

TEST_CASE("a model of another architecture: a plan of its size is named") {
  const TempDir dir;
  const std::string config = dir.path("config.json");
  const auto said = [&] { return ErrorOf(ExitCode::kUsage, [&] { FindModel(config); }); };
  Put(config, R"({"model_type": "unheard_of"})");
  CHECK(Has(said(), wording::kModelTypeUnheardOfIs));
  CHECK(Lacks(said(), "to plan for"));
  // By the config: 2 * 32000 * 1024 + 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096).
  const std::string shape = R"("hidden_size": 1024, "num_hidden_layers": 4, "vocab_size": 32000,
      "num_attention_heads": 16, "intermediate_size": 4096, "torch_dtype": "bfloat16")";
  Put(config, R"({"model_type": "unheard_of", )" + shape + "}");
  CHECK(Has(said(), wording::kZeroplanTrainsToPlanFor));
  Put(config, R"({"architectures": ["X"], "text_config": {)" + shape + "}}");
  CHECK(Has(said(), "⟦params⟧ 133M"));
  // By the index, where the files are not there: half as many as bytes.
  Put(config, R"({"model_type": "unheard_of", )" + shape + "}");
  const std::string index = dir.path("model.safetensors.index.json");
  Put(index, R"({"metadata": {"total_size": 18400000000},
                 "weight_map": {"a": "model-00001-of-00002.safetensors",
                                "b": "model-00002-of-00002.safetensors"}})");
  CHECK(Has(said(), "⟦params⟧ 9.20B"));
  // By the files themselves.
  Put(dir.path("model-00001-of-00002.safetensors"), Header(R"({"__metadata__": {"format": "pt"},
                 "a": {"dtype": "BF16", "shape": [1000, 3000], "data_offsets": [0, 6000000]}})"));
  Put(dir.path("model-00002-of-00002.safetensors"),
      Header(R"({"b": {"dtype": "F32", "shape": [2000000], "data_offsets": [0, 8000000]}})"));
  CHECK(Has(said(), "⟦params⟧ 5.00M"));
  // Damage there takes nothing from the message.
  Put(index, "{");
  CHECK(Has(said(), "⟦params⟧ 133M"));
}

}  // namespace
}  // namespace zeroplan
