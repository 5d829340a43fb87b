#include "executor/train/run_validation.h"

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "core/base/log.h"

namespace zeroplan {
namespace {

// What a process has of a validation: the sum of Engine::Evaluate's losses, and the targets that
// count.
struct CountedSum {
  double sum = 0;
  int64_t counted = 0;
};

// Of every process's after `batches` calls: the mean loss over the targets that count, by the first
// process's sum, to the bit. Empty where none counts.
std::optional<double> MeanOverRanks(const RunParts& parts, int64_t batches, const CountedSum& own) {
  double sum = 0;
  int64_t counted = 0;
  const std::vector<std::string> sums = parts.Gather(fmt::format("{:a} {}", own.sum, own.counted));
  for (size_t i = 0; i < sums.size(); ++i) {
    char* rest = nullptr;
    const double of_rank = std::strtod(sums[i].c_str(), &rest);
    if (i == 0) sum = of_rank;
    counted += std::strtoll(rest, nullptr, 10);
  }
  if (counted == 0) return std::nullopt;
  const BatchSpec& batch = parts.batch();
  const int64_t positions = batches * batch.micro_batch * batch.seq_len * batch.world_size;
  const double mean = sum / static_cast<double>(batches);
  return counted == positions
             ? mean
             : mean * static_cast<double>(positions) / static_cast<double>(counted);
}

}  // namespace

bool RunValidation::IsDue() const {
  const int64_t every = parts_.options.validate_every, done = parts_.state.done;
  return every > 0 && done > 0 && done % every == 0;
}

void RunValidation::Validate() {
  const ValidationData& data = *parts_.opened.validation;
  if (data.batches() == 0) return;
  const int64_t done = parts_.state.done;
  parts_.limits.SetMeeting(parts_.limits.step.seconds(),
                           fmt::format("the validation after step {}", done));
  CountedSum own;
  for (int64_t b = 0; b < data.batches(); ++b) {
    parts_.limits.ExpectStep(fmt::format("batch {} of the validation after step {}", b, done));
    leaving_.LookForReason();
    if (leaving_.leaving()) return;
    saves_.Look(0);
    int64_t of_batch = 0;
    own.sum += parts_.engine.Evaluate(
        [&](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets,
            std::span<int32_t> starts) {
          try {
            data.Fill(b, rank, inputs, targets, starts);
          } catch (...) {
            leaving_.KeepFailure(std::current_exception());
            FillWithAnything(inputs, targets, starts, parts_.batch().seq_len,
                             parts_.opened.document_limits());
          }
        },
        &of_batch);
    own.counted += of_batch;
  }
  leaving_.LookForReason();
  if (leaving_.leaving()) return;
  // What follows hangs on it: rank 0's sum counts.
  const std::optional<double> loss = MeanOverRanks(parts_, data.batches(), own);
  if (!loss) {
    if (parts_.first()) LogWarning("no token of the validation part counts: no validation loss");
    return;
  }
  last_loss_ = *loss;
  parts_.state.best.Note(done, *loss);
  leaving_.Tell([&] { parts_.observer.OnValidation(done, *loss); });
}

void RunValidation::EndWithoutPatience() {
  const int64_t patience = parts_.options.patience;
  if (patience == 0 || parts_.state.best.worse() < patience) return;
  out_of_patience_ = true;
  if (parts_.first()) {
    LogInfo(
        "@@patience {}: the run ends after step {}, as no loss of so many validations was "
        "the lowest",
        patience, parts_.state.done);
  }
}

void RunValidation::ValidateAndKeep() {
  Validate();
  const BestValidation& best = parts_.state.best;
  const int64_t done = parts_.state.done;
  if (leaving_.leaving() || !best.NotedAt(done)) return;
  EndWithoutPatience();
  if (!parts_.options.keep_best || !best.IsAt(done)) return;
  saves_.SaveBetweenSteps(parts_.Meta());
  saved_at_ = done;
  leaving_.LookForReason();
}

}  // namespace zeroplan
