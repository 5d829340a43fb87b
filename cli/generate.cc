// zeroplan generate: text from trained weights.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/app.h"
#include "cli/common/parse.h"
#include "core/base/error.h"
#include "executor/train/text_generator.h"

namespace zeroplan {
namespace {

struct GenerateCommand {
  std::string model, prompt, tokens = "200", context, temperature = "0.8", top_k = "40", seed = "1";
};

void RunGenerate(const GenerateCommand& command) {
  SamplingOptions sampling;
  char* end = nullptr;
  sampling.temperature = std::strtod(command.temperature.c_str(), &end);
  const bool in_range = sampling.temperature >= 0 && sampling.temperature <= 100;
  if (command.temperature.empty() || *end != '\0' || !in_range) {
    ThrowUsage("--temperature: {} is not allowed; use a number from 0 to 100", command.temperature);
  }
  sampling.top_k = static_cast<int>(ParseWhole(command.top_k, "--top-k", 1, 1'000'000));
  sampling.seed = static_cast<uint64_t>(ParseWhole(command.seed, "--seed", 1, INT64_MAX));
  const int64_t count = ParseWhole(command.tokens, "--tokens", 1, 1'000'000);
  const int64_t context =
      ParseOptionalWhole(command.context, "--context", 1, 1'000'000).value_or(0);
  TextGenerator generator(command.model, context, 0);
  const bool bytes = generator.model().vocab == 256;
  if (!bytes && !command.prompt.empty()) {
    ThrowUsage(
        "--prompt: text needs a byte-level model (vocabulary of 256); {} has {} tokens and is "
        "sampled from its first one",
        command.model, generator.model().vocab);
  }
  std::vector<int32_t> tokens;
  for (const char c : command.prompt) tokens.push_back(static_cast<unsigned char>(c));
  std::fputs(command.prompt.c_str(), stdout);
  generator.Generate(tokens, count, sampling, [bytes](int32_t token) {
    if (bytes) {
      std::fputc(token, stdout);
    } else {
      fmt::print("{} ", token);
    }
    std::fflush(stdout);
  });
  std::fputc('\n', stdout);
}

}  // namespace

void RegisterGenerate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Text from a model that train saved");
  auto options = std::make_shared<GenerateCommand>();
  command->add_option("model", options->model, "Folder with config.json and model.safetensors")
      ->type_name("DIR")
      ->required();
  auto add = [&](const char* name, std::string& value, const char* type, const char* help) {
    command->add_option(name, value, help)->type_name(type);
  };
  add("--prompt", options->prompt, "TEXT",
      "What the text begins with (byte-level models; default: a line feed)");
  add("--tokens", options->tokens, "COUNT", "Tokens to make (default 200)");
  add("--context", options->context, "TOKENS",
      "Tokens looked back at (default: all the model has positions for)");
  add("--temperature", options->temperature, "NUMBER",
      "0: always the likeliest token; higher: more varied (default 0.8)");
  add("--top-k", options->top_k, "COUNT", "Choose among the likeliest so many (default 40)");
  add("--seed", options->seed, "NUMBER", "Of the choice (default 1)");
  command->footer("Example:\n  zeroplan generate out --prompt 'The ' --tokens 300");
  command->callback([options] { RunGenerate(*options); });
}

}  // namespace zeroplan
