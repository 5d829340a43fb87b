// zeroplan generate: text from trained weights.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/run/generate/placement.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/train/text_generator.h"
#include "planner/request/parse.h"
#include "text/documents/chat_template.h"
#include "text/documents/tokenize_files.h"
#include "text/files/token_dataset.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

constexpr int64_t kTokens = 200;
// Tokens of a conversation on a terminal, as far as the model has positions.
constexpr int64_t kConversation = 4096;

struct GenerateCommand {
  std::string model, adapter, prompt, system;
  std::string tokenizer;  // the folder that has it
  Given<int64_t> tokens, context;
  Given<double> temperature, top_p;
  Given<int> top_k;
  Given<uint64_t> seed;
  std::vector<std::string> stop;
  bool no_cache = false, chat = false;
  PlacementOptions placement;
};

const auto ParseTopP =
    NumberWhere([](double x) { return x > 0 && x <= 1; }, "a number above 0, up to 1");
const auto ParseTemperature =
    NumberWhere([](double x) { return x >= 0 && x <= 100; }, "a number from 0 to 100");

// That of the model's folder, if it has one.
std::optional<Tokenizer> FindTokenizer(const std::string& folder, int64_t vocab) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::path(folder) / "tokenizer.json";
  if (!std::filesystem::exists(file, ignored)) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::FromFile(file);
  if (tokenizer.file_vocab_size() > vocab) {
    ThrowUsage("{}: has {} tokens, the model only {}; it is another model's", file.string(),
               tokenizer.file_vocab_size(), vocab);
  }
  return tokenizer;
}

// Throws for a token that files beside the tokenizer add, and the model does not have.
void CheckPrompt(const GenerateCommand& command, const Tokenizer& tokenizer,
                 const std::vector<int32_t>& tokens, int64_t vocab) {
  const auto added =
      std::find_if(tokens.begin(), tokens.end(), [&](int32_t token) { return token >= vocab; });
  if (added == tokens.end()) return;
  ThrowUsage(
      "--prompt: has {} (token {}), which the tokenizer in {} adds, and the model, with {} tokens, "
      "does not have; leave it out",
      tokenizer.TokenText(*added).value_or(""), *added, command.model, vocab);
}

// At which the text is over.
std::vector<int32_t> StopTokens(const GenerateCommand& command,
                                const std::optional<Tokenizer>& tokenizer, int64_t vocab) {
  // An adapter that was trained on conversations says where its texts end.
  std::vector<int32_t> tokens;
  if (!command.adapter.empty()) tokens = StopTokensOf(command.adapter, vocab);
  if (tokens.empty()) tokens = StopTokensOf(command.model, vocab);
  // It was trained with what its own tokenizer ends a text by, whatever the base says.
  const bool own = command.tokenizer != command.model;
  if ((!tokens.empty() && !own) || !tokenizer) return tokens;
  const std::optional<int32_t> end = EndOfText(command.tokenizer, *tokenizer);
  if (end && std::find(tokens.begin(), tokens.end(), *end) == tokens.end()) tokens.push_back(*end);
  return tokens;
}

// With the weights loaded, and `needed` tokens looked back at where --context does not say.
std::unique_ptr<TextGenerator> MakeGenerator(const GenerateCommand& command, const Placement& place,
                                             const ModelSpec& model, int64_t needed) {
  if (command.context && *command.context > model.positions) {
    ThrowUsage("--context: {} tokens are more than the model's {} positions; use at most these",
               *command.context, model.positions);
  }
  GeneratorOptions options = GeneratorAt(
      place, command.context.value_or(DefaultContext(place, model, needed)), !command.no_cache);
  options.adapter = command.adapter;
  Program program = LowerGenerator(model, options);
  CheckGeneratorFits(program, options, place);
  LogInfo("device: {}, in {}", place.device, DtypeName(place.dtype));
  const LongWork work("Loading the model", /*at_once=*/true);
  auto generator = std::make_unique<TextGenerator>(command.model, std::move(program), options);
  const auto bytes = [&](Space space) {
    return generator->program().arena_bytes[static_cast<size_t>(space)];
  };
  const uint64_t on_gpu = place.backend == Backend::kCuda ? bytes(Space::kDevice) : 0;
  LogInfo("planned memory: {}{}, of which {} for the keys and values of {} tokens{}",
          FormatBytes(on_gpu > 0 ? on_gpu : generator->planned_bytes()),
          on_gpu > 0 ? " of the GPU" : "", FormatBytes(generator->key_value_bytes()),
          generator->context(),
          on_gpu > 0
              ? fmt::format("; {} of the host", FormatBytes(generator->planned_bytes() - on_gpu))
              : "");
  return generator;
}

SamplingOptions SamplingOf(const GenerateCommand& command) {
  SamplingOptions sampling;
  sampling.temperature = command.temperature.value_or(sampling.temperature);
  sampling.top_k = command.top_k.value_or(sampling.top_k);
  sampling.top_p = command.top_p.value_or(sampling.top_p);
  sampling.seed = command.seed.value_or(sampling.seed);
  return sampling;
}

// Writes text behind `tokens` to `out` as it is made, and ends it; returns it.
std::string WriteText(const GenerateCommand& command, TextGenerator& generator,
                      const std::optional<Tokenizer>& tokenizer,
                      const std::vector<int32_t>& stop_tokens, std::vector<int32_t>& tokens,
                      TextFlow& out) {
  const bool bytes = generator.model().vocab == kByteTokens;
  StopText until(command.stop);
  std::optional<TextStream> stream;
  if (tokenizer) {
    stream.emplace(*tokenizer, true);
    // What comes behind the prompt is decoded with it: some decoders treat the start of a text
    // apart.
    for (const int32_t token : tokens) stream->Push(token);
  }
  std::string all;
  const auto write = [&](const std::string& text) {
    all += text;
    out.Push(text);
  };
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Clock::time_point first, last;
  int64_t made = 0;
  generator.Generate(tokens, command.tokens.value_or(kTokens), SamplingOf(command), stop_tokens,
                     [&](int32_t token) {
                       last = Clock::now();
                       if (made++ == 0) first = last;
                       write(until.Push(stream  ? stream->Push(token)
                                        : bytes ? std::string(1, static_cast<char>(token))
                                                : fmt::format("{} ", token)));
                       return !until.found();
                     });
  if (stream && !until.found()) write(until.Push(stream->Finish()));
  write(until.Finish());
  out.Finish();
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  const bool conversation = command.chat && command.prompt.empty();
  if (made > 1 && last > first && !conversation) {
    LogInfo("{} tokens: the first after {:.2f} s, then {:.1f} a second", made,
            seconds(first - begin), static_cast<double>(made - 1) / seconds(last - first));
  }
  return all;
}

std::vector<int32_t> PromptTokens(const GenerateCommand& command, const ModelSpec& model,
                                  const std::optional<Tokenizer>& tokenizer) {
  if (tokenizer) {
    std::vector<int32_t> tokens = tokenizer->Encode(command.prompt, true);
    if (tokens.empty()) {
      ThrowUsage("--prompt: {} puts no token before a text; give at least a word to start from",
                 command.model);
    }
    CheckPrompt(command, *tokenizer, tokens, model.vocab);
    return tokens;
  }
  if (model.vocab != kByteTokens && !command.prompt.empty()) {
    ThrowUsage(
        "--prompt: text needs a byte-level model (vocabulary of 256) or a tokenizer.json in {}, "
        "which has {} tokens and is sampled from its first one",
        command.model, model.vocab);
  }
  std::vector<int32_t> tokens;
  for (const char c : command.prompt) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

void ContinueText(const GenerateCommand& command, const Placement& place, const ModelSpec& model,
                  const std::optional<Tokenizer>& tokenizer) {
  std::vector<int32_t> tokens = PromptTokens(command, model, tokenizer);
  const std::vector<int32_t> stop_tokens = StopTokens(command, tokenizer, model.vocab);
  const auto length = static_cast<int64_t>(std::max<size_t>(tokens.size(), 1));
  const int64_t needed = length + command.tokens.value_or(kTokens);
  const std::unique_ptr<TextGenerator> generator = MakeGenerator(command, place, model, needed);
  if (length > generator->context()) {
    LogWarning("--prompt: {} tokens, of which the last {} are looked at", length,
               generator->context());
  }
  TextFlow out;
  out.Push(command.prompt);
  WriteText(command, *generator, tokenizer, stop_tokens, tokens, out);
}

// The model's template, with today's date where it prints one, as transformers has it.
ChatTemplate FindTemplate(const GenerateCommand& command,
                          const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer) {
    ThrowUsage("--chat: {} has no tokenizer.json; leave the option out", command.model);
  }
  std::optional<ChatTemplate> found = ChatTemplate::FromFolder(command.tokenizer, *tokenizer);
  if (!found) {
    ThrowUsage(
        "--chat: {} has no chat_template.jinja, and its tokenizer_config.json no chat_template; "
        "write the prompt as the model was trained to read it, with --prompt alone",
        command.model);
  }
  if (found->prints_date()) {
    const std::chrono::year_month_day today(
        std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
    found->SetDate(static_cast<int>(today.year()),
                   static_cast<int>(static_cast<unsigned>(today.month())),
                   static_cast<int>(static_cast<unsigned>(today.day())));
  }
  return *std::move(found);
}

// A message of the user; false at the end of what is typed.
bool ReadMessage(std::string& line) {
  if (isatty(STDIN_FILENO) != 0) WriteStderr("> ");
  while (std::getline(std::cin, line)) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) return true;
  }
  return false;
}

// The reply to --prompt, or to each line of stdin, with what was said before.
void Talk(const GenerateCommand& command, const Placement& place, const ModelSpec& model,
          const std::optional<Tokenizer>& tokenizer) {
  const ChatTemplate chat = FindTemplate(command, tokenizer);
  std::vector<int32_t> stop_tokens = StopTokens(command, tokenizer, model.vocab);
  if (const auto end = chat.end_of_turn_id()) stop_tokens.push_back(*end);
  Conversation talk;
  std::vector<ChatMessage>& messages = talk.messages;
  if (!command.system.empty()) messages.push_back({"system", command.system, {}});
  std::unique_ptr<TextGenerator> generator;
  std::string line = command.prompt;
  while (!command.prompt.empty() || ReadMessage(line)) {
    messages.push_back({"user", line, {}});
    std::vector<int32_t> tokens = tokenizer->Encode(chat.Render(talk, true, "--chat").text, false);
    CheckPrompt(command, *tokenizer, tokens, model.vocab);
    const auto length = static_cast<int64_t>(tokens.size());
    if (!generator) {
      const int64_t needed =
          command.prompt.empty() ? kConversation : length + command.tokens.value_or(kTokens);
      generator = MakeGenerator(command, place, model, needed);
    }
    if (length >= generator->context()) {
      ThrowUsage("--chat: the conversation has {} tokens, and {} are looked at; {}", length,
                 generator->context(),
                 generator->context() < model.positions ? "use a larger --context"
                                                        : "the model has no more positions");
    }
    TextFlow out;
    const std::string reply = WriteText(command, *generator, tokenizer, stop_tokens, tokens, out);
    if (!command.prompt.empty()) return;
    messages.push_back({"assistant", reply, {}});
  }
}

// A folder of an adapter alone stands for the model that it names, with it.
GenerateCommand WithBase(GenerateCommand command) {
  namespace fs = std::filesystem;
  const fs::path folder = command.model;
  std::error_code ignored;
  if (command.adapter.empty() && fs::exists(folder / kAdapterConfigFile, ignored)) {
    if (HoldsWeights(folder)) RefuseUnaskedAdapter(folder, command.adapter);
    command.adapter = command.model;
    command.model = BaseFolder(folder, "");
    LogInfo("model: {}, with the adapter in {}", command.model, command.adapter);
  }
  command.tokenizer = TokenizerFolder(command.model, command.adapter).string();
  return command;
}

void RunGenerate(const GenerateCommand& given) {
  const GenerateCommand command = WithBase(given);
  if (std::error_code ignored; !std::filesystem::is_directory(command.model, ignored)) {
    ThrowUsage(
        "{}: there is no such folder; name one with config.json and safetensors weights, such as "
        "'zeroplan train --save' writes",
        command.model);
  }
  const ModelSpec model = GeneratedModel(command.model, command.adapter);
  const bool bytes = model.vocab == kByteTokens;
  const std::optional<Tokenizer> tokenizer =
      bytes && !command.chat ? std::nullopt : FindTokenizer(command.tokenizer, model.vocab);
  if (!command.stop.empty() && !bytes && !tokenizer) {
    ThrowUsage("--stop: {} makes no text without a tokenizer.json; leave the option out",
               command.model);
  }
  if (!command.system.empty() && !command.chat) {
    ThrowUsage("--system: says how a conversation begins; add --chat, or leave it out");
  }
  const Placement place = ResolvePlacement(command.placement, model);
  command.chat ? Talk(command, place, model, tokenizer)
               : ContinueText(command, place, model, tokenizer);
}

}  // namespace

void RegisterGenerate(Command& app) {
  Command command = app.Add(kGenerateCommand.name, kGenerateCommand.help);
  auto options = std::make_shared<GenerateCommand>();
  command.Required("model", "DIR",
                   "Folder with config.json and safetensors weights, or with an adapter (LoRA) "
                   "whose model is here",
                   options->model);
  command.Text({kNoGroup, "--adapter", "DIR", "A LoRA adapter of the model, to generate with"},
               options->adapter);
  command.Text(
      {.group = kNoGroup,
       .name = "--prompt",
       .type = "TEXT",
       .help = "What the text begins with (default: a line feed, or what the tokenizer puts first)",
       .may_be_empty = true},
      options->prompt);
  command.Flag(kNoGroup, "--chat",
               "Take --prompt as a user's message in the model's chat template, and print the "
               "reply; without --prompt each line of stdin is a message of one conversation",
               options->chat);
  command.Text({kNoGroup, "--system", "TEXT",
                "With --chat: the system's message, which comes "
                "first"},
               options->system);
  command.Value({kNoGroup, "--max-new-tokens", "COUNT", "Tokens to make (default 200)"},
                options->tokens, WholeIn<int64_t>(1, 1'000'000));
  command.Value(
      {kNoGroup, "--context", "TOKENS",
       "Tokens that are looked back at; memory is planned for their keys and values (default: "
       "what prompt and text come to, as far as the model has positions)"},
      options->context, WholeIn<int64_t>(1, 1'000'000));
  command.Value({kNoGroup, "--temperature", "NUMBER",
                 "0: always the likeliest token; higher: more varied (default 0.8)"},
                options->temperature, ParseTemperature);
  command.Value({kNoGroup, "--top-k", "COUNT",
                 "Choose among this many of the likeliest tokens; 0: among all (default 40)"},
                options->top_k, WholeIn<int>(0, 1'000'000));
  command.Value({kNoGroup, "--top-p", "SHARE",
                 "Of those, choose among the fewest that together have this probability (default "
                 "1)"},
                options->top_p, ParseTopP);
  command.List({kNoGroup, "--stop", "TEXT",
                "End before this text. Without it too the text ends where the model ends it: at "
                "eos_token_id of generation_config.json or config.json, or else the tokenizer's "
                "eos_token"},
               /*required=*/false, 0, options->stop);
  command.Flag(kNoGroup, "--no-cache",
               "Compute all tokens again for each new one, rather than keep their keys and values",
               options->no_cache);
  command.Value({kNoGroup, "--seed", "NUMBER", "Seed of the choice of tokens (default 1)"},
                options->seed, WholeIn<uint64_t>(0, INT64_MAX));
  AddPlacementOptions(command, options->placement);
  command.Progress(kNoGroup);
  command.Footer(
      "Examples:\n  zeroplan generate out --prompt 'The ' --tokens 300\n  zeroplan generate out "
      "--chat "
      "--system 'Answer briefly.'");
  command.Run([options] { RunGenerate(*options); });
}

}  // namespace zeroplan
