#include "text/sequences/data_facts.h"

#include <map>
#include <utility>
#include <vector>

namespace zeroplan {
namespace {

// Most documents are short: their lengths are counted in an array.
constexpr uint64_t kShort = uint64_t{1} << 16;

DocumentLengths LengthsOf(const TokenDataset& data) {
  std::vector<uint64_t> of_short(kShort);
  std::map<uint64_t, uint64_t> of_long;
  data.ForEachDocument(0, data.size(), [&](uint64_t begin, uint64_t end) {
    const uint64_t length = end - begin;
    ++(length < kShort ? of_short[length] : of_long[length]);
  });
  std::vector<std::pair<uint64_t, uint64_t>> lengths;
  for (uint64_t length = 0; length < kShort; ++length) {
    if (of_short[length] > 0) lengths.emplace_back(length, of_short[length]);
  }
  lengths.insert(lengths.end(), of_long.begin(), of_long.end());
  return DocumentLengths(std::move(lengths));
}

EpochRows RowsOf(const PackedSequences& sequences) { return {sequences.size(), sequences.pairs()}; }

}  // namespace

DataFacts FactsOf(const TokenDataset& data, const BatchSampler& sampler) {
  const SamplerOptions& options = sampler.options();
  const auto length = static_cast<uint64_t>(options.seq_len);
  DataFacts facts;
  facts.lengths = LengthsOf(data);
  if (data.has_mask()) facts.counted = data.counted();
  facts.seq_len = options.seq_len;
  facts.packing = options.packing;
  if (options.packing == Packing::kStream) {
    facts.epoch = {sampler.train_samples(), sampler.train_samples() * length};
    facts.held_back = sampler.validation_samples();
    return facts;
  }
  const PackedSequences& train = sampler.train_sequences();
  const PackedSequences& validation = sampler.validation_sequences();
  const Packing other =
      options.packing == Packing::kDocuments ? Packing::kOff : Packing::kDocuments;
  const uint64_t border = sampler.train_tokens() > 0 ? sampler.train_tokens() : data.size();
  const EpochRows others =
      RowsOf(PackedSequences(data, 0, border, {options.seq_len, other, options.cut_long}));
  facts.epoch = RowsOf(train);
  facts.packed = options.packing == Packing::kDocuments ? facts.epoch : others;
  facts.padded = options.packing == Packing::kOff ? facts.epoch : others;
  facts.trained_documents = train.documents();
  facts.held_back = validation.documents();
  facts.longer = train.cut() + validation.cut();
  facts.left_out = train.left_out() + validation.left_out();
  facts.unheard = train.unheard() + validation.unheard();
  facts.single = train.too_short() + validation.too_short();
  return facts;
}

}  // namespace zeroplan
