#include "core/base/words.h"

#include <doctest/doctest.h>

#include <set>

#include "core/settings/packing.h"
#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"

namespace zeroplan {
namespace {

// Each word is there once and stands for its value, and each value's first word reads back as it.
template <typename T, size_t kCount>
void CheckTable(const WordTable<T, kCount>& table) {
  std::set<std::string_view> words;
  for (const Word<T>& entry : table) {
    CAPTURE(entry.word);
    CHECK(words.insert(entry.word).second);
    CHECK(ValueIn(table, entry.word) == entry.value);
    CHECK(ValueIn(table, WordFor(table, entry.value)) == entry.value);
  }
  CHECK_FALSE(ValueIn(table, "no such word"));
}

TEST_CASE("words: tables read back what they name") {
  CheckTable(kWords<OffloadDevice>);
  CheckTable(kWords<RecomputeKind>);
  CheckTable(kWords<MasterWeights>);
  CheckTable(kWords<Fp8Recipe>);
  CheckTable(kWords<DecayShape>);
  CheckTable(kWords<Packing>);
  CheckTable(kAcrossWords);
  CheckTable(kMomentWords);
  CheckTable(kMatmulWords);
  CheckTable(kAboveWords);
  CheckTable(kFp8GradientWords);
}

TEST_CASE("words: a dtype names master weights in its own run alone") {
  CHECK(ParseMasterWeights("bf16", Dtype::kBF16) == MasterWeights::kParam);
  CHECK_FALSE(ParseMasterWeights("bf16", Dtype::kF16));
  CHECK_FALSE(ParseMasterWeights("fp16", Dtype::kF32));
  CHECK(ParseMasterWeights("16bit", Dtype::kF16) == MasterWeights::kParam);
  CHECK(ParseMasterWeights("split", Dtype::kBF16) == MasterWeights::kSplit);
}

TEST_CASE("words: lists for messages and help") {
  CHECK(AnyOf(WordsOf(kWords<Fp8Recipe>)) == "tensor|blocks");
  CHECK(AnyOf(WordsOf(kWords<MasterWeights>, 3)) == "fp32|split|16bit");
  CHECK(QuotedChoice({"a"}) == "\"a\"");
  CHECK(QuotedChoice(WordsOf(kWords<OffloadDevice>)) == R"("none", "cpu" or "nvme")");
}

}  // namespace
}  // namespace zeroplan
