// Why a plan is what it is, in words: what was chosen, what the best of every other stage loses and
// to what, and where the answer would change. Every number is a search's or a program's.
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

// The answer that a line names for the case that something were different. A search with that
// change and nothing else has to find it again.
struct Claim {
  std::optional<uint64_t> gpu_memory_bytes;  // of a GPU
  std::optional<int64_t> global_batch;       // sequences a step
  std::optional<int> gpus;                   // with global_batch where the present one cannot stay
  std::optional<double> bandwidth_scale;     // of the scarcest link, as its option sets it
  std::vector<int> stages;                   // these only; empty: all of the space
  std::optional<Found> found;                // none: nothing fits
  double gap = 0;                            // as Answer's
  // Where else an answer of its kind (of its stage, by bandwidth) holds, both ends included: bytes,
  // sequences, or bytes a second. Unset: nothing is claimed beyond the change itself.
  std::optional<double> holds_from, holds_to;
  std::vector<Found> or_else;  // other kinds that the answer changes to within that range
  // The end that is nearer to the present value, where another answer begins there.
  std::optional<double> flips_at;
};

enum class AdviceKind : uint8_t {
  kFewer,       // fewer GPUs that are as fast or faster: stands before the answer
  kChosen,      // what, how fast, how full
  kShares,      // where a step's time goes
  kGroups,      // what a GPU holds of the model's states by shard group, where some are searched
  kMargin,      // how sure memory and time are
  kNotProven,   // how much better a choice could be that was not judged
  kStage,       // the best of another stage and what it loses, or what it lacks
  kMemory,      // what more or less GPU memory changes
  kBatch,       // what more or less accumulation changes; before the answer where it is much faster
  kCrossover,   // what another bandwidth between GPUs or nodes changes
  kTwoOrThree,  // stage 2 against stage 3, where neither is the answer or both are close
  kStates,      // what optimizer states would bring that nobody allowed
  kProducts,    // what products of eight bits would bring that nobody asked for
  kSequences    // what sequences over GPUs would bring that nobody asked for
};
std::string_view AdviceKindName(AdviceKind kind);  // "fewer", "chosen", "not-proven", ...

struct AdviceLine {
  AdviceKind kind;
  std::string text;           // one paragraph, unwrapped
  std::vector<Claim> claims;  // of the text, each found by a search
};

struct Advice {
  std::vector<AdviceLine> lines;
  // A better choice turned up while looking: all of this is about one that is not the best. Run the
  // search again, which now knows it.
  bool outdated = false;
};

// The answers by batch of a choice, where they are known before its advice, and the batches that
// were named already and are not named again.
struct KnownBatches {
  Answers answers;
  std::vector<int64_t> said;
};

// `hardware`: what the searcher's cost models were made of. `emit`, if set, gets every line as soon
// as it is known. `quick`: only what the result itself says, no searches. REQUIRES: result.best.
Advice Advise(ChoiceSearch& searcher, const SearchResult& result, const HardwareProfile& hardware,
              const std::function<void(const AdviceLine&)>& emit = nullptr, bool quick = false,
              const std::optional<KnownBatches>& batches = std::nullopt);

// A stage's best as a search found it. REQUIRES: something of the stage fits.
Found FoundOf(const StageBest& stage, const Runtime& runtime);
// "18.0K tokens/s".
std::string RateText(double tokens_per_second);
// " (not proven: within 2.1 %)" where an answer is not proven.
std::string WithinText(double gap);

}  // namespace zeroplan
