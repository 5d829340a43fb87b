// zeroplan generate: text from trained weights.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/common/output.h"
#include "cli/common/parse.h"
#include "cli/executor_commands.h"
#include "core/base/error.h"
#include "executor/data/token_dataset.h"
#include "executor/tokenizer/tokenizer.h"
#include "executor/train/text_generator.h"

namespace zeroplan {
namespace {

struct GenerateCommand {
  std::string model, prompt;
  Option<int64_t> tokens, context;
  Option<double> temperature;
  Option<int> top_k;
  Option<uint64_t> seed;
};

double ParseTemperature(const std::string& text, std::string_view option) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool in_range = value >= 0 && value <= 100;
  if (*end != '\0' || !in_range) {
    ThrowUsage("{}: {} is not allowed; use a number from 0 to 100", option, text);
  }
  return value;
}

// That of the model's folder, if it has one.
std::optional<Tokenizer> FindTokenizer(const std::string& folder, int64_t vocab) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::path(folder) / "tokenizer.json";
  if (!std::filesystem::exists(file, ignored)) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::FromFile(file);
  if (tokenizer.vocab_size() > vocab) {
    ThrowUsage("{}: has {} tokens, the model only {}; it is another model's", file.string(),
               tokenizer.vocab_size(), vocab);
  }
  return tokenizer;
}

void RunGenerate(const GenerateCommand& command) {
  SamplingOptions sampling;
  sampling.temperature = command.temperature.value_or(0.8);
  sampling.top_k = command.top_k.value_or(40);
  sampling.seed = command.seed.value_or(1);
  const int64_t count = command.tokens.value_or(200);
  const int64_t context = command.context.value_or(0);
  TextGenerator generator(command.model, context, 0);
  const bool bytes = generator.model().vocab == kByteTokens;
  const std::optional<Tokenizer> tokenizer =
      bytes ? std::nullopt : FindTokenizer(command.model, generator.model().vocab);
  std::vector<int32_t> tokens;
  if (tokenizer) {
    tokens = tokenizer->Encode(command.prompt, true);
    if (tokens.empty()) {
      ThrowUsage("--prompt: {} puts no token before a text; give at least a word to start from",
                 command.model);
    }
  } else if (bytes) {
    for (const char c : command.prompt) tokens.push_back(static_cast<unsigned char>(c));
  } else if (!command.prompt.empty()) {
    ThrowUsage(
        "--prompt: text needs a byte-level model (vocabulary of 256) or a tokenizer.json in {}, "
        "which has {} tokens and is sampled from its first one",
        command.model, generator.model().vocab);
  }
  WriteOutput("", command.prompt);
  if (tokenizer) {
    TextStream stream(*tokenizer, true);
    // What comes behind the prompt is decoded with it: some decoders treat the start of a text
    // apart.
    for (const int32_t token : tokens) stream.Push(token);
    generator.Generate(tokens, count, sampling,
                       [&](int32_t token) { WriteOutput("", stream.Push(token)); });
    WriteOutput("", stream.Finish());
  } else {
    generator.Generate(tokens, count, sampling, [bytes](int32_t token) {
      WriteOutput("", bytes ? std::string(1, static_cast<char>(token)) : fmt::format("{} ", token));
    });
  }
  WriteOutput("", "\n");
}

}  // namespace

void RegisterGenerate(Command& app) {
  Command command = app.Add(kGenerateCommand.name, kGenerateCommand.help);
  auto options = std::make_shared<GenerateCommand>();
  command.Required("model", "DIR", "Folder with config.json and safetensors weights",
                   options->model);
  command.Text(
      {.group = kNoGroup,
       .name = "--prompt",
       .type = "TEXT",
       .help = "What the text begins with (default: a line feed, or what the tokenizer puts first)",
       .may_be_empty = true},
      options->prompt);
  command.Value({kNoGroup, "--tokens", "COUNT", "Tokens to make (default 200)"}, options->tokens,
                WholeIn<int64_t>(1, 1'000'000));
  command.Value({kNoGroup, "--context", "TOKENS",
                 "Tokens looked back at (default: all the model has positions for)"},
                options->context, WholeIn<int64_t>(1, 1'000'000));
  command.Value({kNoGroup, "--temperature", "NUMBER",
                 "0: always the likeliest token; higher: more varied (default 0.8)"},
                options->temperature, ParseTemperature);
  command.Value({kNoGroup, "--top-k", "COUNT", "Choose among the likeliest so many (default 40)"},
                options->top_k, WholeIn<int>(1, 1'000'000));
  command.Value({kNoGroup, "--seed", "NUMBER", "Of the choice (default 1)"}, options->seed,
                WholeIn<uint64_t>(1, INT64_MAX));
  command.Footer("Example:\n  zeroplan generate out --prompt 'The ' --tokens 300");
  command.Run([options] { RunGenerate(*options); });
}

}  // namespace zeroplan
