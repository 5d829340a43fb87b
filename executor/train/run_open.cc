#include "executor/train/run_open.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "core/config/data_facts.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/program/fingerprint.h"
#include "executor/checkpoint/adapter_weights.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/shard_writer.h"
#include "executor/train/group_save.h"
#ifdef ZEROPLAN_WITH_CUDA
#include "executor/device/cuda/cuda_libraries.h"
#endif

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Rank 0's, on every rank.
ResumeCandidates AgreedCandidates(ProcessGroup& group, const fs::path& save_dir) {
  std::string text;
  if (group.rank() == 0 && HasCheckpoint(save_dir)) {
    const ResumeCandidates mine = ListCandidates(save_dir);
    for (const fs::path& folder : mine.folders) text += folder.filename().string() + "\n";
    text += "\n" + mine.latest_damage;
  }
  text = group.AllGather(text).front();
  ResumeCandidates candidates;
  std::istringstream lines(text);
  for (std::string name; std::getline(lines, name) && !name.empty();) {
    candidates.folders.push_back(CheckpointsFolder(save_dir) / name);
  }
  candidates.latest_damage.assign(std::istreambuf_iterator<char>(lines), {});
  return candidates;
}

// "step-00000123-1": 123.
int64_t StepOf(const std::string& folder_name) {
  int64_t step = 0;
  const size_t begin = folder_name.find('-') + 1;
  std::from_chars(folder_name.data() + begin, folder_name.data() + folder_name.size(), step);
  return step;
}

class Chooser {
 public:
  Chooser(ProcessGroup& group, const ModelSpec& spec, std::span<const ParamTensor> table)
      : group_(group), spec_(spec), table_(table) {}

  // The checkpoint, if all ranks find their part intact; else damage() says what is not.
  std::unique_ptr<CheckpointSource> Look(const fs::path& folder) {
    NeedShared(group_, folder);
    std::optional<CheckpointSource> source;
    std::string mine = Attempt([&] {
      source.emplace(CheckpointSource::Begin(folder, spec_, table_));
      return std::string();
    });
    if (source) {  // another model is no damage: no older checkpoint would be of this one
      CheckSameShape(source->meta().model, spec_, (folder / "meta.json").string());
      mine = Attempt([&] { return source->LookAt(group_.rank(), group_.world_size()); });
    }
    const std::vector<std::string> looks = group_.AllGather(mine);
    for (const std::string& look : looks) {
      if (!look.starts_with(kDamaged)) continue;
      damage_ = look.substr(1);
      return nullptr;
    }
    // The same on all ranks.
    damage_ = Attempt([&] {
      source->Complete(looks);
      return std::string();
    });
    if (damage_.empty()) return std::make_unique<CheckpointSource>(std::move(*source));
    damage_.erase(0, 1);
    return nullptr;
  }

  const std::string& damage() const { return damage_; }

 private:
  static constexpr char kDamaged = '!';

  // What fn returns, or the damage that it meets.
  template <typename Fn>
  static std::string Attempt(const Fn& fn) {
    try {
      return fn();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      return kDamaged + std::string(error.what());
    }
  }

  ProcessGroup& group_;
  const ModelSpec& spec_;
  std::span<const ParamTensor> table_;
  std::string damage_;
};

// What is lost with those that were passed over.
std::string Loss(const std::vector<std::string>& damaged, const CheckpointSource& taken) {
  const std::string name = taken.folder().filename().string();
  int64_t newest = 0;
  for (const std::string& folder : damaged) newest = std::max(newest, StepOf(folder));
  const int64_t lost = newest - taken.meta().step;
  return lost > 0 ? fmt::format("{} step{} {} trained again", lost, lost == 1 ? "" : "s",
                                lost == 1 ? "is" : "are")
                  : fmt::format("it is at step {}", taken.meta().step);
}

void SayIntact(const CheckpointSource& source, double seconds) {
  LogInfo("⟦resume⟧: {} of {} are as they were saved (looked at in {:.1f} s)",
          FormatBytes(source.file_bytes()), source.folder().filename().string(), seconds);
}

}  // namespace

ResumeChoice ChooseCheckpoint(ProcessGroup& group, const fs::path& save_dir, const ModelSpec& spec,
                              std::span<const ParamTensor> table, bool strict) {
  const auto begin = std::chrono::steady_clock::now();
  const ResumeCandidates candidates = AgreedCandidates(group, save_dir);
  ResumeChoice choice;
  if (candidates.folders.empty() && candidates.latest_damage.empty()) return choice;
  const bool first = group.rank() == 0;
  const fs::path checkpoints = CheckpointsFolder(save_dir);
  std::string damage = candidates.latest_damage;
  const auto refuse_if_strict = [&] {
    if (!strict) return;
    ThrowUsage(
        "{}; ⟦strict_resume⟧: no other checkpoint is taken in its place; 'zeroplan checkpoint "
        "verify {}' says which are intact",
        damage, save_dir.string());
  };
  if (!damage.empty()) {
    refuse_if_strict();
    if (first) LogWarning("{}", damage);
  }
  Chooser chooser(group, spec, table);
  for (const fs::path& folder : candidates.folders) {
    choice.source = chooser.Look(folder);
    if (choice.source != nullptr) break;
    if (damage.empty()) damage = chooser.damage();
    refuse_if_strict();
    if (first) LogWarning("{}", chooser.damage());
    choice.damaged.push_back(folder.filename().string());
  }
  if (choice.source == nullptr) {
    ThrowUsage("{}; no checkpoint in {} is intact", damage, checkpoints.string());
  }
  if (!first) return choice;
  SayIntact(*choice.source,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  if (damage.empty()) return choice;
  const std::string taken = choice.source->folder().filename().string();
  if (choice.damaged.empty()) {
    LogWarning("⟦resume⟧: taking {}, the newest checkpoint in {}", taken, checkpoints.string());
  } else {
    const bool one = choice.damaged.size() == 1;
    LogWarning(
        "⟦resume⟧: taking {}, the newest intact checkpoint: {}. {} {}, and this run does not "
        "delete "
        "{}. ⟦strict_resume⟧ refuses instead",
        taken, Loss(choice.damaged, *choice.source), fmt::join(choice.damaged, ", "),
        one ? "stays as it is" : "stay as they are", one ? "it" : "them");
  }
  return choice;
}

namespace {

// Token ids are looked at before the first step up to so many bytes of token files over all ranks:
// a few seconds. What is past it is looked at in blocks, and all of it as it is read.
constexpr uint64_t kVocabCheckBytes = uint64_t{16} << 30;

std::optional<SaveLock> LockSaveFolder(const TrainOptions& options, const ProcessGroup& group) {
  if (group.rank() != 0 || options.save_dir.empty()) return std::nullopt;
  std::optional<SaveLock> lock(std::in_place, options.save_dir);
  CheckSaveFolder(options.save_dir);
  return lock;
}

void RefuseEarlierRun(const TrainOptions& options) {
  if (options.resume || options.save_dir.empty() || !HasCheckpoint(options.save_dir)) return;
  ThrowUsage(
      "⟦save⟧ {}: the folder holds checkpoints of an earlier run; continue it with ⟦resume⟧ or "
      "choose another folder",
      options.save_dir.string());
}

// The libraries whose kernels and sums the run's results are.
std::string LibrariesOf([[maybe_unused]] const Program& program) {
#ifdef ZEROPLAN_WITH_CUDA
  if (program.backend == Backend::kCuda) return CudaLibraryVersions();
#endif
  return "not used";
}

// What --resume continues. All ranks get the same one.
ResumeChoice OpenCheckpoint(const Program& program, const TrainOptions& options,
                            ProcessGroup& group) {
  // First of all: what ranks do next depends on it.
  AgreeAtStart(group, {{"⟦resume⟧", options.resume ? "given" : "not given"},
                       {"CUDA libraries", LibrariesOf(program)}});
  if (!options.resume) {
    // Rank 0 alone looks: a moment later the folder may hold checkpoints of this run.
    if (group.rank() == 0) RefuseEarlierRun(options);
    return {};
  }
  if (options.save_dir.empty()) {
    ThrowUsage("⟦resume⟧ needs ⟦save⟧ DIR, the folder of the run to continue");
  }
  ResumeChoice choice = ChooseCheckpoint(group, options.save_dir, program.model,
                                         *program.layout.tensors, options.strict_resume);
  if (choice.source == nullptr && group.rank() == 0) {
    LogInfo("no checkpoint in {} yet: starting afresh", options.save_dir.string());
  }
  return choice;
}

// Whether the run reads the weights in options.init_from.
bool ReadsWeights(const ModelSpec& model, const TrainOptions& options, bool has_checkpoint) {
  const std::filesystem::path& folder = options.init_from;
  const bool adapts = HasAdapters(model);
  if (folder.empty() && adapts && !options.save_dir.empty()) {
    ThrowUsage(
        "⟦save⟧: adapters of random weights fit nothing else; name the model's weights with "
        "⟦init_from⟧, or leave ⟦save⟧ out");
  }
  if (folder.empty() || (has_checkpoint && !adapts)) return false;
  if (std::error_code ignored; std::filesystem::equivalent(folder, options.save_dir, ignored)) {
    ThrowUsage(
        "⟦save⟧ {}: the run starts from the weights in this folder, and its own would replace "
        "them; choose another folder",
        options.save_dir.string());
  }
  return true;
}

// Before the engine takes memory: what does not fit the model is found at once.
void OpenWeights(const TrainOptions& options, ProcessGroup& group, OpenedRun& run) {
  const std::filesystem::path& folder = options.init_from;
  const bool adapts = HasAdapters(run.program.model);
  if (!ReadsWeights(run.program.model, options, run.checkpoint != nullptr)) return;
  const ModelSpec& model = run.program.model;
  const std::vector<ParamTensor>& table = *run.program.layout.tensors;
  if (!adapts) {
    auto weights =
        std::make_unique<HfWeightsSource>(folder, model, table, options.resize_embeddings);
    run.weights_text = weights->Describe();
    run.weights = std::move(weights);
    return;
  }
  auto weights = std::make_unique<AdaptedWeights>(folder, options.adapter, model, table, run.seed,
                                                  options.resize_embeddings);
  run.base_digest = group.AllGather(group.rank() == 0 ? WeightsDigest(folder) : "").front();
  if (group.rank() == 0) weights->adapter().WarnOfOtherBase(run.base_digest, folder);
  run.weights_text = weights->Describe();
  if (run.checkpoint) weights->ReadTunedFrom(*run.checkpoint);
  run.weights = std::move(weights);
}

// The checkpoint's, if there is one.
uint64_t ChooseSeed(const TrainOptions& options, const CheckpointSource* checkpoint) {
  if (checkpoint == nullptr) return options.seed.value_or(1);
  const uint64_t saved = checkpoint->meta().seed;
  if (options.seed && *options.seed != saved) {
    ThrowUsage(
        "⟦seed⟧ {}: the checkpoint {} was made with seed {}, which fixes the order of its data; "
        "leave ⟦seed⟧ out",
        *options.seed, checkpoint->folder().string(), saved);
  }
  return saved;
}

std::unique_ptr<const TokenDataset> OpenData(const Program& program, const TrainOptions& options,
                                             const ProcessGroup& group) {
  auto data = std::make_unique<TokenDataset>(TokenDataset::Open(options.data));
  data->SetVocab(program.model.vocab);
  const int rank = group.rank(), ranks = group.world_size();
  const uint64_t budget = kVocabCheckBytes / static_cast<uint64_t>(ranks);
  const uint64_t looked = data->CheckVocab(rank, ranks, budget);
  if (const uint64_t all = data->PartSize(rank, ranks); rank == 0 && looked < all) {
    LogInfo(
        "⟦data⟧: {:.0f} % of the tokens were held against the vocabulary, in blocks; the others "
        "are as they are read",
        100 * static_cast<double>(looked) / static_cast<double>(all));
  }
  return data;
}

// What a resume changes. Throws for what it may not.
std::vector<RunChange> ChangesBy(const NamedFacts& facts, const CheckpointSource& checkpoint,
                                 const TrainOptions& options) {
  return CompareWithCheckpoint(facts, checkpoint.meta().run, options.allow_change,
                               checkpoint.folder().string());
}

// What an earlier part of the run trained on, so that what it held back stays so. `facts` is of a
// run whose length is not known yet.
std::optional<uint64_t> TrainTokensSoFar(const OpenedRun& run, const TrainOptions& options,
                                         const NamedFacts& facts) {
  if (!run.checkpoint) return std::nullopt;
  const CheckpointMeta& meta = run.checkpoint->meta();
  bool other_samples = false;
  for (const RunChange& change : ChangesBy(facts, *run.checkpoint, options)) {
    other_samples = other_samples || change.name == "data" || change.name == "order";
  }
  if (other_samples) return std::nullopt;  // held back anew
  const auto length = static_cast<uint64_t>(run.program.setup.batch.seq_len);
  if (meta.train_tokens > 0) return meta.train_tokens;
  return options.packing == Packing::kStream ? (run.data->size() - 1) / length * length
                                             : run.data->size();
}

// Long documents are cut into pieces; the rest of a conversation means little without its begin and
// is left out.
SamplerOptions SamplerOptionsOf(const OpenedRun& run, const TrainOptions& options,
                                std::optional<uint64_t> train_tokens) {
  const BatchSpec& batch = run.program.setup.batch;
  SamplerOptions sampler;
  sampler.seq_len = batch.seq_len;
  sampler.micro_batch = batch.micro_batch;
  sampler.grad_accum = batch.grad_accum;
  sampler.world_size = batch.world_size;
  sampler.sequence_ranks = batch.sequence_ranks;
  sampler.shuffle = options.shuffle;
  sampler.seed = run.seed;
  sampler.train_tokens = train_tokens;
  if (!options.validation_data.empty() || !options.holds_back) sampler.validation_fraction = 0;
  sampler.packing = options.packing;
  sampler.cut_long = !run.data->has_mask() && !options.truncate;
  return sampler;
}

void RefuseUnheard(const BatchSampler& sampler) {
  const PackedSequences& train = sampler.train_sequences();
  if (train.documents() == 0 || train.unheard() < train.documents()) return;
  ThrowUsage(
      "⟦seq_len⟧ {}: each of the {} documents is cut off before anything of it counts in the loss; "
      "take longer sequences, or ⟦train_on⟧ all",
      sampler.options().seq_len, train.documents());
}

int64_t DecideSteps(const OpenedRun& run, const TrainOptions& options, bool first) {
  if (!options.epochs) return options.steps;
  EpochCount count;
  count.epochs = *options.epochs;
  count.train_samples = run.sampler->train_samples();
  count.global_batch = run.program.setup.batch.global_batch();
  if (run.checkpoint) {
    count.done = run.checkpoint->meta().step;
    count.consumed = run.checkpoint->meta().samples_consumed;
  }
  const int64_t steps = StepsOfEpochs(count);
  if (first) {
    LogInfo("⟦epochs⟧ {}: of {} samples, in batches of {}: {} steps", count.epochs,
            count.train_samples, count.global_batch, steps);
  }
  return steps;
}

// Room for all that is still to be saved. `ranks_here`: those whose swap files lie on this host.
void CheckRunRoom(const OpenedRun& run, const TrainOptions& options, int ranks_here) {
  const Program& program = run.program;
  const int64_t done = run.checkpoint ? run.checkpoint->meta().step : 0;
  SaveDemand demand;
  demand.shard_bytes = ShardFileBytes(program.layout);
  demand.final_bytes = HasAdapters(program.model)
                           ? AdapterBytes(*program.layout.tensors, options.final_weights.dtype)
                           : HfWeightsBytes(*program.layout.tensors, options.final_weights.dtype);
  const std::filesystem::path& source = options.final_weights.source;
  if (std::error_code ignored; !std::filesystem::equivalent(source, options.save_dir, ignored)) {
    demand.final_bytes += CheckCompanions(source);
  }
  // At the end, and at the multiples of an interval before it.
  demand.saves = 1;
  const auto add = [&](int64_t every) {
    if (every > 0 && run.steps > done) demand.saves += (run.steps - 1) / every - done / every;
  };
  if (options.interruption_rate > 0) {  // after how many steps is not known yet
    add(1);
  } else {
    add(options.save_every);
  }
  demand.keep = options.keep;
  if (options.keep_best) {
    add(options.validate_every);
    ++demand.keep;
  }
  demand.swap_bytes =
      program.arena_bytes[static_cast<size_t>(Space::kFile)] * static_cast<uint64_t>(ranks_here);
  demand.swap_dir = SwapFolder(program.setup.zero);
  CheckSaveRoom(options.save_dir, demand);
}

// Up to the next whole number; a product that misses one by its rounding counts as that one.
double RoundUp(double value) { return std::ceil(value * (1 - 1e-12)); }

// Whether there is a checkpoint that --resume continues, by what its meta.json says. Damage is for
// the resume to find, which may take another.
bool LookAtNewest(const ModelSpec& model, std::span<const ParamTensor> table,
                  const TrainOptions& options) {
  for (const CheckpointListing& listing : ListCheckpoints(options.save_dir)) {
    if (!listing.is_whole) continue;
    const CheckpointSource newest = CheckpointSource::Begin(listing.folder, model, table);
    CheckSameShape(newest.meta().model, model, (listing.folder / "meta.json").string());
    ChooseSeed(options, &newest);
    return true;
  }
  return HasCheckpoint(options.save_dir);
}

}  // namespace

void LookAtStart(const ModelSpec& model, const TrainOptions& options) {
  const bool has_checkpoint = !options.save_dir.empty() && HasCheckpoint(options.save_dir);
  // A run that is under way there is told first.
  if (has_checkpoint) SaveLock(options.save_dir);
  RefuseEarlierRun(options);
  if (options.resume && !has_checkpoint && !options.save_dir.empty()) {
    const std::string others = CheckpointOfOthers(options.save_dir);
    if (!others.empty()) ThrowUsage("⟦resume⟧: {} {}", options.save_dir.string(), others);
  }
  const std::vector<ParamTensor> table = BuildParamTable(model);
  const bool resumes = has_checkpoint && LookAtNewest(model, table, options);
  if (!ReadsWeights(model, options, resumes)) return;
  if (HasAdapters(model)) {
    const AdaptedWeights weights(options.init_from, options.adapter, model, table,
                                 options.seed.value_or(1), options.resize_embeddings);
  } else {
    const HfWeightsSource weights(options.init_from, model, table, options.resize_embeddings);
  }
}

OpenedRun OpenRun(const Program& program, const TrainOptions& options, ProcessGroup& group) {
  OpenedRun run;
  run.program = program;
  run.lock = LockSaveFolder(options, group);
  ResumeChoice resume = OpenCheckpoint(program, options, group);
  run.checkpoint = std::move(resume.source);
  run.damaged = std::move(resume.damaged);
  run.seed = ChooseSeed(options, run.checkpoint.get());
  OpenWeights(options, group, run);
  run.data = OpenData(program, options, group);
  const std::string digest = run.data->Digest();
  const auto facts = [&](int64_t steps) {
    return DecidingFacts(run.program.setup, steps, options.shuffle, digest, options.packing,
                         options.truncate);
  };
  run.sampler = std::make_unique<BatchSampler>(
      *run.data, SamplerOptionsOf(run, options, TrainTokensSoFar(run, options, facts(0))));
  RefuseUnheard(*run.sampler);
  run.steps = DecideSteps(run, options, group.rank() == 0);
  ScheduleConfig& schedule = run.program.setup.optimizer.schedule;
  schedule = ScheduleOfRun(schedule, run.steps);
  run.facts = facts(run.steps);
  run.validation = ValidationData::Open(program, options, group.rank(), *run.sampler);
  if (!run.base_digest.empty()) run.facts.emplace_back("base", run.base_digest);
  run.facts.insert(
      run.facts.end(),
      {{"validation-data", run.validation->Source()},
       {"max-bad-steps", std::to_string(options.max_bad_steps)},
       {"skip-loss-spike", options.skip_loss_spike > 0 ? fmt::format("{}", options.skip_loss_spike)
                                                       : "none are skipped"}});
  return run;
}

void AgreeOnRun(const OpenedRun& run, const TrainOptions& options, ProcessGroup& group) {
  const bool first = group.rank() == 0;
  if (first && !options.save_dir.empty()) {
    // Ranks of one process are all here.
    const bool threads = group.world_size() == 1;
    CheckRunRoom(run, options,
                 threads ? run.program.setup.batch.world_size : group.place().local_world_size);
  }
  if (first && run.checkpoint) {
    for (const RunChange& change : ChangesBy(run.facts, *run.checkpoint, options)) {
      LogWarning("{}", change.sentence);
    }
  }
  if (options.watches_best() && run.validation->batches() == 0) {
    ThrowUsage("{}: there is nothing to validate with: {}; give ⟦validation_data⟧",
               options.keep_best ? "⟦keep_best⟧" : "⟦patience⟧",
               !options.holds_back ? "⟦data_repeats⟧ holds back none"
               : !options.shuffle  ? "⟦no_shuffle⟧ holds back none"
                                   : "the data is too little to hold back a global batch");
  }
  NamedFacts facts = {{"⟦seed⟧", std::to_string(run.seed)},
                      {"⟦steps⟧", std::to_string(run.steps)},
                      {"⟦init_from⟧", options.init_from.string()},
                      {"⟦save⟧", options.save_dir.string()},
                      {"⟦save_every⟧", std::to_string(options.save_every)},
                      {"⟦interruptions⟧", fmt::format("{}", options.interruption_rate)},
                      {"⟦validate_every⟧", std::to_string(options.validate_every)},
                      {"⟦validation_data⟧", run.validation->Identity()},
                      {"⟦validation_batches⟧", std::to_string(run.validation->batches())},
                      {"⟦keep_best⟧", options.keep_best ? "given" : "not given"},
                      {"⟦patience⟧", std::to_string(options.patience)}};
  facts.insert(facts.end(), run.facts.begin(), run.facts.end());
  AgreeOnFacts(group, facts);
  if (group.world_size() == 1) return;
  // By name first: the fingerprint is there for what no setting says.
  facts = SettingsOf(run.program);
  facts.emplace_back("program", FormatFingerprint(Fingerprint(run.program)));
  AgreeOnFacts(group, facts);
}

int64_t StepsOfEpochs(const EpochCount& count) {
  const double samples = SequencesOfEpochs(count.epochs, count.train_samples);
  const double left = samples - static_cast<double>(count.consumed);
  const double steps = static_cast<double>(count.done) +
                       std::max(0.0, std::ceil(left / static_cast<double>(count.global_batch)));
  constexpr double kMax = std::numeric_limits<int32_t>::max();
  if (steps > kMax) {
    ThrowUsage(
        "⟦epochs⟧ {}: of {} samples, in batches of {}, they are {:.0f} steps; at most {:.0f} "
        "are allowed",
        count.epochs, count.train_samples, count.global_batch, steps, kMax);
  }
  return static_cast<int64_t>(steps);
}

ScheduleConfig ScheduleOfRun(ScheduleConfig schedule, int64_t steps) {
  if (schedule.total_steps == 0) schedule.total_steps = steps;
  RunScheduleConfig& of_run = schedule.of_run;
  if (of_run.warmup_share > 0) {
    of_run.warmup_steps = static_cast<int64_t>(
        RoundUp(of_run.warmup_share * static_cast<double>(schedule.total_steps)));
  }
  return schedule;
}

std::string SwapFolder(const ZeroConfig& zero) {
  const auto& optimizer = zero.offload_optimizer;
  const auto& param = zero.offload_param;
  const bool both =
      optimizer.device == OffloadDevice::kNvme && param.device == OffloadDevice::kNvme;
  if (both && optimizer.nvme_path != param.nvme_path) {
    ThrowUsage(
        "offload_param.nvme_path: {} differs from offload_optimizer's {}; one swap file holds "
        "both: name one folder, or override them with ⟦nvme_path⟧",
        param.nvme_path, optimizer.nvme_path);
  }
  return optimizer.device == OffloadDevice::kNvme ? optimizer.nvme_path : param.nvme_path;
}

}  // namespace zeroplan
