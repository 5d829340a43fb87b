#include "reader/data_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "text/documents/token_cache.h"
#include "text/files/data_files.h"
#include "text/files/token_dataset.h"
#include "text/sequences/batch_sampler.h"
#include "text/sequences/data_facts.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Ids are held against the vocabulary up to so many bytes, as train does with more of them.
constexpr uint64_t kVocabLookBytes = uint64_t{1} << 30;

class DatasetCount : public DataCount {
 public:
  DatasetCount(TokenDataset data, bool truncate) : data_(std::move(data)), truncate_(truncate) {}

  bool has_mask() const override { return data_.has_mask(); }
  uint64_t longest() const override {
    uint64_t longest = 0;
    data_.ForEachDocument(0, data_.size(), [&](uint64_t begin, uint64_t end) {
      longest = std::max(longest, end - begin);
    });
    return longest;
  }

  DataFacts As(const SequencesAsked& asked) const override {
    SamplerOptions options;
    options.seq_len = asked.seq_len;
    // However ranks and micro-steps cut a step, it takes the same samples.
    options.micro_batch = asked.global_batch;
    options.packing = asked.packing;
    // As SamplerOptionsOf of a run has them.
    options.cut_long = !data_.has_mask() && !truncate_;
    if (!asked.fixed_rows) return OfAnotherProgram(asked, options);
    return FactsOf(data_, BatchSampler(data_, options));
  }

 private:
  // transformers' Trainer and TRL: a document of n tokens is a row of n, and its last one is no
  // target of its own row; what is longer is cut off.
  DataFacts OfAnotherProgram(const SequencesAsked& asked, SamplerOptions options) const {
    options.validation_fraction = 0;
    options.cut_long = false;
    const bool padded = asked.packing != Packing::kStream;
    if (padded) options.seq_len = std::max<int64_t>(asked.seq_len - 1, 1);
    DataFacts facts = FactsOf(data_, BatchSampler(data_, options));
    facts.fixed_rows = false;
    facts.seq_len = asked.seq_len;
    if (!padded) return facts;
    facts.trained_documents = facts.epoch.sequences = facts.lengths.documents();
    facts.single = 0;
    facts.packed = facts.padded = std::nullopt;  // rows are as long as a micro-batch's longest
    return facts;
  }

  TokenDataset data_;
  bool truncate_;
};

// train would take its bytes as tokens.
void RefuseWithoutTokenizer(const std::vector<fs::path>& files, const std::string& folder,
                            int64_t vocab) {
  std::error_code ignored;
  if (vocab == kByteTokens || fs::exists(fs::path(folder) / "tokenizer.json", ignored)) return;
  for (const fs::path& file : files) {
    if (FileKindOf(file) == FileKind::kTokens) continue;
    ThrowUsage(
        "⟦data⟧: {}: is text, and {}, so that nobody knows its tokens; name a folder with the "
        "model's tokenizer by ⟦tokenizer⟧ DIR (or by ⟦model⟧ DIR), or make tokens of it with "
        "'zeroplan data tokenize'",
        file.string(),
        folder.empty() ? "the model is no folder with a tokenizer.json"
                       : fmt::format("there is no tokenizer.json in {}", folder));
  }
}

}  // namespace

TextChoices ChoicesOf(const RecordFields& fields) {
  TextChoices choices;
  if (!fields.text_field.empty()) choices.names.emplace_back("text", fields.text_field);
  for (const std::string_view one : Split(fields.map, ',')) {
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == one.size()) {
      ThrowUsage("⟦map⟧: {} is no member=name; write it as prompt=question,completion=answer", one);
    }
    if (!fields.text_field.empty()) {
      ThrowUsage("⟦map⟧: ⟦text_field⟧ is given too; use one of both");
    }
    choices.names.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  CheckRecordNames(choices.names);
  choices.train_on_all = fields.train_on == TrainOn::kAll;
  choices.special_tokens = !fields.no_special_tokens;
  choices.skip_bad = static_cast<uint64_t>(fields.skip_bad.value_or(0));
  return choices;
}

std::shared_ptr<const DataCount> CountData(const DataFields& fields, const std::string& folder,
                                           int64_t vocab, bool says) {
  std::error_code ignored;
  DataRequest request;
  request.data = fields.paths;
  request.model_folder = folder;
  if (fs::is_regular_file(folder, ignored)) {
    if (request.model_folder.filename() != "tokenizer.json") {
      ThrowUsage("⟦tokenizer⟧: {} is no tokenizer.json; name that file, or the folder with it",
                 folder);
    }
    // A name without a folder has none.
    request.model_folder = fs::absolute(request.model_folder).parent_path();
  }
  request.vocab = vocab;
  request.says = says;
  request.cache_folder = CacheFolder();
  request.choices = ChoicesOf(fields.records);
  CheckRecordChoices(request.choices, fields.paths);
  RefuseWithoutTokenizer(DataFiles(fields.paths), request.model_folder.string(), vocab);
  const LongWork work("Reading the data", /*at_once=*/true);
  TokenDataset data = TokenDataset::Open(DataForModel(request));
  data.SetVocab(vocab);
  data.CheckVocab(0, 1, kVocabLookBytes);
  return CountOf(std::move(data), fields.truncate);
}

std::shared_ptr<const DataCount> CountOf(TokenDataset data, bool truncate) {
  return std::make_shared<DatasetCount>(std::move(data), truncate);
}

}  // namespace zeroplan
