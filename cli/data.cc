// zeroplan data: text to files of tokens, and a look at them.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/log.h"
#include "core/base/stop_signals.h"
#include "core/base/units.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "reader/data_reader.h"
#include "text/documents/token_cache.h"
#include "text/documents/token_text.h"
#include "text/files/data_files.h"
#include "text/files/token_file.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

std::string_view MagicOf(const TokenFileKind& kind) {
  return {reinterpret_cast<const char*>(&kind.magic), sizeof kind.magic};
}

// By its header's magic number.
const OutputKind kTokensOut = {"a token file (.bin, with a header)",
                               {MagicOf(kTokenFiles16), MagicOf(kTokenFiles32)}};

struct TokenizeCommand {
  std::vector<std::string> texts;
  std::string output, tokenizer, end_of_text;
  RecordFields records;
  Given<int> threads;
};

struct ShowCommand {
  std::string file, tokenizer;
  Given<int64_t> from, count;
  bool mask = false;
};

int32_t EndToken(const TokenizeCommand& options, const Tokenizer& tokenizer) {
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

void RunTokenize(const TokenizeCommand& command) {
  const InterruptScope interrupts;
  if (command.tokenizer.empty()) {
    if (!command.end_of_text.empty()) {
      ThrowUsage("--end-of-text: bytes have no such token; give --tokenizer too");
    }
    const RecordFields& records = command.records;
    const char* unused = !records.map.empty()          ? "--map"
                         : !records.text_field.empty() ? "--text-field"
                         : records.train_on            ? "--train-on"
                         : records.skip_bad            ? "--skip-bad"
                         : records.no_special_tokens   ? "--no-special-tokens"
                                                       : nullptr;
    if (unused != nullptr) {
      ThrowUsage("{}: files are taken byte by byte, not as records; give --tokenizer too", unused);
    }
    if (command.threads) {
      ThrowUsage("--threads: bytes are copied, not encoded; give --tokenizer too");
    }
    const DataSelection selection = SelectData(command.texts);
    for (const std::string& note : selection.notes) LogInfo("{}.", note);
    for (const std::filesystem::path& file : selection.files) RefuseAsBytes(file);
    const auto first = std::find_if(selection.files.begin(), selection.files.end(), HoldsRecords);
    if (first != selection.files.end()) {
      ThrowUsage(
          "{}: bytes are tokens without --tokenizer, so its records would be taken as they stand, "
          "names and braces too; add --tokenizer DIR, or give plain text",
          first->string());
    }
    const uint64_t tokens = TokenizeText(command.texts, command.output);
    WriteReport("", fmt::format("{}: {} tokens\n", command.output, tokens));
    return;
  }
  const Tokenizer tokenizer = Tokenizer::FromFile(command.tokenizer);
  if (!command.end_of_text.empty()) EndToken(command, tokenizer);  // a wrong one is refused first
  TokenizeOptions options;
  options.model = command.tokenizer;
  options.end_of_text = [&] { return EndToken(command, tokenizer); };
  options.choices = ChoicesOf(command.records);
  CheckRecordChoices(options.choices, command.texts);
  options.threads = command.threads.value_or(0);
  const DataSelection selection = SelectData(command.texts);
  for (const std::string& note : selection.notes) LogInfo("{}.", note);
  const TokenizedFiles done = TokenizeFiles(tokenizer, selection.files, options, command.output);
  if (std::any_of(selection.files.begin(), selection.files.end(), HoldsRecords)) {
    LogInfo("The first document, what counts in the loss in [[ ]]:\n{}",
            FirstDocument(tokenizer, command.output));
  }
  WriteReport("",
              fmt::format("{}: {}, {:.2f} bytes of input a token\n", command.output, Summary(done),
                          static_cast<double>(done.bytes) / static_cast<double>(done.tokens)));
}

void AddTokenize(Command& group) {
  Command tokenize = group.Add(
      "tokenize", "Turns text into tokens, in llm.c's file format: bytes, or a model's own");
  tokenize.Footer(
      "Examples:\n  zeroplan data tokenize book.txt essays/ -o corpus.bin\n"
      "  zeroplan data tokenize essays/ --tokenizer models/smollm2 -o corpus.bin\n"
      "  zeroplan data tokenize chats.jsonl.gz --tokenizer models/smollm2 -o chats.bin");
  auto options = std::make_shared<TokenizeCommand>();
  tokenize.Required(
      "texts", "PATH",
      "Text files, or folders of them, in this order; with --tokenizer also records in .jsonl, "
      ".jsonlines, .ndjson, .json, .csv and .tsv files: texts, prompts and completions, "
      "conversations, "
      "instructions; all of these as .gz or .zst; .parquet and .arrow tables; folders that "
      "Hugging Face's datasets saved",
      options->texts, {PathRole::Use::kReadBelow});
  tokenize.Required("-o,--out", "FILE.bin", "Token file to write; ends in .bin", options->output,
                    nullptr, PathRole::Writes(kTokensOut));
  tokenize.Text(
      {kNoGroup, "--tokenizer", "DIR|FILE",
       "Model folder with tokenizer.json, or that file: its tokens, each text ending with "
       "the end-of-text token, conversations in the folder's chat template (default: byte-level "
       "tokens, 256 of them)"},
      options->tokenizer);
  tokenize.Text(
      {kNoGroup, "--end-of-text", "TOKEN",
       "Token behind each text that is no conversation (default: eos_token of the folder's "
       "tokenizer_config.json)"},
      options->end_of_text);
  AddRecordFields(tokenize, kNoGroup, options->records);
  tokenize.Value(
      {kNoGroup, "--threads", "COUNT", "Documents encoded at once (default: processors)"},
      options->threads, WholeIn<int>(1, 1024));
  tokenize.Progress(kNoGroup);
  tokenize.Run([options] { RunTokenize(*options); });
}

void AddShow(Command& group) {
  Command show = group.Add("show", "Prints the text of a token file, documents apart");
  show.Footer("Example:\n  zeroplan data show corpus.bin --tokenizer models/smollm2 --count 100");
  auto options = std::make_shared<ShowCommand>();
  show.Required("file", "FILE", "Token file", options->file);
  show.Required(
      "--tokenizer", "DIR|FILE",
      "Model folder with tokenizer.json, or that file; another than the file was made with "
      "is refused",
      options->tokenizer);
  show.Value({kNoGroup, "--from", "TOKEN", "First token to show (default 0)"}, options->from,
             WholeIn<int64_t>(0, INT64_MAX));
  show.Value({kNoGroup, "--count", "COUNT", "Tokens to show (default 1000)"}, options->count,
             WholeIn<int64_t>(1, 1'000'000'000));
  show.Flag(kNoGroup, "--mask", "Put what counts in the loss between [[ and ]]", options->mask);
  show.Run([options] {
    const Tokenizer tokenizer = Tokenizer::FromFile(options->tokenizer);
    ShowOptions what;
    what.begin = static_cast<uint64_t>(options->from.value_or(0));
    what.count = static_cast<uint64_t>(options->count.value_or(1000));
    what.mask = options->mask;
    TextFlow out;
    out.Push(TokensAsText(tokenizer, options->file, what));
    out.Finish();
  });
}

void AddCache(Command& group) {
  struct CacheCommand {
    bool clear = false;
  };
  Command cache = group.Add("cache", "Says what tokens of earlier runs are kept, and removes them");
  cache.Footer(
      "train keeps the tokens of text and records, so that they are made once. What was not used "
      "for longest goes when all take more than ZEROPLAN_CACHE_LIMIT (default 100GB).\n\n"
      "Example:\n  zeroplan data cache --clear");
  auto options = std::make_shared<CacheCommand>();
  cache.Flag(kNoGroup, "--clear", "Remove all that no run is reading", options->clear);
  cache.Run([options] {
    const std::string folder = CacheFolder();
    if (folder.empty()) {
      ThrowUsage("data cache: nothing is kept, as neither ZEROPLAN_CACHE_DIR nor HOME is set");
    }
    const uint64_t removed = options->clear ? TrimCachedTokens(folder, 0) : 0;
    uint64_t bytes = 0;
    const std::vector<CachedTokens> files = ListCachedTokens(folder);
    for (const CachedTokens& file : files) bytes += file.bytes;
    std::string text =
        fmt::format("{}/tokens: {} file{}, {} of at most {}\n", folder, files.size(),
                    files.size() == 1 ? "" : "s", FormatBytes(bytes), FormatBytes(CacheLimit()));
    if (options->clear) text += fmt::format("removed: {}\n", FormatBytes(removed));
    WriteReport("", text);
  });
}

}  // namespace

DataReader ReaderOfData() {
  return ReadingOnce([](const DataFields& fields, const std::string& folder, int64_t vocab) {
    const InterruptScope interrupts;
    return CountData(fields, folder, vocab, /*says=*/true);
  });
}

void RegisterData(Command& app) {
  Command group = app.AddGroup(kDataCommand.name, kDataCommand.help);
  AddTokenize(group);
  AddShow(group);
  AddCache(group);
}

}  // namespace zeroplan
