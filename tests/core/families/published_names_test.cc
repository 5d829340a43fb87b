// Names under which models are published, and which preset has their shape.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

// $HF_HUB_CACHE for as long as it lives.
class HubCache {
 public:
  explicit HubCache(const std::string& folder) {
    if (const char* before = std::getenv("HF_HUB_CACHE")) before_ = before;
    setenv("HF_HUB_CACHE", folder.c_str(), 1);
  }
  ~HubCache() {
    if (before_) {
      setenv("HF_HUB_CACHE", before_->c_str(), 1);
    } else {
      unsetenv("HF_HUB_CACHE");
    }
  }
  HubCache(const HubCache&) = delete;
  HubCache& operator=(const HubCache&) = delete;

 private:
  std::optional<std::string> before_;
};

TEST_CASE("published names mean the preset of their shape") {
  const TempDir none;
  const HubCache cache(none.path());
  struct Case {
    const char* name;
    const char* preset;
    int64_t positions;
  };
  for (const Case& c : {
           Case{"meta-llama/Llama-3.1-8B", "llama3.1-8b", 131072},
           Case{"meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b", 131072},
           Case{"META-LLAMA/llama-3.1-8b-instruct", "llama3.1-8b", 131072},
           Case{"meta-llama/Meta-Llama-3.1-8B", "llama3.1-8b", 131072},
           Case{"unsloth/Llama-3.1-8B-Instruct", "llama3.1-8b", 131072},
           Case{"unsloth/Meta-Llama-3.1-8B", "llama3.1-8b", 131072},
           Case{"Llama-3.1-8B-Instruct", "llama3.1-8b", 131072},
           Case{"llama 3.1 8b", "llama3.1-8b", 131072},
           Case{"llama3.1:8b", "llama3.1-8b", 131072},
           Case{"meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b", 8192},
           Case{"Llama-3-8B", "llama3-8b", 8192},
           Case{"meta-llama/Llama-3.3-70B-Instruct", "llama3.1-70b", 131072},
           Case{"meta-llama/Llama-2-7b-chat-hf", "llama2-7b", 4096},
           Case{"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b",
                131072},
           Case{"NousResearch/Llama-2-13b-hf", "llama2-13b", 4096},
           Case{"meta-llama/Llama-3.2-1B-Instruct", "llama3.2-1b", 131072},
           Case{"Qwen/Qwen2.5-7B", "qwen2.5-7b", 131072},
           // Published with other positions than its base.
           Case{"Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", 32768},
           Case{"Qwen/Qwen3-8B", "qwen3-8b", 40960},
           Case{"Qwen/Qwen3-8B-Base", "qwen3-8b", 32768},
           Case{"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b", 262144},
           Case{"mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3", 32768},
           Case{"mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2", 32768},
           Case{"mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b", 131072},
           Case{"openai-community/gpt2-xl", "gpt2-xl", 1024},
           Case{"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b", 2048},
           Case{"HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m", 8192},
       }) {
    CAPTURE(c.name);
    const NamedModel model = FindModel(c.name);
    const ModelSpec preset = LoadModel(c.preset);
    CHECK(model.spec.name == c.preset);
    CHECK(model.spec.positions == c.positions);
    CHECK(model.spec.ParamCount() == preset.ParamCount());
    CHECK(model.folder.empty());
    CHECK(model.note.find(c.name) != std::string::npos);
    CHECK(model.note.find(c.preset) != std::string::npos);
  }
  CHECK(FindModel("Qwen/Qwen3-4B-Instruct-2507").spec.rope_theta == 5e6f);
  CHECK(FindModel("gpt2").note.empty());
  CHECK(FindModel("gpt2").hub_name.empty());
  CHECK(FindModel("Llama-3.1-8B-Instruct").hub_name == "meta-llama/Llama-3.1-8B-Instruct");
}

TEST_CASE("every published name is found as its own preset") {
  const TempDir none;
  const HubCache cache(none.path());
  for (const ModelPreset& preset : ModelPresets()) {
    for (const PublishedName& published : preset.published) {
      CAPTURE(published.name);
      CHECK(FindModel(published.name).spec.name == preset.spec.name);
    }
  }
}

TEST_CASE("names of another shape are refused, with what is near") {
  const TempDir none;
  const HubCache cache(none.path());
  struct Case {
    const char* name;
    const char* said;
  };
  for (const Case& c : {
           Case{"meta-llama/Llama-3.2-11B-Vision-Instruct", "takes images"},
           Case{"Qwen/Qwen2.5-7B-Instruct-AWQ", "quantized weights"},
           Case{"Qwen/Qwen2.5-7B-Instruct-AWQ", "('qwen2.5-7b')"},
           Case{"bartowski/Llama-3.1-8B-GGUF", "quantized weights"},
           Case{"unsloth/llama-3-8b-bnb-4bit", "quantized weights"},
           Case{"neuralmagic/Meta-Llama-3.1-8B-FP8", "quantized weights"},
           // The shape of a mixture is in its config.json alone.
           Case{"mistralai/Mixtral-8x3B", "nothing is downloaded"},
           Case{"someone/Qwen3-30B-A3B-mix", "use the preset 'qwen3-30b-a3b'"},
           Case{"mixtral", "use mixtral-8x7b, mixtral-8x22b"},
           Case{"mistralai/Mixtral-8x3B",
                "hf download mistralai/Mixtral-8x3B config.json --local-dir Mixtral-8x3B"},
           Case{"google/gemma-7b", "models of the types \"gpt2\""},
           // A type that is planned from its weights' headers alone, and one from its config.
           Case{"google/gemma-7b", "hf download google/gemma-7b --local-dir gemma-7b"},
           Case{"gemma-7b", "a folder with its weights is planned for DeepSpeed, FSDP2 or DDP"},
           Case{"someone/gemma-3-9b", "hf download someone/gemma-3-9b config.json --local-dir"},
           Case{"someone/Phi-3.5-mini", "hf download someone/Phi-3.5-mini config.json --local-dir"},
           Case{"deepseek-ai/DeepSeek-V3", "neither trained nor planned"},
           Case{"deepseek-ai/DeepSeek-R1", "neither trained nor planned"},
           Case{"deepseek-ai/DeepSeek-Coder-V2-Lite", "neither trained nor planned"},
           // Neither trained nor planned, with a shape of the size.
           Case{"tiiuae/falcon-7b", "use ⟦params⟧ 7B ⟦family⟧ llama"},
           Case{"EleutherAI/pythia-160m", "use ⟦params⟧ 160M ⟦family⟧ llama"},
           Case{"microsoft/phi-2", "use ⟦params⟧ COUNT ⟦family⟧ llama"},
           // Names with another family's word whose type is trained: the way is their config.json.
           Case{"deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
                "hf download deepseek-ai/DeepSeek-R1-0528-Qwen3-8B config.json"},
           Case{"deepseek-ai/deepseek-llm-7b-base",
                "hf download deepseek-ai/deepseek-llm-7b-base config.json"},
           Case{"deepseek-ai/deepseek-coder-6.7b-instruct", "nothing is downloaded"},
           Case{"tiiuae/Falcon3-7B-Base", "hf download tiiuae/Falcon3-7B-Base config.json"},
           Case{"someone/qwen2-7b-opt-sft", "hf download someone/qwen2-7b-opt-sft config.json"},
           Case{"someone/Llama-3-8B-gemma-distill", "nothing is downloaded"},
           // Somebody else's model of that name may have any shape.
           Case{"someone/Llama-3.1-8B", "use the preset 'llama3.1-8b'"},
           Case{"someone/Llama-3.1-8B",
                "hf download someone/Llama-3.1-8B config.json --local-dir Llama-3.1-8B"},
           Case{"allenai/OLMo-2-7B", "nothing is downloaded"},
           Case{"allenai/OLMo-2-7B", "use the preset 'llama2-7b'"},  // not OLMoE
           Case{"llama-8b", "did you mean 'llama3.1-8b'?"},
           Case{"qwen-7b", "did you mean 'qwen2.5-7b'?"},
           Case{"mistral-7b", "did you mean 'mistral-7b-v0.3'?"},
           Case{"gpt2-xxl", "did you mean 'gpt2-xl'?"},
           Case{"tinyllama", "use tinyllama-1.1b"},
           Case{"7B", "⟦params⟧ 7B"},
           Case{"./none", "neither a preset nor a file"},
       }) {
    CAPTURE(c.name);
    CHECK_THROWS_WITH_AS(FindModel(c.name), doctest::Contains(c.said), Error);
  }
}

void WriteFile(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST_CASE("Hugging Face's cache comes before the preset") {
  const TempDir folder;
  const HubCache cache(folder.path());
  const std::filesystem::path model =
      std::filesystem::path(folder.path()) / "models--meta-llama--Llama-3.1-8B";
  ModelSpec fewer = LoadModel("llama3.1-8b");
  fewer.layers = 3;
  WriteFile(model / "snapshots" / "abc" / kConfigFile, WriteHuggingFaceConfig(fewer));
  // Nothing says that this revision is the newest.
  CHECK(FindModel("meta-llama/Llama-3.1-8B").folder.empty());
  WriteFile(model / "refs" / "main", "abc\n");
  for (const char* name : {"meta-llama/Llama-3.1-8B", "llama-3.1-8b"}) {
    CAPTURE(name);
    const NamedModel found = FindModel(name);
    CHECK(found.spec.layers == 3);
    CHECK(found.spec.name == "Llama-3.1-8B");
    CHECK(found.folder == model / "snapshots" / "abc");
    CHECK(found.note.find("Hugging Face's cache") != std::string::npos);
    CHECK(found.hub_name == "meta-llama/Llama-3.1-8B");
  }
  // The preset's own name, others' copies and other versions do not mean these weights.
  for (const char* name :
       {"llama3.1-8b", "unsloth/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"}) {
    CAPTURE(name);
    CHECK(FindModel(name).spec.layers == 32);
  }
  // What no preset has.
  WriteFile(std::filesystem::path(folder.path()) / "models--a--b" / "refs" / "main", "r1");
  CHECK_THROWS_WITH_AS(FindModel("a/b"), doctest::Contains("hf download a/b"), Error);
  WriteFile(
      std::filesystem::path(folder.path()) / "models--a--b" / "snapshots" / "r1" / kConfigFile,
      WriteHuggingFaceConfig(fewer));
  CHECK(FindModel("a/b").spec.layers == 3);
  CHECK(FindModel("a/b").spec.name == "b");
}

}  // namespace
}  // namespace zeroplan
