// zeroplan generate: conversations through a chat template, stop texts, and the cache's no effect.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/run/train/shared_options.h"
#include "tests/cli/chats.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/cli.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// A trained folder with a tokenizer.
std::string TrainedModel(const Workspace& work) {
  const std::string model = MakeTokenizerModel(work.path("model")), out = work.path("out");
  const RunResult trained =
      RunZeroplan("train --data " + SourcePath("LICENSE") +
                      " --threads 1 --epochs 2 --lr 1e-2 --fresh-weights "
                      "--seq-len 32 --model " +
                      model + " --save " + out,
                  "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + work.path("cache"));
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK(Has(trained.err, "--epochs 2: of "));
  CHECK(Has(trained.err, "perplexity "));
  return out;
}

TEST_CASE("generate: where it runs, and what that refuses before anything is loaded") {
  const Workspace work;
  const std::string model = work.path("model");
  fs::create_directory(model);
  // No weights: what is refused here is refused before they are looked for.
  testing::WriteGpt2Config(model + "/config.json");
  const auto refused = [&](const std::string& options, int code, const std::string& message) {
    const RunResult run = RunZeroplan("generate " + model + " " + options);
    CHECK(run.exit_code == code);
    CHECK(run.out.empty());
    CHECK(Has(run.err, message));
  };
  refused("--gpu-memory 8GB", 2, "--gpu-memory: 8GB has no effect on the CPU backend");
  refused("--backend cpu --gpu-reserve 1GB", 2, "--gpu-reserve: 1GB has no effect on the CPU");
  refused("--dtype int8", 2, "--dtype: 'int8' is not allowed; use bf16, fp16 or fp32");
  refused("--context 5000", 2, "--context: 5000 tokens are more than the model's ");
  refused("--host-reserve 900TB", 3, "host memory short by ");
  refused("--host-reserve 900TB", 3, "use a machine with more memory, or a smaller model");
  if (!BuiltWithCuda()) {
    refused("--backend cuda", 2, "--backend: cuda is not in this build; configure it with ");
  }
}

TEST_CASE("a seed of 0 is one like others, and a top-k of 0 is no limit") {
  const Workspace work;
  const std::string out = work.path("out");
  // So are other options whose help names it.
  const std::string train =
      work.Train("--seed 0 --max-bad-steps 0 --warmup-steps 0 --restarts 0 --save " + out, 3);
  REQUIRE(RunZeroplan(train).exit_code == 0);
  const RunResult resumed =
      RunZeroplan(work.Train("--resume --seed 0 --max-bad-steps 0 --save " + out, 4));
  CHECK_MESSAGE(resumed.exit_code == 0, resumed.err);
  const RunResult other = RunZeroplan(work.Train("--resume --seed 1 --save " + out, 5));
  CHECK(other.exit_code == 2);
  CHECK(Has(other.err, wording::kWasMadeWithSeed));
  const auto text = [&](const std::string& options) {
    const RunResult run =
        RunZeroplan("generate " + out + " --prompt a --max-new-tokens 40 " + options);
    CHECK_MESSAGE(run.exit_code == 0, run.err);
    return run.out;
  };
  CHECK(text("--seed 0 --top-k 0") == text("--seed 0 --top-k 256"));
  CHECK(text("--seed 0") != text("--seed 1"));
}

TEST_CASE("generate: with its cache and without, stop texts, a conversation") {
  const Workspace work;
  const std::string out = TrainedModel(work);
  const std::string greedy = "generate " + out + " --temperature 0 ";
  const RunResult text = RunZeroplan(greedy + "--prompt 'Permission is' --tokens 30");
  CAPTURE(text.err);
  REQUIRE(text.exit_code == 0);
  CHECK(Has(text.err, "planned memory: "));
  CHECK(Has(text.err, wording::kDeviceTheCpuInFp));
  CHECK(RunZeroplan(greedy + "--prompt 'Permission is' --tokens 30 --no-cache").out == text.out);
  const RunResult rounded = RunZeroplan(greedy + "--prompt 'Permission is' --dtype bf16");
  CHECK(rounded.exit_code == 0);
  CHECK(Has(rounded.err, wording::kDeviceTheCpuInBf));
  // Up to the first letter that comes behind the prompt for the second time.
  const std::string made = text.out.substr(std::string("Permission is").size());
  REQUIRE(made.size() > 8);
  const std::string stop = made.substr(4, 3);
  const RunResult stopped =
      RunZeroplan(greedy + "--prompt 'Permission is' --tokens 30 --stop '" + stop + "'");
  CHECK(stopped.out == "Permission is" + made.substr(0, made.find(stop)) + "\n");

  const RunResult none = RunZeroplan(greedy + "--chat --prompt hello");
  CHECK(none.exit_code == 2);
  CHECK(Has(none.err, "--chat: " + out + " has no chat_template.jinja"));
  std::ofstream(out + "/chat_template.jinja")
      << "<|begin_of_text|>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
         "{% if add_generation_prompt %}assistant:{% endif %}";
  const RunResult reply = RunZeroplan(greedy + "--chat --system brief --prompt hello --tokens 6");
  CAPTURE(reply.err);
  CHECK(reply.exit_code == 0);
  // The same prompt by hand, before which the tokenizer puts its first token; a conversation prints
  // the reply alone.
  const RunResult by_hand =
      RunZeroplan(greedy + "--tokens 6 --prompt 'system: brief\nuser: hello\nassistant:'");
  CHECK(by_hand.out == "system: brief\nuser: hello\nassistant:" + reply.out);

  const RunResult system = RunZeroplan(greedy + "--system brief");
  CHECK(system.exit_code == 2);
  CHECK(Has(system.err, wording::kSaysHowConversationBeginsAdd));
  const RunResult share = RunZeroplan(greedy + "--top-p 0");
  CHECK(Has(share.err, wording::kIsNotAllowedUseNumber));
}

TEST_CASE("generate: a model of conversations ends where its turns do") {
  const Chats chats;
  const std::string out = chats.path("out"), short_text = chats.path("short.jsonl");
  std::ofstream file(short_text);
  for (int i = 0; i < 60; ++i) {
    file << R"({"messages": [{"role": "user", "content": "Hi"},)"
         << R"( {"role": "assistant", "content": "Yo"}]})" << '\n';
  }
  file.close();
  const std::string train =
      " --threads 1 --epochs 6 --lr 1e-2 --seq-len 32 --fresh-weights --model " + chats.model +
      " --save ";
  const RunResult trained = chats.Run("train --data " + short_text + train + out);
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK(Has(trained.err, wording::kStopsGenerationConfigJsonOf));
  const Tokenizer tokenizer = Tokenizer::FromFile(out);
  const auto stops = nlohmann::json::parse(std::ifstream(out + "/generation_config.json"));
  CHECK(stops["eos_token_id"] ==
        nlohmann::json{*tokenizer.TokenId("<|endoftext|>"), *tokenizer.TokenId("<|im_end|>")});
  // The reply is over where the turn is, without --chat, too.
  const std::string prompt =
      " --temperature 0 --tokens 30 --prompt '<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\n'";
  const RunResult reply = RunZeroplan("generate " + out + prompt);
  CAPTURE(reply.err);
  CHECK(reply.out.ends_with("assistant\nYo\n"));
  CHECK(Lacks(reply.err, wording::kTokensTheFirst));
  fs::remove(out + "/generation_config.json");
  const RunResult endless = RunZeroplan("generate " + out + prompt);
  CHECK(Has(endless.err, wording::kTokensTheFirst));

  // Data without turns leave the model's own.
  const RunResult plain =
      chats.Run("train --data " + SourcePath("LICENSE") + train + chats.path("plain"));
  CAPTURE(plain.err);
  REQUIRE(plain.exit_code == 0);
  CHECK_FALSE(fs::exists(chats.path("plain/generation_config.json")));
}

}  // namespace
}  // namespace zeroplan
