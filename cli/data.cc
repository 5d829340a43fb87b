// zeroplan data: text to files of tokens, and a look at them.
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/common/output.h"
#include "cli/common/parse.h"
#include "cli/executor_commands.h"
#include "core/base/error.h"
#include "executor/data/token_file.h"
#include "executor/tokenizer/tokenize_files.h"
#include "executor/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

struct TokenizeOptions {
  std::vector<std::string> texts;
  std::string output, tokenizer, end_of_text;
  Option<int> threads;
};

struct ShowOptions {
  std::string file, tokenizer;
  Option<int64_t> from, count;
};

int32_t EndToken(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  if (options.end_of_text.empty()) {
    if (const std::optional<int32_t> id = EndOfText(options.tokenizer, tokenizer)) return *id;
    ThrowUsage(
        "--end-of-text: beside {} there is no tokenizer_config.json that names an eos_token; give "
        "the token that ends a text, such as --end-of-text '<|endoftext|>'",
        options.tokenizer);
  }
  const std::optional<int32_t> id = tokenizer.TokenId(options.end_of_text);
  if (!id) {
    ThrowUsage("--end-of-text: {} is no token of {}; name one that is", options.end_of_text,
               options.tokenizer);
  }
  return *id;
}

void RunTokenize(const TokenizeOptions& options) {
  if (options.tokenizer.empty()) {
    if (!options.end_of_text.empty()) {
      ThrowUsage("--end-of-text: bytes have no such token; give --tokenizer too");
    }
    if (options.threads) {
      ThrowUsage("--threads: bytes are copied, not encoded; give --tokenizer too");
    }
    const uint64_t tokens = TokenizeText(options.texts, options.output);
    WriteOutput("", fmt::format("{}: {} tokens\n", options.output, tokens));
    return;
  }
  const Tokenizer tokenizer = Tokenizer::FromFile(options.tokenizer);
  const TokenizedFiles done = TokenizeFiles(tokenizer, options.texts, EndToken(options, tokenizer),
                                            options.output, options.threads.value_or(0));
  WriteOutput("",
              fmt::format("{}: {} tokens of {} bits, {} documents, {:.2f} bytes of text a token\n",
                          options.output, done.tokens, 8 * done.token_bytes, done.documents,
                          static_cast<double>(done.bytes) / static_cast<double>(done.tokens)));
}

void AddTokenize(Command& group) {
  Command tokenize = group.Add(
      "tokenize", "Turns text into tokens, in llm.c's file format: bytes, or a model's own");
  tokenize.Footer(
      "Examples:\n  zeroplan data tokenize book.txt essays/ -o corpus.bin\n"
      "  zeroplan data tokenize essays/ --tokenizer models/smollm2 -o corpus.bin");
  auto options = std::make_shared<TokenizeOptions>();
  tokenize.Required("texts", "TEXT", "Text files, or folders of them, in this order",
                    options->texts);
  tokenize.Required("-o,--output", "FILE.bin", "Token file to write; ends in .bin",
                    options->output);
  tokenize.Text(
      {kNoGroup, "--tokenizer", "DIR",
       "Model folder with tokenizer.json, or that file: its tokens, each file ending with "
       "the end-of-text token (default: byte-level tokens, 256 of them)"},
      options->tokenizer);
  tokenize.Text(
      {kNoGroup, "--end-of-text", "TOKEN",
       "Token behind each file (default: eos_token of the folder's tokenizer_config.json)"},
      options->end_of_text);
  tokenize.Value({kNoGroup, "--threads", "COUNT", "Files encoded at once (default: processors)"},
                 options->threads, WholeIn<int>(1, 1024));
  tokenize.Run([options] { RunTokenize(*options); });
}

void AddShow(Command& group) {
  Command show = group.Add("show", "Prints the text of a token file");
  show.Footer("Example:\n  zeroplan data show corpus.bin --tokenizer models/smollm2 --count 100");
  auto options = std::make_shared<ShowOptions>();
  show.Required("file", "FILE", "Token file", options->file);
  show.Required(
      "--tokenizer", "DIR",
      "Model folder with tokenizer.json, or that file; another than the file was made with "
      "is refused",
      options->tokenizer);
  show.Value({kNoGroup, "--from", "TOKEN", "First token to show (default 0)"}, options->from,
             WholeIn<int64_t>(0, INT64_MAX));
  show.Value({kNoGroup, "--count", "COUNT", "Tokens to show (default 1000)"}, options->count,
             WholeIn<int64_t>(1, 1'000'000'000));
  show.Run([options] {
    const Tokenizer tokenizer = Tokenizer::FromFile(options->tokenizer);
    WriteOutput(
        "", TokensAsText(tokenizer, options->file, static_cast<uint64_t>(options->from.value_or(0)),
                         static_cast<uint64_t>(options->count.value_or(1000))) +
                "\n");
  });
}

}  // namespace

void RegisterData(Command& app) {
  Command group = app.AddGroup(kDataCommand.name, kDataCommand.help);
  AddTokenize(group);
  AddShow(group);
}

}  // namespace zeroplan
