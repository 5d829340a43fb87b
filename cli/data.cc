// zeroplan data tokenize: text to a file of tokens.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/app.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "executor/data/token_file.h"

namespace zeroplan {
namespace {

struct TokenizeOptions {
  std::vector<std::string> texts;
  std::string output;
};

}  // namespace

void RegisterData(CLI::App& app) {
  CLI::App* command = app.add_subcommand("data", "Training data");
  command->require_subcommand(1);
  CLI::App* tokenize = command->add_subcommand(
      "tokenize", "Turns text into byte-level tokens (256 of them), in llm.c's file format");
  tokenize->footer("Example:\n  zeroplan data tokenize book.txt essays/ -o corpus.bin");
  auto options = std::make_shared<TokenizeOptions>();
  tokenize->add_option("texts", options->texts, "Text files, or folders of them, in this order")
      ->type_name("TEXT")
      ->required();
  tokenize->add_option("-o,--output", options->output, "Token file to write; ends in .bin")
      ->type_name("FILE.bin")
      ->required();
  tokenize->callback([options] {
    const uint64_t tokens = TokenizeText(options->texts, options->output);
    WriteOutput("", fmt::format("{}: {} tokens\n", options->output, tokens));
  });
}

}  // namespace zeroplan
