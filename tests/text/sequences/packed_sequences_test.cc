// Documents in sequences, against what must hold of any packing, checked one by one.
#include "text/sequences/packed_sequences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "text/files/token_file.h"
#include "text/sequences/batch_sampler.h"
#include "text/sequences/data_facts.h"

namespace zeroplan {
namespace {

// Files of documents of the given lengths, over `files` files. Token k of the stream is k, and
// those whose number is a multiple of `uncounted_every` do not count (0: all do).
class Documents {
 public:
  explicit Documents(const std::vector<int>& lengths, int files = 1, int uncounted_every = 0,
                     int32_t counted_from = 0) {
    int32_t token = 0;
    for (int f = 0; f < files; ++f) {
      const std::string path = folder_.path() + "/part" + std::to_string(f) + ".bin";
      const TokenFileOrigin origin = {{}, 1 << 30};
      TokenFileWriter writer(path, nullptr, origin);
      for (size_t d = lengths.size() * f / files; d < lengths.size() * (f + 1) / files; ++d) {
        std::vector<int32_t> tokens;
        std::vector<uint8_t> counted;
        for (int i = 0; i < lengths[d]; ++i, ++token) {
          tokens.push_back(token);
          counted.push_back(token >= counted_from &&
                            (uncounted_every == 0 || token % uncounted_every != 0));
        }
        begins.push_back(token - lengths[d]);
        ends.push_back(token);
        writer.Append(tokens, counted);
        writer.EndDocument();
      }
      writer.Finish();
      paths_.push_back(path);
    }
  }
  TokenDataset Open() const { return TokenDataset::Open(paths_); }
  // The document that a token is of.
  size_t Of(int32_t token) const {
    return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), token) - ends.begin());
  }

  std::vector<int32_t> begins, ends;

 private:
  TempDir folder_;
  std::vector<std::string> paths_;
};

std::vector<int> RandomLengths(std::mt19937& random, int count, int longest) {
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) {
    // Short ones mostly, as conversations are.
    const double share = static_cast<double>(random() >> 8) / (1 << 24);
    lengths.push_back(1 + static_cast<int>(share * share * longest));
  }
  return lengths;
}

struct PackedBatch {
  std::vector<int32_t> inputs, targets, starts;
  bool operator==(const PackedBatch&) const = default;
};

// A global batch as the samples' rows in the order of their positions.
PackedBatch GlobalBatch(const BatchSampler& sampler, uint64_t consumed) {
  const SamplerOptions& o = sampler.options();
  PackedBatch all;
  for (int64_t m = 0; m < o.grad_accum; ++m) {
    for (int r = 0; r < o.world_size; ++r) {
      std::vector<int32_t> part[3];
      for (auto& table : part) table.resize(static_cast<size_t>(o.micro_batch * o.seq_len));
      for (const int t : {0, 1})
        part[t].resize(part[t].size() / static_cast<size_t>(o.sequence_ranks));
      sampler.FillTrain(consumed, r, m, part[0], part[1], part[2]);
      all.inputs.insert(all.inputs.end(), part[0].begin(), part[0].end());
      all.targets.insert(all.targets.end(), part[1].begin(), part[1].end());
      // Each rank that shares rows has where all of their documents start.
      if (r % o.sequence_ranks != 0) {
        REQUIRE(std::equal(part[2].rbegin(), part[2].rend(), all.starts.rbegin()));
        continue;
      }
      all.starts.insert(all.starts.end(), part[2].begin(), part[2].end());
    }
  }
  return all;
}

// A row is documents one behind the other, then padding; returns its pairs of input and target,
// those that do not count too.
std::vector<std::pair<int32_t, int32_t>> CheckRow(const Documents& documents,
                                                  const PackedBatch& row, int uncounted_every) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const size_t T = row.inputs.size();
  size_t t = 0;
  while (t < T) {
    const auto start = static_cast<size_t>(row.starts[t]);
    REQUIRE(start == t);
    size_t end = t;
    while (end < T && row.starts[end] == row.starts[t]) ++end;
    const bool padding = std::all_of(row.inputs.begin() + static_cast<ptrdiff_t>(t),
                                     row.inputs.end(), [](int32_t input) { return input == 0; }) &&
                         row.targets[t] == -1;
    if (padding) {
      for (size_t i = t; i < T; ++i) REQUIRE(row.targets[i] == -1);
      return pairs;
    }
    for (size_t i = t; i < end; ++i) {
      const int32_t input = row.inputs[i];
      REQUIRE(input == row.inputs[t] + static_cast<int32_t>(i - t));
      const bool counts = uncounted_every == 0 || (input + 1) % uncounted_every != 0;
      REQUIRE(row.targets[i] == (counts ? input + 1 : -1));
      REQUIRE(documents.Of(input) == documents.Of(input + 1));
      pairs.emplace_back(input, input + 1);
    }
    t = end;
  }
  return pairs;
}

TEST_CASE("packing: every pair of a document once an epoch, in rows that cross no border") {
  std::mt19937 random(11);
  for (const Packing packing : {Packing::kDocuments, Packing::kOff}) {
    for (const int longest : {6, 40, 300}) {
      for (const bool cut_long : {true, false}) {
        for (const int uncounted_every : {0, 3}) {
          CAPTURE(PackingName(packing));
          CAPTURE(longest);
          CAPTURE(cut_long);
          CAPTURE(uncounted_every);
          const Documents documents(RandomLengths(random, 120, longest), 3, uncounted_every);
          const TokenDataset data = documents.Open();
          CHECK(data.documents() == 120);
          CHECK(data.has_mask() == (uncounted_every > 0));
          SamplerOptions options = {.seq_len = 32, .micro_batch = 1};
          options.packing = packing;
          options.cut_long = cut_long;
          options.validation_fraction = 0;
          const BatchSampler sampler(data, options);
          std::set<int32_t> inputs;
          size_t padded = 0;
          for (uint64_t k = 0; k < sampler.train_samples(); ++k) {
            const PackedBatch row = GlobalBatch(sampler, k);
            const auto pairs = CheckRow(documents, row, uncounted_every);
            CHECK_FALSE(pairs.empty());
            padded += row.inputs.size() - pairs.size();
            for (const auto& [input, target] : pairs) REQUIRE(inputs.insert(input).second);
          }
          std::set<int32_t> want;
          uint64_t left_out = 0, alone = 0;
          for (size_t d = 0; d < documents.begins.size(); ++d) {
            const int32_t first = documents.begins[d], last = documents.ends[d] - 1;
            alone += first == last;
            for (int32_t i = first; i < last; ++i) {
              if (!cut_long && i - first >= 32) {
                ++left_out;
              } else {
                want.insert(i);
              }
            }
          }
          CHECK(inputs == want);
          const PackedSequences& sequences = sampler.train_sequences();
          CHECK(sequences.left_out() == left_out);
          CHECK(sequences.too_short() == alone);
          CHECK(sequences.documents() == 120 - alone);
          CHECK(sequences.pairs() == want.size());
          CHECK(padded == sampler.train_samples() * 32 - want.size());
          if (packing == Packing::kDocuments) {
            // No two sequences have room for one another, as best fit has it.
            std::vector<uint64_t> filled;
            for (uint64_t k = 0; k < sequences.size(); ++k) {
              uint64_t pairs = 0;
              for (const auto& piece : sequences.at(k)) pairs += piece.pairs;
              filled.push_back(pairs);
            }
            std::sort(filled.begin(), filled.end());
            if (filled.size() > 1) CHECK(filled[0] + filled[1] > 32);
          }
        }
      }
    }
  }
}

// What kernels are told of all batches: as many documents in a row and as long ones as there are.
TEST_CASE("packing: the most documents of a row, and the longest, padding counted") {
  std::mt19937 random(17);
  for (const int longest : {6, 40, 300}) {
    CAPTURE(longest);
    const Documents documents(RandomLengths(random, 150, longest), 2);
    const TokenDataset data = documents.Open();
    SamplerOptions options = {.seq_len = 64, .micro_batch = 1, .packing = Packing::kDocuments};
    options.validation_fraction = 0.2;
    const BatchSampler sampler(data, options);
    REQUIRE(sampler.validation_samples() > 0);
    DocumentLimits found;
    const auto look = [&](std::span<const int32_t> starts) {
      std::vector<int64_t> lengths;
      for (size_t t = 0; t < starts.size(); ++t) {
        if (starts[t] == static_cast<int32_t>(t)) lengths.push_back(0);
        ++lengths.back();
      }
      found = DocumentLimits::Either(
          found, {static_cast<int64_t>(lengths.size()), *std::ranges::max_element(lengths)});
    };
    for (uint64_t k = 0; k < sampler.train_samples(); ++k) look(GlobalBatch(sampler, k).starts);
    std::vector<int32_t> inputs(64), targets(64), starts(64);
    for (int64_t b = 0; b < sampler.validation_batches(); ++b) {
      sampler.FillValidation(b, 0, inputs, targets, starts);
      look(starts);
    }
    const DocumentLimits limits = sampler.document_limits();
    CHECK(found.longest == limits.longest);
    CHECK(found.most_in_row <= limits.most_in_row);
    CHECK(limits.most_in_row <= found.most_in_row + 1);  // of a row past the last whole batch
    // A batch that stands in for one that cannot be read keeps to them too.
    FillWithAnything(inputs, targets, starts, 64, limits);
    look(starts);
    CHECK(found.longest <= limits.longest);
    CHECK(found.most_in_row <= limits.most_in_row);
  }
}

// Best fit decreasing by its definition: over all sequences, one piece at a time.
TEST_CASE("packing: best fit decreasing, sequence by sequence") {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    const Documents documents(RandomLengths(random, 200, 90));
    const TokenDataset data = documents.Open();
    constexpr uint64_t kT = 77;
    const PackedSequences packed(data, 0, data.size(), {kT, Packing::kDocuments, true});
    std::vector<uint64_t> lengths;
    for (size_t d = 0; d < documents.begins.size(); ++d) {
      for (auto left = static_cast<uint64_t>(documents.ends[d] - documents.begins[d] - 1);
           left > 0;) {
        lengths.push_back(std::min(left, kT));
        left -= lengths.back();
      }
    }
    std::sort(lengths.rbegin(), lengths.rend());
    std::vector<uint64_t> filled;
    for (const uint64_t length : lengths) {
      uint64_t* best = nullptr;
      for (uint64_t& sequence : filled) {
        if (sequence + length <= kT && (best == nullptr || sequence > *best)) best = &sequence;
      }
      if (best == nullptr) best = &filled.emplace_back(0);
      *best += length;
    }
    std::vector<uint64_t> got;
    int64_t first_before = -1;
    for (uint64_t k = 0; k < packed.size(); ++k) {
      uint64_t& sum = got.emplace_back(0);
      for (const auto& piece : packed.at(k)) sum += piece.pairs;
      CHECK(static_cast<int64_t>(packed.at(k).front().begin) > first_before);
      first_before = static_cast<int64_t>(packed.at(k).front().begin);
    }
    std::sort(filled.begin(), filled.end());
    std::sort(got.begin(), got.end());
    CHECK(got == filled);
  }
}

TEST_CASE("packing: a global batch is the same however it is cut, and resumes anywhere") {
  std::mt19937 random(3);
  const Documents documents(RandomLengths(random, 300, 60), 2, 4);
  const TokenDataset data = documents.Open();
  for (const Packing packing : {Packing::kStream, Packing::kDocuments, Packing::kOff}) {
    CAPTURE(PackingName(packing));
    SamplerOptions options = {.seq_len = 48, .micro_batch = 8};
    options.packing = packing;
    const BatchSampler whole(data, options);
    // Past two epochs.
    const uint64_t end = 2 * whole.train_samples() + 24;
    std::vector<PackedBatch> batches;
    for (uint64_t consumed = 0; consumed < end; consumed += 8) {
      batches.push_back(GlobalBatch(whole, consumed));
    }
    for (const auto& [micro_batch, grad_accum, ranks, shared] :
         std::vector<std::array<int, 4>>{{1, 8, 1, 1},
                                         {2, 2, 2, 1},
                                         {1, 2, 4, 1},
                                         {1, 1, 8, 1},
                                         {1, 4, 4, 2},
                                         {1, 2, 12, 3},
                                         {1, 8, 8, 8}}) {
      SamplerOptions other = options;
      other.micro_batch = micro_batch;
      other.grad_accum = grad_accum;
      other.world_size = ranks;
      other.sequence_ranks = shared;
      const BatchSampler cut(data, other);  // as one that resumes makes it
      for (size_t i = batches.size(); i-- > 0;) {
        REQUIRE(GlobalBatch(cut, i * 8) == batches[i]);
      }
    }
    options.seed = 2;
    CHECK_FALSE(GlobalBatch(BatchSampler(data, options), 0) == batches[0]);
    // An epoch's order is another than that of the one before.
    CHECK(whole.SampleAt(0) != whole.SampleAt(whole.train_samples()));
  }
}

TEST_CASE("packing: whole documents are held back, and stay so") {
  std::mt19937 random(9);
  const Documents documents(RandomLengths(random, 400, 50));
  const TokenDataset data = documents.Open();
  for (const Packing packing : {Packing::kDocuments, Packing::kOff}) {
    CAPTURE(PackingName(packing));
    SamplerOptions options = {.seq_len = 40, .micro_batch = 4};
    options.packing = packing;
    const BatchSampler sampler(data, options);
    REQUIRE(sampler.validation_samples() >= 4);
    CHECK(sampler.validation_samples() % 4 == 0);
    const uint64_t border = sampler.train_tokens();
    CHECK(std::binary_search(documents.begins.begin(), documents.begins.end(),
                             static_cast<int32_t>(border)));
    const double share =
        static_cast<double>(data.size() - border) / static_cast<double>(data.size());
    CHECK(share > 0.04);
    CHECK(share < 0.08);
    std::vector<int32_t> inputs(160), targets(160), starts(160);
    for (int64_t b = 0; b < sampler.validation_batches(); ++b) {
      sampler.FillValidation(b, 0, inputs, targets, starts);
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (targets[i] >= 0) REQUIRE(inputs[i] >= static_cast<int32_t>(border));
      }
    }
    for (uint64_t k = 0; k < sampler.train_samples(); k += 4) {
      const PackedBatch batch = GlobalBatch(sampler, k);
      for (const int32_t input : batch.inputs) REQUIRE(input < static_cast<int32_t>(border));
    }
    SamplerOptions resumed = options;
    resumed.train_tokens = border;
    resumed.micro_batch = 7;
    resumed.seq_len = 25;
    const BatchSampler later(data, resumed);
    CHECK(later.train_tokens() == border);
    // Nothing was held back: nothing is from here on.
    resumed.train_tokens = data.size();
    CHECK(BatchSampler(data, resumed).validation_samples() == 0);
    options.shuffle = false;
    const BatchSampler in_order(data, options);
    CHECK(in_order.validation_samples() == 0);
    CHECK(in_order.SampleAt(3) == 3);
    size_t first = 0;
    while (documents.ends[first] - documents.begins[first] < 2) ++first;
    CHECK(GlobalBatch(in_order, 0).inputs[0] == documents.begins[first]);
  }
}

TEST_CASE("a stream's targets that do not count are none, whatever documents there are") {
  const Documents documents({5, 9, 30, 20}, 2, 3);
  const TokenDataset data = documents.Open();
  SamplerOptions options = {.seq_len = 16, .micro_batch = 1};
  options.shuffle = false;
  const BatchSampler sampler(data, options);
  CHECK(sampler.train_samples() == 3);
  for (uint64_t k = 0; k < 3; ++k) {
    const PackedBatch row = GlobalBatch(sampler, k);
    for (size_t i = 0; i < 16; ++i) {
      const auto token = static_cast<int32_t>(16 * k + i);
      CHECK(row.inputs[i] == token);
      CHECK(row.targets[i] == ((token + 1) % 3 == 0 ? -1 : token + 1));
      CHECK(row.starts[i] == 0);
    }
  }
}

TEST_CASE("data of which nothing can be learnt is refused") {
  const Documents alone({1, 1, 1});
  SamplerOptions options = {.seq_len = 16, .micro_batch = 1};
  options.packing = Packing::kDocuments;
  const auto error = [&](const Documents& documents) {
    return ErrorOf(ExitCode::kUsage, [&] {
      const TokenDataset data = documents.Open();
      BatchSampler(data, options);
    });
  };
  CHECK(error(alone).find("none of its 3 documents has two tokens") != std::string::npos);
  const Documents masked({4, 4}, 1, 1);
  for (const Packing packing : {Packing::kStream, Packing::kOff}) {
    options.packing = packing;
    options.seq_len = 4;
    CHECK(error(masked).find("by its loss mask none of its 8 tokens counts") != std::string::npos);
  }
}

TEST_CASE("what documents became is said") {
  const Documents documents({1, 5, 41, 9});
  const TokenDataset data = documents.Open();
  SamplerOptions options = {.seq_len = 16, .micro_batch = 1};
  options.packing = Packing::kDocuments;
  options.shuffle = false;
  const auto text = [&](const TokenDataset& of) {
    return DataText(FactsOf(of, BatchSampler(of, options)));
  };
  const std::string facts =
      "4 documents, 56 tokens. Tokens of a document: 1 to 41, median 5, mean 14; 95 % have at most "
      "41, 99 % at most 41. ";
  CHECK(text(data) ==
        facts +
            "⟦packing⟧ documents: 3 documents in 4 sequences of 16 an epoch, 18.8 % of their "
            "positions padding; one a sequence (⟦packing⟧ off) they would be 5 sequences, 35.0 % "
            "padding: 1.25 times the steps; documents longer than a sequence: 1, cut into pieces "
            "that do not see each other; documents of a single token, left out: 1.");
  options.packing = Packing::kOff;
  options.cut_long = false;
  CHECK(text(data) ==
        facts +
            "⟦packing⟧ off: 3 documents in 3 sequences of 16 an epoch, 41.7 % of their positions "
            "padding; with ⟦packing⟧ documents they would be 2 sequences, 12.5 % padding: 0.6667 "
            "times the steps; documents longer than a sequence: 1, whose last 24 tokens are left "
            "out; documents of a single token, left out: 1.");
  options.packing = Packing::kStream;
  CHECK(text(data) ==
        facts + "As one stream they are 3 sequences of 16 an epoch, without padding.");

  // Tokens count from the given one on: of 20 kept pairs the first document's answer is behind.
  const Documents talks({30, 30, 8}, 1, 0, 24);
  options.packing = Packing::kOff;
  options.seq_len = 20;
  const std::string said = text(talks.Open());
  CHECK(Has(said, "68 tokens, of which 44 count in the loss."));
  CHECK(Has(said,
            "⟦packing⟧ off: 3 documents in 3 sequences of 20 an epoch, 21.7 % of their positions "
            "padding; documents longer than a sequence: 2, whose last 18 tokens are left out; of "
            "these cut off before anything counts in the loss: 1 (a longer ⟦seq_len⟧ keeps more)"));
  options.seq_len = 24;
  CHECK(Lacks(text(talks.Open()), "before anything"));
}

TEST_CASE("documents and their mask are part of what data is") {
  const auto digest = [](const Documents& documents) { return documents.Open().Digest(); };
  const std::string plain = digest(Documents({4, 8, 4}));
  CHECK(digest(Documents({4, 8, 4})) == plain);
  CHECK(digest(Documents({4, 4, 8})) != plain);
  CHECK(digest(Documents({4, 8, 4}, 1, 2)) != plain);
  CHECK(digest(Documents({4, 8, 4}, 1, 3)) != digest(Documents({4, 8, 4}, 1, 2)));
}

}  // namespace
}  // namespace zeroplan
