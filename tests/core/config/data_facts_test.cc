// Lengths of documents against what counting them one by one gives.
#include "core/config/data_facts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/has.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

DocumentLengths LengthsOf(const std::vector<uint64_t>& documents) {
  std::map<uint64_t, uint64_t> counts;
  for (const uint64_t length : documents) ++counts[length];
  return DocumentLengths({counts.begin(), counts.end()});
}

// The mean of the longest of `count`, over all ways to choose them.
double MeanLongest(const std::vector<uint64_t>& documents, size_t count, uint64_t most) {
  std::vector<bool> chosen(documents.size());
  std::fill_n(chosen.begin(), count, true);
  double sum = 0, ways = 0;
  do {
    uint64_t longest = 0;
    for (size_t i = 0; i < documents.size(); ++i) {
      if (chosen[i]) longest = std::max(longest, std::min(documents[i], most));
    }
    sum += static_cast<double>(longest);
    ++ways;
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
  return sum / ways;
}

TEST_CASE("lengths of documents: shares, what is longer, the longest of a micro-batch") {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<uint64_t> documents;
    for (uint32_t i = 0; i < 1 + random() % 9; ++i) documents.push_back(1 + random() % 12);
    std::sort(documents.begin(), documents.end());
    const DocumentLengths lengths = LengthsOf(documents);
    uint64_t tokens = 0;
    for (const uint64_t length : documents) tokens += length;
    CHECK(lengths.documents() == documents.size());
    CHECK(lengths.tokens() == tokens);
    CHECK(lengths.AtShare(0) == documents.front());
    CHECK(lengths.AtShare(1) == documents.back());
    for (const double share : {0.3, 0.5, 0.95}) {
      const uint64_t at = lengths.AtShare(share);
      const auto within = [&](uint64_t most) {
        return static_cast<double>(std::count_if(documents.begin(), documents.end(),
                                                 [&](uint64_t n) { return n <= most; }));
      };
      CHECK(within(at) >= share * static_cast<double>(documents.size()) - 1e-9);
      CHECK(within(at - 1) < share * static_cast<double>(documents.size()));
    }
    for (const uint64_t most : {2u, 5u, 20u}) {
      uint64_t longer = 0, beyond = 0;
      for (const uint64_t length : documents) {
        longer += length > most;
        beyond += length > most ? length - most : 0;
      }
      CHECK(lengths.Longer(most) == longer);
      CHECK(lengths.TokensBeyond(most) == beyond);
      CHECK(lengths.MeanUpTo(most) == doctest::Approx(static_cast<double>(tokens - beyond) /
                                                      static_cast<double>(documents.size())));
      for (size_t count = 1; count <= documents.size(); ++count) {
        CHECK(lengths.MeanLongestOf(count, most) ==
              doctest::Approx(MeanLongest(documents, count, most)));
      }
      CHECK(lengths.MeanLongestOf(1000, most) ==
            doctest::Approx(static_cast<double>(std::min(documents.back(), most))));
    }
  }
}

TEST_CASE("a sequence length is proposed: the least that cuts one document in a hundred") {
  std::mt19937 random(5);
  for (const bool fixed_rows : {true, false}) {
    for (int round = 0; round < 30; ++round) {
      std::vector<uint64_t> documents;
      for (uint32_t i = 0; i < 1 + random() % 400; ++i) {
        documents.push_back(1 + random() % 300 + (random() % 50 == 0 ? random() % 5000 : 0));
      }
      const DocumentLengths lengths = LengthsOf(documents);
      // Of a program's row of T the document's last token is no input.
      const auto cut = [&](int64_t seq_len) {
        const auto fits = static_cast<uint64_t>(seq_len) + (fixed_rows ? 1 : 0);
        return static_cast<double>(std::count_if(documents.begin(), documents.end(),
                                                 [&](uint64_t n) { return n > fits; })) /
               static_cast<double>(documents.size());
      };
      int64_t least = kSeqLenStep;
      while (cut(least) > kMostCut) least += kSeqLenStep;
      const SeqLenProposal proposal = ProposeSeqLen(lengths, fixed_rows);
      CHECK(proposal.seq_len == least);
      CHECK(proposal.cut_documents == doctest::Approx(cut(least)));
      CHECK(CutsOf(lengths, fixed_rows, 128).cut_documents == doctest::Approx(cut(128)));
    }
  }
}

TEST_CASE("lengths of documents: those of a range") {
  const DocumentLengths lengths = LengthsOf({3, 5, 5, 8, 20});
  CHECK(lengths.Between(4, 8) == std::pair<uint64_t, uint64_t>(3, 18));
  CHECK(lengths.Between(5, 8) == std::pair<uint64_t, uint64_t>(1, 8));
  CHECK(lengths.Between(0, 20) == std::pair<uint64_t, uint64_t>(5, 41));
  CHECK(lengths.Between(8, 8) == std::pair<uint64_t, uint64_t>(0, 0));
  CHECK(lengths.Longer(5) == 2);
}

TEST_CASE("tokens of a micro-batch: of one length, or padded to the longest document") {
  DataFacts facts;
  facts.lengths = LengthsOf({3, 5, 5, 8, 20});
  facts.seq_len = 10;
  facts.packing = Packing::kOff;
  facts.epoch = {5, 30};
  MicroBatchTokens tokens = MicroBatchOf(facts, 2);
  CHECK(tokens.planned == 20);
  CHECK(tokens.largest == 20);
  CHECK(tokens.mean == 20);
  CHECK(tokens.padding == doctest::Approx(0.4));
  facts.fixed_rows = false;
  tokens = MicroBatchOf(facts, 2);
  CHECK(tokens.planned == 20);
  CHECK(tokens.largest == 20);  // the longest is cut off there
  // Of ten pairs one has 5 at most, 2 with the shortest too, three 8 and four the long one.
  CHECK(tokens.mean == doctest::Approx(2 * (3 * 5 + 3 * 8 + 4 * 10) / 10.0));
  CHECK(tokens.padding == doctest::Approx(1 - 31 / 5.0 / (tokens.mean / 2)));
  facts.seq_len = 30;
  CHECK(MicroBatchOf(facts, 2).largest == 40);
  CHECK(MicroBatchOf(facts, 2).planned == 60);
  facts.packing = Packing::kStream;  // joined and cut, by any program
  CHECK(MicroBatchOf(facts, 2).mean == 60);
}

TEST_CASE("keys that a token sees in packed rows: as counted position by position") {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<uint64_t> documents;
    for (uint32_t i = 0; i < 2 + random() % 20; ++i) documents.push_back(1 + random() % 70);
    documents.push_back(2);
    for (const bool in_pieces : {false, true}) {
      const uint64_t most = 8 + random() % 60;
      double positions = 0, keys = 0;
      for (const uint64_t length : documents) {
        for (uint64_t at = 0; at + 1 < length; ++at) {
          if (!in_pieces && at >= most) break;
          ++positions;
          keys += static_cast<double>(at % most + 1);
        }
      }
      const DocumentLengths::Keys found = LengthsOf(documents).KeysOf(most, in_pieces);
      CHECK(found.positions == positions);
      CHECK(found.keys == keys);
    }
  }
  DataFacts facts;
  facts.packing = Packing::kDocuments;
  facts.seq_len = 64;
  CHECK(MeanVisibleKeys(facts) == 0);  // nothing is known
  // A document a row: half of the row, and itself.
  facts.lengths = LengthsOf({65, 65});
  facts.epoch = {2, 128};
  CHECK(MeanVisibleKeys(facts) == 32.5);
  // 4 of 12 positions a row and 16 of padding, in documents of at most 12.
  facts.lengths = LengthsOf(std::vector<uint64_t>(8, 13));
  facts.epoch = {2, 96};
  CHECK(MeanVisibleKeys(facts) == doctest::Approx(6.5));
  // 48 positions and 16 of padding, as one document.
  facts.lengths = LengthsOf({49, 49});
  CHECK(MeanVisibleKeys(facts) == doctest::Approx((48 * 24.5 + 16 * 8.5) / 64));
}

TEST_CASE("an epoch in words") {
  DataFacts facts;
  facts.epoch = {96, 96 * 64};
  CHECK(EpochText(facts, 8, 36) ==
        "An epoch is 96 sequences, 8 a step: 12 steps. 36 steps are 3 epochs.");
  CHECK(EpochText(facts, 64, 1) ==
        "An epoch is 96 sequences, 64 a step: 1.5 steps. 1 step is 0.6667 epochs.");
  CHECK(EpochText(facts, 96, 1) ==
        "An epoch is 96 sequences, 96 a step: 1 step. 1 step is 1 epoch.");
  facts.packing = Packing::kOff;
  facts.trained_documents = facts.held_back = 1;
  facts.epoch = {1, 64};
  facts.seq_len = 64;
  CHECK(Has(DataText(facts), wording::kOffDocumentInSequenceOf));
  CHECK(Has(DataText(facts), wording::kDocumentIsHeldBackFor));
  CHECK(SequencesOfEpochs(3, 96) == 288);
  CHECK(SequencesOfEpochs(0.7, 10) == 7);  // not 8 by its rounding
  CHECK(SequencesOfEpochs(1.01, 96) == 97);
}

}  // namespace
}  // namespace zeroplan
