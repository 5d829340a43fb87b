#include "executor/train/validation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"

namespace zeroplan {
namespace {

// Batches of the data that is held back, unless --validation-batches says otherwise.
constexpr int64_t kHeldBackBatches = 16;

}  // namespace

std::unique_ptr<const ValidationData> ValidationData::Open(const Program& program,
                                                           const TrainOptions& options, int rank,
                                                           const BatchSampler& training) {
  const BatchSpec& batch = program.setup.batch;
  std::unique_ptr<ValidationData> opened(new ValidationData(training));
  opened->rows_ = batch.micro_batch * batch.data_ranks();
  const int64_t rows = opened->rows_;
  const auto& most = options.validation_batches;
  if (options.validation_data.empty()) {
    opened->batches_ = std::min(most.value_or(kHeldBackBatches), training.validation_batches());
    return opened;
  }
  TokenDataset data = TokenDataset::Open(options.validation_data);
  data.SetVocab(program.model.vocab);
  data.CheckVocab(rank, batch.world_size, std::numeric_limits<uint64_t>::max());
  SamplerOptions sampler;
  sampler.option = "⟦validation_data⟧";
  sampler.seq_len = batch.seq_len;
  sampler.micro_batch = batch.micro_batch;
  sampler.world_size = batch.world_size;
  sampler.sequence_ranks = batch.sequence_ranks;
  sampler.shuffle = false;
  sampler.packing = options.packing;
  sampler.cut_long = !data.has_mask() && !options.truncate;
  const Own& own = opened->own_.emplace(std::move(data), sampler);
  const auto samples = static_cast<int64_t>(own.sampler.train_samples());
  if (samples < rows) {
    const std::string more = "use more data, or a smaller ⟦micro_batch⟧ or ⟦seq_len⟧";
    if (options.packing == Packing::kStream) {
      ThrowUsage(
          "⟦validation_data⟧: {} tokens, but a batch of {} sequences of {} tokens needs {}; {}",
          own.data.size(), rows, batch.seq_len, rows * batch.seq_len + 1, more);
    }
    ThrowUsage("⟦validation_data⟧: {} documents fill {} of the {} sequences of a batch; {}",
               own.data.documents(), samples, rows, more);
  }
  opened->batches_ = std::min(most.value_or(std::numeric_limits<int64_t>::max()), samples / rows);
  return opened;
}

std::string ValidationData::Describe() const {
  if (!own_) return "";
  return fmt::format("⟦validation_data⟧: {} of {} samples, in batches of {}, each time",
                     batches_ * rows_, own_->sampler.train_samples(), rows_);
}

std::string ValidationData::Identity() const {
  const int64_t samples = batches_ * rows_;
  if (own_) return fmt::format("{} samples of {}", samples, own_->data.Digest());
  return fmt::format("{} samples behind token {} of the data", samples, training_.train_tokens());
}

std::string ValidationData::Source() const {
  return own_ ? own_->data.Digest() : "what the data holds back";
}

void ValidationData::Fill(int64_t batch, int rank, std::span<int32_t> inputs,
                          std::span<int32_t> targets, std::span<int32_t> starts) const {
  if (!own_) return training_.FillValidation(batch, rank, inputs, targets, starts);
  ZEROPLAN_CHECK(batch >= 0 && batch < batches_, "validation batch {} of {}", batch, batches_);
  own_->sampler.FillTrain(static_cast<uint64_t>(batch * rows_), rank, 0, inputs, targets, starts);
}

namespace {

// Whether this checkpoint was, when it was saved, the best by the same validations.
bool IsBestOf(const ValidationRecord& record, const std::filesystem::path& folder) {
  const CheckpointMeta meta = ReadCheckpointMeta(folder);
  const auto& of_folder = meta.validation;
  return meta.step == record.best_step && of_folder && of_folder->any_finite &&
         of_folder->best_step == record.best_step && of_folder->best_loss == record.best_loss &&
         of_folder->data == record.data;
}

}  // namespace

bool BestValidation::Resume(const ValidationRecord& record) {
  if (record.data != record_.data) return false;
  record_ = record;
  noted_ = true;
  return true;
}

void BestValidation::Note(int64_t step, double loss) {
  noted_ = true;
  record_.step = step;
  if (std::isfinite(loss) && (!record_.any_finite || loss < record_.best_loss)) {
    record_.any_finite = true;
    record_.best_step = step;
    record_.best_loss = loss;
    record_.worse = 0;
    return;
  }
  ++record_.worse;
}

bool RestoreBest(const std::filesystem::path& save_dir, const ValidationRecord& record) {
  try {
    const auto named = ReadBest(save_dir);
    if (named && IsBestOf(record, CheckpointsFolder(save_dir) / *named)) return true;
  } catch (const Error&) {  // it names nothing that can be read
  }
  for (const CheckpointListing& checkpoint : ListCheckpoints(save_dir)) {
    if (!checkpoint.is_whole || !IsBestOf(record, checkpoint.folder)) continue;
    NameBest(save_dir, checkpoint.folder.filename().string());
    return true;
  }
  return false;
}

void ResumeBest(BestValidation& best, const ValidationRecord& record, const TrainOptions& options,
                bool first, const std::function<std::string(const std::string&)>& of_first) {
  const bool taken = best.Resume(record);
  const std::string why_not =
      taken ? "the best checkpoint so far is not there any more"
            : fmt::format("validation is with {}, and before with {}", best.data(), record.data);
  if (!options.keep_best) {
    if (!taken && options.patience > 0 && first) {
      LogWarning("⟦patience⟧: counts anew, as {}", why_not);
    }
    return;
  }
  // Rank 0 looks, and all do the same.
  std::string there = "-";
  if (first && taken && record.any_finite && RestoreBest(options.save_dir, record)) there = "+";
  if (of_first(there) == "+" || (taken && !record.any_finite)) return;
  best.Forget();
  if (first) LogWarning("⟦keep_best⟧: starts anew, as {}", why_not);
}

std::filesystem::path FinalCheckpoint(const TrainOptions& options,
                                      const std::optional<ValidationRecord>& record) {
  if (!options.best_weights) return options.save_dir;
  const auto best = ReadBest(options.save_dir);
  if (!best || !record || !record->any_finite) {
    LogWarning("⟦final_weights⟧ best: nothing was validated; the weights are the last");
    return options.save_dir;
  }
  LogInfo("weights: those of {}, validation loss {:.4f}", *best, record->best_loss);
  return CheckpointsFolder(options.save_dir) / *best;
}

}  // namespace zeroplan
