// Code styles: rows of data, as they were counted from the modules themselves.
#include "planner/runtimes/torch_code.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/paths.h"

namespace zeroplan {
namespace {

CodeStyle StyleNamed(const std::string& name) {
  const std::optional<CodeStyle> style = ValueIn(kWords<CodeStyle>, name);
  REQUIRE(style);
  return *style;
}

// Null: of a part that no row has by itself.
const CodePart* PartNamed(const StyleCode& code, const std::string& name) {
  if (name == "rms_norm") return &code.rms_norm;
  if (name == "head_norm") return &code.head_norm;
  if (name == "layer_norm") return &code.layer_norm;
  if (name == "rotary") return &code.rotary;
  if (name == "swiglu") return &code.gated;
  if (name == "gelu_new" || name == "gelu") return &code.gelu;
  if (name == "attention_eager") return &code.eager;
  if (name == "loss" || name == "head_and_loss") return &code.loss;
  if (name == "add") return &code.add;
  return nullptr;
}

TEST_CASE("StyleCode: rows are what was counted from the modules (count_code.py)") {
  std::ifstream in(SourcePath("tests/data/runtimes/code_counts.jsonl"));
  std::set<std::string> seen;
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    const std::string precision = row.at("precision");
    CAPTURE(row.at("style"));
    CAPTURE(row.at("part"));
    CAPTURE(precision);
    const StyleCode& code =
        StyleCodeOf(StyleNamed(row.at("style")), precision == "fp32", precision == "autocast");
    const CodePart* part = PartNamed(code, row.at("part"));
    if (part == nullptr) continue;
    seen.insert(row.at("style"));
    ++compared;
    CHECK(std::string(part->forward) == row.at("forward").get<std::string>());
    CHECK(std::string(part->backward) == row.at("backward").get<std::string>());
    CHECK(std::string(part->forward_moves) == row.at("forward_moves").get<std::string>());
    CHECK(std::string(part->backward_moves) == row.at("backward_moves").get<std::string>());
    CHECK(part->forward_launches == row.at("forward_launches"));
    CHECK(part->backward_launches == row.at("backward_launches"));
  }
  CHECK(seen == std::set<std::string>{"hf", "liger", "composer", "torchtitan", "torchtune"});
  CHECK(compared > 40);
}

// What is counted and has no row of its own: products cast what norms in fp32 make.
TEST_CASE("StyleCode: products cast their input where it is in fp32") {
  CHECK(StyleCodeOf(CodeStyle::kHf, false).rms_norm.result_bytes() == 2);
  CHECK(StyleCodeOf(CodeStyle::kHf, true).rms_norm.result_bytes() == 4);
  CHECK(StyleCodeOf(CodeStyle::kHf, false, true).layer_norm.result_bytes() == 4);
  CHECK(StyleCodeOf(CodeStyle::kHf, false, true).gelu.result_bytes() == 4);
}

// Bytes of `element` that are there when `part` has run, but for its result.
int KeptBytes(const CodePart& part, char element) {
  std::map<char, int> kept;
  for (std::string_view words = part.forward; !words.empty();) {
    const CodeWord word = NextWord(&words);
    if (word.kind == CodeWord::kMakes && word.element == element) kept[word.slot] = word.bytes;
    if (word.kind == CodeWord::kFrees) kept.erase(word.slot);
  }
  kept.erase('o');
  kept.erase('O');
  int sum = 0;
  for (const auto& [slot, bytes] : kept) sum += bytes;
  return sum;
}

TEST_CASE("StyleCode: what Llama's layers keep, as docs/runtimes.md has it") {
  struct Row {
    CodeStyle style;
    int hidden, mlp;
  };
  for (const Row& row :
       {Row{CodeStyle::kPlain, 12, 8}, Row{CodeStyle::kHf, 20, 8}, Row{CodeStyle::kLiger, 12, 6},
        Row{CodeStyle::kTorchtitan, 12, 8}, Row{CodeStyle::kTorchtune, 28, 8}}) {
    CAPTURE(CodeStyleName(row.style));
    const StyleCode& code = StyleCodeOf(row.style, false);
    // Of each norm what it keeps, its input where it does, and its output, which products keep;
    // queries, and attention's output.
    const int norm = KeptBytes(code.rms_norm, 'e') + (code.rms_norm.Keeps('i') ? 2 : 0) + 2;
    CHECK(2 * norm + 4 + KeptBytes(code.flash, 'u') == row.hidden);
    // Gate, up and what goes down.
    CHECK(KeptBytes(code.gated, 'e') + 6 == row.mlp);
  }
}

TEST_CASE("NextWord: tensors, what frees them, other names, gradients of parameters") {
  std::string_view words = "a4e -a -bu o:i =i W d16k";
  CodeWord word = NextWord(&words);
  CHECK(word.kind == CodeWord::kMakes);
  CHECK(word.slot == 'a');
  CHECK(word.bytes == 4);
  CHECK(word.element == 'e');
  word = NextWord(&words);
  CHECK(word.kind == CodeWord::kFrees);
  CHECK(word.element == 0);
  word = NextWord(&words);
  CHECK(word.kind == CodeWord::kFrees);
  CHECK(word.element == 'u');
  word = NextWord(&words);
  CHECK(word.kind == CodeWord::kRenames);
  CHECK(word.slot == 'o');
  CHECK(word.from == 'i');
  CHECK(NextWord(&words).kind == CodeWord::kKeeps);
  CHECK(NextWord(&words).kind == CodeWord::kParamGradients);
  word = NextWord(&words);
  CHECK(word.bytes == 16);
  CHECK(words.empty());
}

TEST_CASE("TorchAttentionKernelsOf: what scaled_dot_product_attention has on a GPU") {
  using enum TorchAttentionKernels;
  const auto of = [](int capability, bool shared) {
    return TorchAttentionKernelsOf(TorchAttention::kSdpa, capability, shared);
  };
  CHECK(of(90, true) == kFlash);
  CHECK(of(80, true) == kFlash);
  CHECK(of(0, true) == kFlash);
  CHECK(of(70, false) == kMemoryEfficient);
  CHECK(of(75, false) == kMemoryEfficient);
  CHECK(of(70, true) == kEager);  // its kernels have no shared heads
  CHECK(TorchAttentionKernelsOf(TorchAttention::kEager, 90, false) == kEager);
}

TEST_CASE("LossChunkTokens: as Liger and torchtune cut the tokens") {
  CHECK(LossChunkTokens(LossChunks::kOne, 8192, 2048, 128256) == 8192);
  CHECK(LossChunkTokens(LossChunks::kEight, 8192, 2048, 128256) == 1024);
  // 128256 / 2048 rounded up: 63 parts of 131 tokens, as the next power of two.
  CHECK(LossChunkTokens(LossChunks::kByHidden, 8192, 2048, 128256) == 256);
  CHECK(LossChunkTokens(LossChunks::kByHidden, 100, 2048, 1000) == 100);
}

}  // namespace
}  // namespace zeroplan
