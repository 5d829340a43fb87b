// zeroplan data tokenize: text to a file of tokens.
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/common/output.h"
#include "cli/executor_commands.h"
#include "core/base/error.h"
#include "executor/data/token_file.h"

namespace zeroplan {
namespace {

struct TokenizeOptions {
  std::vector<std::string> texts;
  std::string output;
};

}  // namespace

void RegisterData(Command& app) {
  Command group = app.AddGroup(kDataCommand.name, kDataCommand.help);
  Command tokenize = group.Add(
      "tokenize", "Turns text into byte-level tokens (256 of them), in llm.c's file format");
  tokenize.Footer("Example:\n  zeroplan data tokenize book.txt essays/ -o corpus.bin");
  auto options = std::make_shared<TokenizeOptions>();
  tokenize.Required("texts", "TEXT", "Text files, or folders of them, in this order",
                    options->texts);
  tokenize.Required("-o,--output", "FILE.bin", "Token file to write; ends in .bin",
                    options->output);
  tokenize.Run([options] {
    const uint64_t tokens = TokenizeText(options->texts, options->output);
    WriteOutput("", fmt::format("{}: {} tokens\n", options->output, tokens));
  });
}

}  // namespace zeroplan
