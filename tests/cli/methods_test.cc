// plan's comparison of methods of tuning: what it says holds when it is typed back.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/advice/flips.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// Options and their values.
using Asked = std::map<std::string, std::string>;

struct Question {
  std::string words;
  std::string Plan(const Asked& asked, const std::string& more = "") const {
    std::string line = words + " " + more;
    for (const auto& [option, value] : asked) line += " " + option + " " + value;
    return line;
  }
};

// A folder with the shape of a small model, and with weights that no plan reads if it is told to.
class ShapeFolder {
 public:
  explicit ShapeFolder(bool weights = false) {
    std::ofstream(dir_.path("config.json"))
        << R"({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 1024,
               "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 4096,
               "vocab_size": 8000, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5,
               "tie_word_embeddings": true, "attention_dropout": 0.1})";
    if (weights) std::ofstream(dir_.path("model.safetensors")) << "weights";
  }
  // "plan DIR --hw 4090 ...".
  std::string Plan(const Asked& asked, const std::string& more = "") const {
    return question().Plan(asked, more);
  }
  Question question() const { return {"plan " + dir_.path() + " --hw 4090"}; }

 private:
  TempDir dir_;
};

Json JsonOf(const std::string& line) {
  const RunResult run = RunZeroplan(line);
  INFO(line, run.err);
  REQUIRE((run.exit_code == 0 || run.exit_code == 3));
  return Json::parse(run.out);
}

// `asked` with another value of an option of the batch, or of another one, as the page says it.
Asked With(Asked asked, const std::string& option, int64_t value) {
  const bool in_tokens = asked.contains("--global-batch-tokens");
  if (in_tokens && option != "--gpu-memory") {
    const int64_t tokens = std::stoll(asked.at("--global-batch-tokens"));
    if (option == "--seq-len") {
      asked["--global-batch"] = std::to_string(tokens / std::stoll(asked.at("--seq-len")));
    }
    asked.erase("--global-batch-tokens");
  }
  if (option == "--micro-batch") asked.erase("--global-batch");
  asked[option] = std::to_string(value);
  return asked;
}

// What the comparison for `asked` says of each method, asked of that method alone.
void CheckLimits(const Question& model, const Asked& asked, const Json& all) {
  for (const Json& method : all.at("methods")) {
    const auto exit_code = [&](const Asked& changed) {
      const std::string line =
          model.Plan(changed, "--quick --method " + method.at("method").get<std::string>());
      const RunResult run = RunZeroplan(line);
      if (run.exit_code != 0 && run.exit_code != 3) FAIL_CHECK(line, run.err);
      return run.exit_code;
    };
    CAPTURE(method.dump());
    CHECK(exit_code(asked) == (method.at("fits") ? 0 : 3));
    for (const auto& [key, option] :
         {std::pair{"seq_len", "--seq-len"}, {"micro_batch", "--micro-batch"}}) {
      const Json& limit = method.at(key);
      if (limit.is_null()) continue;
      CHECK(exit_code(With(asked, option, limit.at("fits"))) == 0);
      if (!limit.at("next").is_null() && limit.at("proven")) {
        CHECK(exit_code(With(asked, option, limit.at("next"))) == 3);
      }
    }
    const auto least = method.at("least_gpu_bytes").get<int64_t>();
    CHECK(exit_code(With(asked, "--gpu-memory", least)) == 0);
    if (method.at("least_gap") == 0) {
      CHECK(exit_code(With(asked, "--gpu-memory", least - 1)) == 3);
    }
  }
}

// Where the answer is said to change, the comparison with that value alone has that answer.
void CheckChanges(const Question& model, const Asked& asked, const Json& all) {
  for (const Json& figure : all.at("changes")) {
    int64_t before = 0;
    for (const Json& range : figure.at("ranges")) {
      CHECK(before < range.at("from").get<int64_t>());
      before = range.at("to").get<int64_t>();
      CHECK(range.at("from").get<int64_t>() <= before);
      for (const char* end : {"from", "to"}) {
        const Asked there = With(asked, figure.at("option"), range.at(end));
        const std::string all_methods = "--format json --method all";
        CAPTURE(model.Plan(there, all_methods));
        CAPTURE(range.dump());
        const Json& possible = range.at("possible");
        const auto is_possible = [&](const Json& answer) {
          const Json& method = answer.at("method");
          if (method.is_null()) return range.at("method").is_null();
          return std::find(possible.begin(), possible.end(), method) != possible.end();
        };
        Json answer = JsonOf(model.Plan(there, "--quick " + all_methods)).at("answer");
        // The quick answer looks no longer where it is not proven.
        if (answer.at("possible").size() > 1 && !is_possible(answer)) {
          answer = JsonOf(model.Plan(there, all_methods)).at("answer");
        }
        CHECK(is_possible(answer));
        if (answer.at("method").is_null()) continue;
        CHECK(answer.at("alone") == range.at("alone"));
      }
    }
  }
}

// What the page prints is what the JSON has.
void CheckPage(const std::string& page, const Json& all) {
  const std::string text = Unwrapped(page);
  const auto memory = [](uint64_t bytes) { return FormatTypedBytes(bytes); };
  for (const Json& method : all.at("methods")) {
    const std::string name = method.at("method");
    const std::string words = name == "full" ? "Full tuning" : name == "lora" ? "LoRA" : "QLoRA";
    CHECK(Has(text, words + (method.at("fits") ? ": fastest by" : ": nothing fits.")));
    CHECK(Has(text, "It fits from " +
                        memory(TypedBytes(method.at("least_gpu_bytes"), Rounding::kUp)) +
                        " a GPU on"));
    if (!method.at("smallest_change").is_null()) {
      CHECK(Has(text, method.at("smallest_change").get<std::string>()));
    }
    if (const Json& limit = method.at("seq_len"); !limit.is_null()) {
      CHECK(Has(text, "sequences of up to " + limit.at("fits").dump() + " tokens"));
    }
    if (const Json& limit = method.at("micro_batch"); !limit.is_null()) {
      CHECK(Has(text, "micro-batches of up to " + limit.at("fits").dump() + " sequence"));
    }
  }
  for (const Json& figure : all.at("changes")) {
    const bool bytes = figure.at("option") == "--gpu-memory";
    CHECK(Has(text, figure.at("option").get<std::string>()));
    for (const Json& range : figure.at("ranges")) {
      if (range.at("method").is_null()) continue;
      const auto from = range.at("from").get<uint64_t>(), to = range.at("to").get<uint64_t>();
      const auto value = [&](uint64_t at) { return bytes ? memory(at) : std::to_string(at); };
      CHECK(
          Has(text, from == to ? " " + value(from) + " " : value(from) + " to " + value(to) + " "));
    }
  }
}

TEST_CASE("methods: limits, least memory and changes of the answer hold when typed back") {
  const ShapeFolder model;
  const std::vector<Asked> all_asked = {
      {{"--gpu-memory", "1700MB"},
       {"--host-memory", "3GB"},
       {"--stage", "0,3"},
       {"--checkpointing", "full"}},
      {{"--gpu-memory", "1700MB"}, {"--host-memory", "3GB"}, {"--stage", "0"}},
      {{"--gpu-memory", "2GB"},
       {"--stage", "1,2"},
       {"--seq-len", "2048"},
       {"--global-batch-tokens", "65536"}}};
  for (const Asked& asked : all_asked) {
    const std::string compare = model.Plan(asked, "--method all");
    CAPTURE(compare);
    const Json all = JsonOf(compare + " --format json");
    CHECK(all.at("schema") == "zeroplan.methods/1");
    REQUIRE(all.at("methods").size() == 3);
    CHECK(all.at("changes").size() == 3);
    CheckLimits(model.question(), asked, all);
    CheckChanges(model.question(), asked, all);
    const RunResult page = RunZeroplan(compare + " --explain");
    CHECK(page.exit_code == 0);
    CheckPage(page.out, all);
    // What the config is not trained with is said once, however often it is read.
    const size_t note = page.err.find("attention_dropout");
    CHECK(note != std::string::npos);
    CHECK(page.err.find("config.json", note) == std::string::npos);
  }
}

// Some minutes.
TEST_CASE("methods: the page of ten questions holds when typed back" * doctest::skip()) {
  const std::string page = ReadWhole(SourcePath("docs/which-method.md"));
  const std::string prompt = "    $ zeroplan ";
  int questions = 0;
  for (size_t at = 0; (at = page.find(prompt, at)) != std::string::npos; ++questions) {
    at += prompt.size();
    std::string words = page.substr(at, page.find('\n', at) - at);
    const std::string method = " --method all", length = " --seq-len ";
    REQUIRE(words.ends_with(method));
    words.resize(words.size() - method.size());
    Asked asked;
    if (const size_t given = words.find(length); given != std::string::npos) {
      asked["--seq-len"] = words.substr(given + length.size());
      words.resize(given);
    }
    CAPTURE(words);
    const Question question{words};
    const Json all = JsonOf(question.Plan(asked, "--method all --format json"));
    CheckLimits(question, asked, all);
    CheckChanges(question, asked, all);
  }
  CHECK(questions == 10);
}

TEST_CASE("methods: what would fit where nothing does, typed back") {
  const ShapeFolder model;
  const auto full = [&](const Asked& asked) {
    return JsonOf(model.Plan(asked, "--quick --format json --method full,qlora")).at("methods")[0];
  };
  // "--host-memory 1.68GB (stage 2, ...".
  const auto fits = [&](const Asked& asked, const std::string& change) {
    const std::string options = change.substr(0, change.find(" ("));
    const RunResult run = RunZeroplan(model.Plan(asked, "--quick --method full " + options));
    INFO(options, run.err);
    CHECK(run.exit_code == 0);
  };
  // The host is short; so it is at any stage without a disk.
  const Asked small = {
      {"--gpu-memory", "1700MB"}, {"--host-memory", "1500MB"}, {"--master-weights", "fp32"}};
  const Json host = full(small);
  REQUIRE_FALSE(host.at("fits"));
  const Asked gpu = {{"--gpu-memory", "1700MB"}};
  const std::string change = host.at("smallest_change");
  CHECK(change.starts_with("--host-memory "));
  fits(gpu, change);
  // Unless lighter states, of which nothing was said, are enough.
  const Json light = full({{"--gpu-memory", "1700MB"}, {"--host-memory", "1500MB"}});
  const std::string states = light.at("smallest_change");
  CHECK(states.starts_with("--allow "));
  fits({{"--gpu-memory", "1700MB"}, {"--host-memory", "1500MB"}}, states);
  // The stage is in the way.
  const Json stage = full({{"--gpu-memory", "1700MB"}, {"--stage", "0"}});
  REQUIRE_FALSE(stage.at("fits"));
  fits(gpu, stage.at("smallest_change"));
  // Nothing fits by any: the page says what would, then the error.
  const RunResult none =
      RunZeroplan(model.Plan({{"--gpu-memory", "1300MB"}}, "--method lora,qlora --explain"));
  CHECK(none.exit_code == 3);
  CHECK(Has(none.out, wording::kLoraNothingFits));
  CHECK(Has(none.out, "It fits from "));
  CHECK(Has(none.err, wording::kNothingFitsByAnyOf));
}

TEST_CASE("methods: a model with weights is compared unless something asks for one method") {
  const ShapeFolder weights(true), shape;
  const std::string quick = "--quick ";
  const auto compared = [&](const ShapeFolder& model, const std::string& more) {
    const RunResult run = RunZeroplan(model.Plan({}, "--quick --explain " + more));
    INFO(more, run.err);
    CHECK(run.exit_code == 0);
    const bool answer = run.out.find("method trained fits") != std::string::npos;
    CHECK(answer == (run.out.find("Assumed: --method all") != std::string::npos));
    CHECK(answer != (run.out.find("Chosen: ") != std::string::npos));
    return answer;
  };
  CHECK(compared(weights, ""));
  CHECK(compared(weights, "--stage 2 --gpu-memory 4GB --runtime zeroplan"));
  CHECK_FALSE(compared(shape, ""));
  const TempDir out;
  for (const std::string& one :
       {std::string("--method full"), std::string("--method lora"), std::string("--lora-rank 4"),
        std::string("--rslora"), std::string("--freeze '*norm*'"), std::string("--largest seq-len"),
        std::string("--objective headroom"), "--out " + out.path("a.json --runtime zeroplan"),
        "--plan-out " + out.path("b.json"), "--trace " + out.path("c.json"),
        "--report " + out.path("d.html")}) {
    CHECK_FALSE(compared(weights, one));
  }
  // Programs that read a plan get a plan.
  const std::string json = quick + "--format json ";
  CHECK(JsonOf(weights.Plan({}, json)).at("schema") == "zeroplan.plan/1");
  CHECK(JsonOf(weights.Plan({}, json + "--method all")).at("schema") == "zeroplan.methods/1");
  // Where nothing fits by full tuning and the shape is all there is, adapters are named.
  const Json all =
      JsonOf(shape.Plan({{"--stage", "0"}, {"--checkpointing", "full"}}, json + "--method all"));
  const auto least = [&](size_t i) {
    return all.at("methods")[i].at("least_gpu_bytes").get<int64_t>();
  };
  const auto error_at = [&](int64_t bytes) {
    const RunResult run = RunZeroplan(shape.Plan(
        {{"--stage", "0"}, {"--checkpointing", "full"}, {"--gpu-memory", std::to_string(bytes)}},
        "--quick"));
    CHECK(run.exit_code == 3);
    return run.err;
  };
  CHECK(Has(error_at((least(0) + least(1)) / 2), "\n  LoRA fits (--method lora): stage 0"));
  CHECK(Has(error_at((least(1) + least(2)) / 2), "\n  QLoRA fits (--method qlora): stage 0"));
}

TEST_CASE("methods: a list is read, and what does not go with it is refused at once") {
  const ShapeFolder model;
  const auto names = [&](const std::string& list) {
    std::vector<std::string> found;
    const Json all = JsonOf(model.Plan({}, "--quick --format json --method " + list));
    for (const Json& method : all.at("methods")) {
      found.push_back(method.at("method"));
    }
    return found;
  };
  using Names = std::vector<std::string>;
  CHECK(names("full,lora") == Names{"full", "lora"});
  CHECK(names("qlora,full") == Names{"full", "qlora"});
  CHECK(names("all") == Names{"full", "lora", "qlora"});
  CHECK(JsonOf(model.Plan({}, "--quick --format json --method qlora")).at("schema") ==
        "zeroplan.plan/1");
  const auto refused = [&](const std::string& more, const char* why) {
    const RunResult run = RunZeroplan(model.Plan({}, more));
    INFO(more);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(Has(run.err, why));
  };
  refused("--method full,full", "--method: full,full has full twice; name each once");
  refused("--method full,lor", "--method: lor is not allowed (did you mean lora?)");
  refused("--method dora", "use full, lora, qlora, all");
  for (const char* one : {"--out a.json", "--plan-out a.json", "--trace a.json", "--report a.html",
                          "--largest seq-len", "--objective headroom", "--freeze '*norm*'"}) {
    const std::string option = std::string(one).substr(0, std::string(one).find(' '));
    refused("--method full,lora " + std::string(one),
            (option + ": goes with one method, not with --method full,lora; leave it out").c_str());
  }
  refused("--method all --lora-targets nothing", "nothing is no linear of the model's layers");
  const RunResult estimate = RunZeroplan("estimate --explain gpt2 --method full,lora");
  CHECK(estimate.exit_code == 2);
  CHECK(Has(estimate.err, wording::kFullLoraIsNotAllowed));
}

TEST_CASE("methods: another runtime's are compared by its own memory and time") {
  const std::string question =
      "plan --model llama3.1-8b --gpus 1 --hw 8x-rtx4090 --runtime ddp --code hf --seq-len 2048 "
      "--method full,lora,qlora ";
  const RunResult run = RunZeroplan(question);
  CHECK(run.exit_code == 0);
  CHECK(Has(run.out, wording::kUnderDdpOfPytorchTransformers));
  CHECK(Has(run.out, wording::kFullTuningNothingFits));
  CHECK(Has(run.out, "Answer: QLoRA"));
  const auto all = nlohmann::json::parse(RunZeroplan(question + "--quick --format json").out);
  CHECK(all.at("runtime") == "ddp of PyTorch 2.11");
  CHECK(all.at("recipe").at("code") == "hf");
  CHECK(all.at("methods").at(0).at("fits") == false);
  CHECK(all.at("methods").at(1).at("fits") == true);
  // 4.5 bits a weight of the products in place of 16.
  const auto params = [&](size_t i) {
    return all.at("methods").at(i).at("choice").at("gpu_bytes").at("params").get<double>();
  };
  CHECK(params(2) < 0.5 * params(1));
}

}  // namespace
}  // namespace zeroplan
