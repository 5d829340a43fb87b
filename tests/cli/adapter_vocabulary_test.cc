// Adapters that reach the embedding and the head, at the command line: what is saved, how PEFT's
// forms are read, and what is refused. tests/transformers_parity/compare_embedding_adapters.py
// holds the numbers against PEFT's.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "executor/checkpoint/safetensors.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kOf = "base_model.model.";

// Tensors as files have them, in fp32.
struct Tensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

Tensors ReadTensors(const std::string& file) {
  const SafetensorsFile read = SafetensorsFile::Open(file);
  Tensors tensors;
  for (const SafetensorsEntry& entry : read.entries()) {
    Tensor& tensor = tensors[entry.name];
    tensor.shape = entry.shape;
    tensor.values.resize(entry.elements);
    read.ReadFloats(entry, 0, tensor.values);
  }
  return tensors;
}

void WriteTensors(const std::string& file, const Tensors& tensors,
                  const std::map<std::string, std::string>& metadata = {}) {
  std::vector<SafetensorsPlan::Tensor> planned;
  for (const auto& [name, tensor] : tensors) planned.push_back({name, tensor.shape, Dtype::kF32});
  SafetensorsWriter writer(file, PlanSafetensors(planned, metadata));
  size_t i = 0;
  for (const auto& [name, tensor] : tensors) writer.WriteAt(i++, 0, tensor.values);
  writer.Finish();
}

// Rows of their own, none of which another tensor has.
Tensor Rows(uint64_t rows, uint64_t columns, float from) {
  Tensor tensor = {{rows, columns}, std::vector<float>(rows * columns)};
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    tensor.values[i] = from + 0.001f * static_cast<float>(i % 997);
  }
  return tensor;
}

constexpr uint64_t kVocab = 256, kWide = 32;

class Adapters {
 public:
  // A small model of bytes with weights in base(), and PEFT's files of an adapter of it.
  explicit Adapters(bool tied, bool gpt2 = false) {
    const std::string config = space_.path("shape.json");
    if (gpt2) {
      testing::WriteGpt2Config(config);
    } else {
      std::ofstream(config) << R"({"model_type":"llama","hidden_size":32,"intermediate_size":48,
          "num_hidden_layers":2,"num_attention_heads":2,"max_position_embeddings":32,
          "vocab_size":256,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":)"
                            << (tied ? "true}" : "false}");
    }
    Run("train --model " + config + Data() + "--save " + base(), 2);
    Run("train --model " + base() + Data() + "--method lora --lora-rank 2 --save " + plain(), 2);
    config_ = Json::parse(ReadWhole(plain() + "/adapter_config.json"));
    tensors_ = ReadTensors(plain() + "/adapter_model.safetensors");
  }

  std::string path(const std::string& name) const { return space_.path(name); }
  std::string base() const { return path("base"); }
  std::string plain() const { return path("plain"); }  // an adapter of the layers alone
  std::string Data() const {
    return " --data " + SourcePath("LICENSE") + " --threads 1 --lr 1e-2 ";
  }

  static RunResult Run(const std::string& line, int steps = 0) {
    const RunResult run =
        RunZeroplan(line + (steps > 0 ? " --steps " + std::to_string(steps) : std::string()));
    INFO(line, "\n", run.err);
    CHECK(run.exit_code == 0);
    return run;
  }
  static void Refused(const std::string& line, const std::string& why) {
    const RunResult run = RunZeroplan(line);
    INFO(line, "\n", run.err);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, why));
  }

  // The adapter with `changes` to its config.json and `more` tensors.
  std::string Make(const std::string& name, const Json& changes, const Tensors& more) const {
    const std::string folder = path(name);
    fs::create_directories(folder);
    Json config = config_;
    if (!changes.is_null()) config.update(changes);
    std::ofstream(folder + "/adapter_config.json") << config.dump();
    Tensors all = tensors_;
    for (const auto& [tensor, values] : more) all[kOf + tensor] = values;
    WriteTensors(folder + "/adapter_model.safetensors", all);
    return folder;
  }
  // The merged model's tensors; its folder is the adapter's with ".merged" behind.
  Tensors Merge(const std::string& adapter, const char* prompt = " --prompt 'The '") const {
    Run("merge " + adapter + " -o " + adapter + ".merged --save-dtype fp32");
    // The same logits either way.
    const std::string ask = std::string(prompt) + " --tokens 20 --temperature 1 --seed 3";
    CHECK(Run("generate " + adapter + ask).out == Run("generate " + adapter + ".merged" + ask).out);
    return ReadTensors(adapter + ".merged/model.safetensors");
  }
  static Json ConfigOf(const std::string& folder, const char* file = "/adapter_config.json") {
    return Json::parse(ReadWhole(folder + file));
  }
  // Two steps from `adapter`, resumed after the first; the tensors that are saved at the end.
  Tensors TrainFrom(const std::string& adapter) const {
    const std::string out = adapter + ".on", halves = adapter + ".halves";
    const std::string line =
        "train --model " + base() + Data() + "--adapter " + adapter + " --save ";
    Run(line + out, 2);
    Run(line + halves, 1);
    Run(line + halves + " --resume", 2);
    CHECK(ReadWhole(out + "/adapter_model.safetensors") ==
          ReadWhole(halves + "/adapter_model.safetensors"));
    return ReadTensors(out + "/adapter_model.safetensors");
  }

 private:
  Workspace space_;
  Json config_;
  Tensors tensors_;
};

TEST_CASE("embedding adapters: a tied embedding that is trained is saved as the head, too") {
  for (const bool gpt2 : {false, true}) {
    const Adapters made(/*tied=*/true, gpt2);
    const std::string out = made.path("saved");
    const std::string named = gpt2 ? "wte,wpe" : "embed_tokens";
    const std::string embedding = kOf + std::string(gpt2 ? "transformer.wte.weight" : kEmbedding);
    made.Run("train --model " + made.base() + made.Data() +
                 "--method lora --lora-rank 2 --lora-save " + named + " --save " + out,
             2);
    const Json config = made.ConfigOf(out);
    CHECK(config.at("ensure_weight_tying") == true);
    // PEFT ties an embedding that it knows by name, else one whose head is named.
    CHECK(config.at("modules_to_save") ==
          (gpt2 ? Json{"wte", "wpe", "lm_head"} : Json{"embed_tokens"}));
    const Tensors saved = ReadTensors(out + "/adapter_model.safetensors");
    CHECK(saved.at(embedding).values == saved.at(kOf + std::string(kHead)).values);
    // Read back as one matrix.
    const Tensors merged = made.Merge(out);
    CHECK_FALSE(merged.contains(kHead));
    CHECK(merged.at(gpt2 ? "transformer.wte.weight" : kEmbedding).values ==
          saved.at(embedding).values);
    made.TrainFrom(out);
    // The two of one matrix that differ are no adapter.
    Tensors differ = saved;
    differ.at(kOf + std::string(kHead)).values[7] += 1;
    fs::create_directories(made.path("differ"));
    fs::copy_file(out + "/adapter_config.json", made.path("differ") + "/adapter_config.json");
    WriteTensors(made.path("differ") + "/adapter_model.safetensors", differ);
    made.Refused("merge " + made.path("differ") + " -o " + made.path("no"),
                 "'base_model.model.lm_head.weight' differs from");
  }
}

TEST_CASE("embedding adapters: PEFT's forms of a tied model are read as PEFT reads them") {
  const Adapters made(/*tied=*/true);
  const Tensors base = ReadTensors(made.base() + "/model.safetensors");
  const Tensor one = Rows(kVocab, kWide, 0.1f), other = Rows(kVocab, kWide, -0.3f);
  const struct {
    const char* name;
    Json saves;
    bool ties;
    Tensors tensors;
    const Tensor *embedding, *head;  // of the merged model; the same: one matrix
  } cases[] = {
      {"e", {"embed_tokens"}, false, {{kEmbedding, one}}, &one, &base.at(kEmbedding)},
      {"h", {"lm_head"}, false, {{kHead, one}}, &base.at(kEmbedding), &one},
      {"eh", {"embed_tokens", "lm_head"}, false, {{kEmbedding, one}, {kHead, other}}, &one, &other},
      {"e-tied", {"embed_tokens"}, true, {{kEmbedding, one}, {kHead, one}}, &one, &one},
      {"h-tied", {"lm_head"}, true, {{kEmbedding, one}, {kHead, one}}, &one, &one},
      {"unasked", nullptr, false, {{kEmbedding, one}, {kHead, one}}, &one, &one},
  };
  for (const auto& c : cases) {
    CAPTURE(c.name);
    const std::string adapter = made.Make(
        c.name, {{"modules_to_save", c.saves}, {"ensure_weight_tying", c.ties}}, c.tensors);
    const Tensors merged = made.Merge(adapter);
    const bool apart = c.embedding != c.head;
    CHECK(merged.at(kEmbedding).values == c.embedding->values);
    CHECK(merged.contains(kHead) == apart);
    if (apart) CHECK(merged.at(kHead).values == c.head->values);
    CHECK(made.ConfigOf(adapter + ".merged", "/config.json").at("tie_word_embeddings") == !apart);
    // What it trains, and what it saves again.
    const Tensors on = made.TrainFrom(adapter);
    const Json config = made.ConfigOf(adapter + ".on");
    CHECK(config.value("ensure_weight_tying", false) == c.ties);
    const auto changed = [&](const char* tensor) {
      const auto saved = on.find(kOf + std::string(tensor));
      if (saved == on.end()) return false;
      const auto& before = std::string_view(tensor) == kHead ? *c.head : *c.embedding;
      return saved->second.values != before.values;
    };
    const bool trains = !c.saves.is_null();
    CHECK(changed(kEmbedding) == (trains && std::string_view(c.name) != "h"));
    CHECK(changed(kHead) == (trains && std::string_view(c.name) != "e"));
    CHECK(config.at("modules_to_save").is_null() == !trains);
    for (const auto& [name, tensor] : c.tensors) CHECK(on.contains(kOf + name));
  }
  // The file of a zeroplan that did not say that the head is trained, too.
  const std::string old = made.Make("old", {{"modules_to_save", {"embed_tokens"}}}, {});
  Tensors tensors = ReadTensors(made.plain() + "/adapter_model.safetensors");
  tensors[kOf + std::string(kEmbedding)] = one;
  WriteTensors(old + "/adapter_model.safetensors", tensors, {{"zeroplan.base", "0"}});
  made.Refused("merge " + old + " -o " + made.path("no"),
               "add \"lm_head\" to the list, and \"ensure_weight_tying\": true");
  const Adapters gpt2(/*tied=*/true, /*gpt2=*/true);
  const std::string apart =
      gpt2.Make("apart", {{"modules_to_save", {"lm_head"}}}, {{kHead, Rows(kVocab, kWide, 0.1f)}});
  const Tensors merged = gpt2.Merge(apart);
  CHECK(merged.at(kHead).values == Rows(kVocab, kWide, 0.1f).values);
  CHECK(gpt2.ConfigOf(apart + ".merged", "/config.json").at("tie_word_embeddings") == false);
  const Tensors on = gpt2.TrainFrom(apart);
  CHECK(on.at(kOf + std::string(kHead)).values != merged.at(kHead).values);
  CHECK_FALSE(on.contains(kOf + std::string("transformer.wte.weight")));
}

TEST_CASE("embedding adapters: a resized vocabulary is the adapter's") {
  constexpr uint64_t kMore = 260;
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Adapters made(tied);
    const Tensor embedding = Rows(kMore, kWide, 0.1f), head = Rows(kMore, kWide, -0.2f);
    Tensors both = {{kEmbedding, embedding}, {kHead, tied ? embedding : head}};
    const std::string adapter = made.Make("larger", {}, both);
    const Tensors merged = made.Merge(adapter, "");  // there is no tokenizer for a prompt
    CHECK(merged.at(kEmbedding).values == embedding.values);
    CHECK(made.ConfigOf(adapter + ".merged", "/config.json").at("vocab_size") == kMore);
    // They come along as they are.
    const Tensors on = made.TrainFrom(adapter);
    CHECK(on.at(kOf + std::string(kEmbedding)).values == embedding.values);
    CHECK(on.at(kOf + std::string(kHead)).values == both.at(kHead).values);
    if (tied) continue;
    both.erase(kHead);
    made.Refused("merge " + made.Make("half", {}, both) + " -o " + made.path("no"),
                 "has 260 rows of model.embed_tokens, the model 256 tokens, and none of lm_head");
    both[kHead] = Rows(kMore + 1, kWide, 0);
    made.Refused("merge " + made.Make("odd", {}, both) + " -o " + made.path("no"),
                 "261 of lm_head");
  }
}

TEST_CASE("embedding adapters: rows that --resize-embeddings adds are the adapter's") {
  constexpr size_t kKnown = 460, kAll = 463;  // of the fixture, and with its special tokens
  const Workspace space;
  const std::string shape = MakeTokenizerModel(space.path("shape"), "llama3",
                                               {.layers = 1, .positions = 64, .vocab = kAll});
  const std::string common = " --data " + SourcePath("LICENSE") + " --threads 1 --lr 1e-2 ";
  const std::string whole = space.path("whole"), cut = space.path("cut");
  Adapters::Run("train --fresh-weights --model " + shape + common + "--save " + whole, 2);
  fs::copy(whole, cut, fs::copy_options::recursive);
  fs::remove_all(cut + "/checkpoints");
  const std::string name = "transformer.wte.weight";
  Tensors base = ReadTensors(whole + "/model.safetensors");
  base.at(name).shape[0] = kKnown;
  base.at(name).values.resize(kKnown * base.at(name).shape[1]);
  WriteTensors(cut + "/model.safetensors", base);
  Json config = Adapters::ConfigOf(cut, "/config.json");
  config["vocab_size"] = kKnown;
  std::ofstream(cut + "/config.json") << config.dump();
  const std::string line = "train --model " + cut + common;
  for (const bool trained : {false, true}) {
    CAPTURE(trained);
    const std::string out = space.path(trained ? "trained" : "along");
    Adapters::Run(line + "--resize-embeddings --method lora --lora-rank 2 --save " + out +
                      (trained ? " --lora-save wte,wpe" : ""),
                  2);
    const Tensors saved = ReadTensors(out + "/adapter_model.safetensors");
    std::vector<float> rows = saved.at(kOf + name).values;
    CHECK(saved.at(kOf + std::string(kHead)).values == rows);
    CHECK(saved.at(kOf + name).shape == std::vector<uint64_t>{kAll, base.at(name).shape[1]});
    CHECK(Adapters::ConfigOf(out).at("modules_to_save").is_null() == !trained);
    const std::string merged = out + ".merged";
    Adapters::Run("merge " + out + " -o " + merged + " --save-dtype fp32");
    CHECK(ReadTensors(merged + "/model.safetensors").at(name).values == rows);
    CHECK(Adapters::ConfigOf(merged, "/config.json").at("vocab_size") == kAll);
    const RunResult on = Adapters::Run(line + "--adapter " + out, 1);
    CHECK(Has(on.err, "Vocabulary: 463 tokens, as the adapter in " + out));
    rows.resize(kKnown * base.at(name).shape[1]);
    CHECK((rows == base.at(name).values) == !trained);
  }
}

TEST_CASE("embedding adapters: rows of single tokens are merged, and trained") {
  const auto delta = [](const char* module) {
    return std::string(module) + ".token_adapter.trainable_tokens_delta";
  };
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Adapters made(tied);
    const Tensors base = ReadTensors(made.base() + "/model.safetensors");
    const Tensor rows = Rows(2, kWide, 0.5f);
    const auto with_rows = [&](const char* tensor, std::vector<size_t> tokens) {
      std::vector<float> values = base.at(base.contains(tensor) ? tensor : kEmbedding).values;
      for (size_t i = 0; i < tokens.size(); ++i) {
        std::copy_n(rows.values.begin() + static_cast<ptrdiff_t>(i * kWide), kWide,
                    values.begin() + static_cast<ptrdiff_t>(tokens[i] * kWide));
      }
      return values;
    };
    const std::string listed = made.Make("listed", {{"trainable_token_indices", {200, 7}}},
                                         {{delta("model.embed_tokens"), rows}});
    const Tensors merged = made.Merge(listed);
    CHECK(merged.at(kEmbedding).values == with_rows(kEmbedding, {200, 7}));
    CHECK(merged.contains(kHead) == !tied);
    const std::string of_head = made.Make(
        "head", {{"trainable_token_indices", {{"lm_head", {3, 4}}}}}, {{delta("lm_head"), rows}});
    const Tensors apart = made.Merge(of_head);
    CHECK(apart.at(kEmbedding).values == base.at(kEmbedding).values);
    CHECK(apart.at(kHead).values == with_rows(kHead, {3, 4}));
    const Tensors trained = made.TrainFrom(listed);
    CHECK(trained.contains(kOf + delta("model.embed_tokens")));
    CHECK_FALSE(trained.contains(kOf + delta("lm_head")));  // PEFT's files have a tied head once
    CHECK(trained.at(kOf + delta("model.embed_tokens")).shape == std::vector<uint64_t>{2, kWide});
    CHECK(made.ConfigOf(listed + ".on").at("trainable_token_indices") == Json{200, 7});
    CHECK(made.Merge(listed + ".on").at(kEmbedding).values != base.at(kEmbedding).values);
    const Tensors head_trained = made.TrainFrom(of_head);
    CHECK(head_trained.at(kOf + delta("lm_head")).values != rows.values);
    CHECK(made.ConfigOf(of_head + ".on").at("trainable_token_indices") ==
          Json{{"lm_head", {3, 4}}});
    const auto refused = [&](const Json& changes, const Tensors& tensors, const char* why) {
      made.Refused("merge " + made.Make("bad", changes, tensors) + " -o " + made.path("no"), why);
    };
    const Tensors of_two = {{delta("model.embed_tokens"), rows}};
    for (const Json& tokens : {Json{1, 256}, Json{1, -1}, Json{1, 1}, Json{1, 1.5}, Json{1, "a"},
                               Json::array(), Json(7)}) {
      refused({{"trainable_token_indices", tokens}}, of_two, "tokens from 0 to 255, each once");
    }
    refused({{"trainable_token_indices", {1, 2, 3}}}, of_two, "expected [3, 32]");
    refused({{"trainable_token_indices", {1, 2}}}, {}, "is missing");
    refused({}, of_two, "is no part of the adapters");
    refused({{"trainable_token_indices", {{"q_proj", {1}}}}}, of_two, "neither the embedding");
    refused({{"trainable_token_indices", {1, 2}}, {"modules_to_save", {"embed_tokens"}}}, of_two,
            "leave one of the two out");
  }
}

TEST_CASE("embedding adapters: rows of tokens begin as the base has them") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const Adapters made(tied);
    const std::string line = "train --model " + made.base() + made.Data() +
                             "--method lora --lora-rank 2 --save-dtype fp32 --weight-decay 0 ";
    const std::string out = made.path("tokens");
    // The text has no such bytes, but a tied head has logits of them.
    made.Run(line + "--lora-tokens 250-252,7 --save " + out, 2);
    CHECK(made.ConfigOf(out).at("trainable_token_indices") == Json{250, 251, 252, 7});
    const std::string name =
        kOf + std::string("model.embed_tokens") + ".token_adapter.trainable_tokens_delta";
    const Tensor base = ReadTensors(made.base() + "/model.safetensors").at(kEmbedding);
    const Tensor rows = ReadTensors(out + "/adapter_model.safetensors").at(name);
    std::vector<float> of_base;
    for (const ptrdiff_t token : {250, 251, 252, 7}) {
      const auto from = base.values.begin() + token * kWide;
      of_base.insert(of_base.end(), from, from + kWide);
    }
    CHECK((rows.values == of_base) == !tied);
    const Tensors merged = made.Merge(out);
    const auto row = merged.at(kEmbedding).values.begin() + 7 * kWide;
    CHECK(std::equal(row, row + kWide, rows.values.begin() + 3 * kWide));
    const RunResult planned = RunZeroplan("estimate --explain --model " + made.base() +
                                          " --gpus 1 --method lora --lora-tokens 3,4-6");
    CHECK(planned.exit_code == 0);
    CHECK(Has(planned.out, "rows of 4"));
    const auto refused = [&](const char* tokens, const char* why) {
      made.Refused(line + "--steps 1 --lora-tokens " + tokens, why);
    };
    refused("256", "--lora-tokens: 256 are no tokens; use NUMBER or FIRST-LAST, from 0 to 255");
    refused("7-3", "--lora-tokens: 7-3 are no tokens");
    refused("7,x", "--lora-tokens: x are no tokens");
    refused("5,3-6", "--lora-tokens: token 5 is there twice");
    refused("5 --lora-save embed_tokens", "is trained whole, and so are its rows");
    made.Refused(
        "plan --explain --model qwen2.5-0.5b --gpus 1 --runtime ddp --method lora --lora-tokens 5",
        "--lora-tokens: rows of single tokens are not modelled");
  }
}

TEST_CASE("embedding adapters: a pickle is named, and never read") {
  const Adapters made(/*tied=*/true);
  const std::string folder = made.Make("pickled", {}, {});
  fs::remove(folder + "/adapter_model.safetensors");
  std::ofstream(folder + "/adapter_model.bin") << "cos\nsystem\n(S'touch owned'\ntR.";
  const std::string why = folder + "/adapter_model.bin: is a pickle";
  made.Refused("merge " + folder + " -o " + made.path("no"), why);
  made.Refused("generate " + folder + " --prompt a", why);
  made.Refused("train --model " + made.base() + made.Data() + "--steps 1 --adapter " + folder, why);
  fs::copy_file(made.plain() + "/adapter_model.safetensors", folder + "/adapter_model.safetensors");
  made.Merge(folder);
}

TEST_CASE(
    "embedding adapters: of a folder with a model and an adapter neither is left out unasked") {
  const Adapters made(/*tied=*/true);
  const std::string both = made.path("both");
  fs::copy(made.base(), both, fs::copy_options::recursive);
  for (const char* file : {"/adapter_config.json", "/adapter_model.safetensors"}) {
    fs::copy_file(made.plain() + file, both + file);
  }
  const std::string why = both + ": holds a model and an adapter (adapter_config.json); ";
  const std::string ask = " --prompt 'The ' --tokens 20 --temperature 1 --seed 3";
  const std::string train = "train" + made.Data() + "--steps 1 --model ";
  made.Refused("generate " + both + ask, why + "train and generate take both with --adapter");
  made.Refused(train + both, why);
  made.Refused(train + made.base() + " --init-from " + both, why);
  made.Refused("plan --gpus 1 --hw 4090 --model " + both, why);
  made.Refused("estimate --gpus 1 --hw 4090 --model " + both, why);
  made.Refused("merge " + both + " -o " + made.path("no"), "say with --model which");
  made.Refused("merge " + made.plain() + " --model " + both + " -o " + made.path("no"), why);
  CHECK(made.Run("generate " + both + " --adapter " + both + ask).out ==
        made.Run("generate " + made.plain() + ask).out);
  made.Run("merge " + both + " --model " + both + " -o " + made.path("merged"));
  made.Run(train + both + " --adapter " + both);
  // A config.json alone, as some programs leave beside an adapter, is no model.
  const std::string beside = made.Make("beside", {}, {});
  fs::copy_file(made.base() + "/config.json", beside + "/config.json");
  made.Refused(train + beside, beside + ": holds an adapter (LoRA), not a model");
  CHECK(made.Run("generate " + beside + ask).out == made.Run("generate " + made.plain() + ask).out);
}

}  // namespace
}  // namespace zeroplan
