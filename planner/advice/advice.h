// Explains a plan in words: the choice, the loss of the best choice of every other stage and its
// causes, and the changes that would flip the answer. Every number comes from a search or a
// program.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/advice/flips.h"
#include "planner/search/search.h"

namespace zeroplan {

// The answer that a line gives for the case that something were different. A search with that
// change and nothing else must find it again.
struct Claim {
  std::optional<uint64_t> gpu_memory_bytes;  // bytes of a GPU
  std::optional<int64_t> global_batch;       // sequences a step
  std::optional<int> gpus;                   // set with global_batch if the present one cannot stay
  // scales the scarcest link's bandwidth, as its option sets it
  std::optional<double> bandwidth_scale;
  std::vector<int> stages;     // the only stages; empty: all of the space
  std::optional<Found> found;  // none: nothing fits
  double gap = 0;              // as in Answer
  // The range in which an answer of its kind (for bandwidth: of its stage) holds, both ends
  // included: bytes, sequences, or bytes a second. Unset: nothing is claimed beyond the change
  // itself.
  std::optional<double> holds_from, holds_to;
  std::vector<Found> or_else;  // other kinds of answer within that range
  // The end nearer to the present value, if another answer begins there.
  std::optional<double> flips_at;
};

enum class AdviceKind : uint8_t {
  kFewer,       // fewer GPUs that are as fast or faster: precedes the answer
  kChosen,      // the choice, its speed, its memory
  kShares,      // the causes of a step's time
  kGroups,      // a GPU's bytes of the model's states by shard group, if some are searched
  kMargin,      // the error margins of memory and time
  kNotProven,   // how much better a choice could be that was not judged
  kStage,       // the best of another stage and its loss, or its lack
  kMemory,      // effects of more or less GPU memory
  kBatch,       // effects of more or less accumulation; before the answer where it is much faster
  kCrossover,   // effects of another bandwidth between GPUs or nodes
  kTwoOrThree,  // stage 2 against stage 3, if neither is the answer or both are close
  kStates,      // gain of optimizer states that the user did not allow
  kProducts,    // gain of FP8 matmuls that the user did not request
  kSequences    // gain of sequences over GPUs that the user did not request
};
std::string_view AdviceKindName(AdviceKind kind);  // "fewer", "chosen", "not-proven", ...

struct AdviceLine {
  AdviceKind kind;
  std::string text;           // one paragraph, unwrapped
  std::vector<Claim> claims;  // claims of the text, each found by a search
};

struct Advice {
  std::vector<AdviceLine> lines;
  // The advice's searches found a better choice, so this advice is about one that is not the best.
  // The caller should run the search again, which now knows the better one.
  bool outdated = false;
};

// The answers by batch of a choice, if known before its advice, and the batches already mentioned,
// to be left out.
struct KnownBatches {
  Answers answers;
  std::vector<int64_t> said;
};

// `hardware`: the source of the searcher's cost models. Calls `emit`, if set, with every line as
// soon as it is known. `quick`: uses the result alone, without searches. REQUIRES: result.best.
Advice Advise(ChoiceSearch& searcher, const SearchResult& result, const HardwareProfile& hardware,
              const std::function<void(const AdviceLine&)>& emit = nullptr, bool quick = false,
              const std::optional<KnownBatches>& batches = std::nullopt);

// The fastest choice that was judged and leaves less memory free than its program's margin of
// error, if it is faster than the answer, which does not; else "".
std::string BrimText(const ChoiceSearch& searcher, const ChoiceEstimate& best);

// "stage 2 (micro-batch 4 x 8 micro-steps)".
std::string KindText(const SearchInputs& inputs, const Candidate& candidate);
// The claim of a range. `end`: the one nearer to the present value.
Claim ClaimOf(const AnswerRange& range, double end);
// "⟦effort⟧ 4 looks longer": four times what was given.
std::string LooksLonger(const SearchInputs& inputs);
// The text for programs that are too large to find where `what` would change the answer.
std::string GaveUp(std::string_view what, const SearchInputs& inputs);
// "18.0K tokens/s".
std::string RateText(double tokens_per_second);
// " (not proven: within 2.1 %)" if an answer is not proven.
std::string WithinText(double gap);

}  // namespace zeroplan
