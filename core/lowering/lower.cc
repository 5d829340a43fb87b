#include "core/lowering/lower.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/lowering/passes.h"
#include "core/lowering/placement.h"
#include "core/lowering/walk_cache.h"
#include "core/model/model_family.h"
#include "core/program/step_order.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

namespace {

Program Run(Program program, const LowerOptions& options, Extent extent, PlacementCache* places) {
  return PassRunner{{options, extent, places}}.Run(std::move(program));
}

}  // namespace

Program PassRunner::Run(Program program) const {
  using Clock = std::chrono::steady_clock;
  for (size_t i = 0; i < kPasses.size(); ++i) {
    const Pass& pass = kPasses[i];
    if (!only.empty() && std::find(only.begin(), only.end(), pass.name) == only.end()) continue;
    const Clock::time_point begin = seconds == nullptr ? Clock::time_point{} : Clock::now();
    program = pass.run(std::move(program), input);
    if (seconds != nullptr) {
      (*seconds)[i] += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (verify) {
      const std::vector<Violation> found = CheckDraft(program, pass.leaves, 1);
      ZEROPLAN_CHECK(found.empty(), "pass {} leaves {} in {}:\n{}", pass.name, found[0].rule,
                     SectionName(found[0].section), found[0].message);
    }
    if (pass.name == until) break;
  }
  return program;
}

std::optional<SetupProblem> FindSequenceProblem(const ModelSpec& model, const BatchSpec& batch) {
  const int64_t ranks = batch.sequence_ranks, heads = model.heads, kv_heads = model.KvHeads();
  if (ranks == 1) return std::nullopt;
  const auto problem = [&](std::string why) {
    return SetupProblem{"sequence_parallel_size", fmt::format("{} is not allowed: {}", ranks, why)};
  };
  if (model.family->learned_positions()) {
    return problem(fmt::format(
        "models of type {} learn their positions, of which each rank would need its own; use 1, or "
        "a model with rotary positions",
        model.family->name()));
  }
  if (model.qk_norm_whole) {
    return problem(
        fmt::format("{} norms all query heads together, of which each rank would have some; use 1",
                    model.name));
  }
  if (heads % ranks != 0) {
    return problem(fmt::format("{} has {} query heads; use a divisor of these", model.name, heads));
  }
  if (kv_heads % ranks != 0 && ranks % kv_heads != 0) {
    return problem(
        fmt::format("{} has {} key and value heads; use a divisor or a multiple of these",
                    model.name, kv_heads));
  }
  return std::nullopt;
}

Program EmptyProgram(const ModelSpec& model,
                     std::shared_ptr<const std::vector<ParamTensor>> tensors,
                     const TrainSetup& setup, const LowerOptions& options) {
  ZEROPLAN_CHECK(!model.lora_quantized || options.purpose == Purpose::kTrain,
                 "{} in NF4 is for training", model.name);
  ZEROPLAN_CHECK(setup.batch.sequence_ranks == 1 || options.purpose == Purpose::kTrain,
                 "generation of sequences over ranks");
  const std::optional<SetupProblem> problem = FindSequenceProblem(model, setup.batch);
  ZEROPLAN_CHECK(!problem, "{}", problem->message);
  Program program;
  program.model = model;
  program.setup = setup;
  program.backend = options.backend;
  program.layout =
      BuildParamLayout(std::move(tensors), setup.zero, setup.batch.world_size, setup.precision);
  return program;
}

Program Lower(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
              const TrainSetup& setup, const LowerOptions& options, PlacementCache* cache) {
  return Run(EmptyProgram(model, std::move(tensors), setup, options), options, Extent::kWhole,
             cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, PlacementCache* cache) {
  return Run(EmptyProgram(model, std::move(tensors), setup, options), options, Extent::kWalk,
             cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, WalkCache& cache) {
  if (const EvalMemory* eval = cache.evals.Find(tensors, setup, options)) {
    Program program = Run(EmptyProgram(model, tensors, setup, options), options, Extent::kWalkStep,
                          &cache.places);
    if (CoversEval(program, *eval)) return program;
  }
  Program program = LowerToWalk(model, std::move(tensors), setup, options, &cache.places);
  cache.evals.Keep(program, options);
  return program;
}

Program LowerMicroStep(const ModelSpec& model,
                       std::shared_ptr<const std::vector<ParamTensor>> tensors, TrainSetup setup,
                       const LowerOptions& options) {
  setup.zero = ZeroConfig{};
  setup.batch.world_size = setup.batch.sequence_ranks;
  setup.batch.grad_accum = 1;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  constexpr std::array<std::string_view, 9> kOnly = {
      "BuildCompute",     "InsertFp8",          "InsertRecompute", "RemoveDead", "TileRows",
      "InsertDequantize", "OffloadActivations", "InsertLifetimes", "PlaceArenas"};
  return PassRunner{{options, Extent::kWalkStep}, kOnly}.Run(
      EmptyProgram(model, std::move(tensors), setup, options));
}

Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options) {
  return Lower(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
               setup, options);
}

namespace {

constexpr auto kDevice = static_cast<size_t>(Space::kDevice);

// Where an arena's transient buffers begin.
uint64_t TransientBase(const Program& p, size_t space) {
  return AlignUp(p.persistent_bytes[space], ArenaAlignment(space));
}

}  // namespace

std::optional<EvalMemories::Key> EvalMemories::KeyOf(
    const std::shared_ptr<const std::vector<ParamTensor>>& tensors, const TrainSetup& setup,
    const LowerOptions& options) {
  // Evaluation takes its turns at the slots that parameters are read from disk into, so that it
  // decides how large each of them is.
  if (options.purpose != Purpose::kTrain ||
      setup.zero.offload_param.device == OffloadDevice::kNvme) {
    return std::nullopt;
  }
  Key key{tensors, setup, options};
  key.setup.zero.offload_optimizer = {};
  if (!ParamsSharded(setup)) key.setup.zero = {};
  return key;
}

const EvalMemories::Entry* EvalMemories::FindKey(const Key& key) const {
  const auto same = [&](const Entry& entry) {
    const LowerOptions &a = entry.key.options, &b = key.options;
    return entry.key.tensors == key.tensors && a.backend == b.backend &&
           a.logits_chunk_bytes == b.logits_chunk_bytes && a.flash_attention == b.flash_attention &&
           a.document_borders == b.document_borders && a.own_documents == b.own_documents &&
           a.tile_rows == b.tile_rows && entry.key.setup == key.setup;
  };
  const auto found = std::find_if(entries_.begin(), entries_.end(), same);
  return found == entries_.end() ? nullptr : &*found;
}

const EvalMemory* EvalMemories::Find(const std::shared_ptr<const std::vector<ParamTensor>>& tensors,
                                     const TrainSetup& setup, const LowerOptions& options) const {
  if (entries_.empty()) return nullptr;
  const std::optional<Key> key = KeyOf(tensors, setup, options);
  const Entry* entry = key ? FindKey(*key) : nullptr;
  return entry == nullptr ? nullptr : &entry->memory;
}

void EvalMemories::Keep(const Program& program, const LowerOptions& options) {
  std::optional<Key> key = KeyOf(program.layout.tensors, program.setup, options);
  if (!key || FindKey(*key) != nullptr) return;
  EvalMemory memory;
  std::array<uint64_t, kSpaces> live{};
  for (const Instruction& instruction : program.section(Section::kEval)) {
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      const Buffer& buffer = program.buffers[alloc->buffer];
      const auto space = static_cast<size_t>(buffer.space);
      const uint64_t end = buffer.offset + buffer.bytes - TransientBase(program, space);
      memory.bytes[space] = std::max(memory.bytes[space], end);
      live[space] += buffer.bytes;
      memory.live_bytes[space] = std::max(memory.live_bytes[space], live[space]);
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      const Buffer& buffer = program.buffers[free->buffer];
      live[static_cast<size_t>(buffer.space)] -= buffer.bytes;
    }
  }
  if (entries_.size() == kMost) entries_.erase(entries_.begin());
  entries_.push_back({*std::move(key), memory});
}

bool CoversEval(const Program& program, const EvalMemory& memory) {
  std::array<uint64_t, kSpaces> persistent{};
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent) persistent[static_cast<size_t>(buffer.space)] += buffer.bytes;
  }
  for (size_t space = 0; space < kSpaces; ++space) {
    if (memory.bytes[space] == 0) continue;
    const bool placed =
        program.arena_bytes[space] >= TransientBase(program, space) + memory.bytes[space];
    const bool live =
        program.live_peak_bytes[space] >= persistent[space] + memory.live_bytes[space];
    if (!placed || !live) return false;
  }
  // At some time of the first micro-step's forward pass as much must be live.
  const uint8_t first = MicroStepKinds(program.setup.batch.grad_accum) & (kOnly | kFirst);
  std::vector<bool> allocated(program.buffers.size(), false);
  uint64_t live = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if ((instruction.when & first) == 0) continue;
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      const Buffer& buffer = program.buffers[alloc->buffer];
      if (buffer.space != Space::kDevice) continue;
      allocated[alloc->buffer] = true;
      live += buffer.bytes;
      if (instruction.phase == Phase::kForward && live >= memory.live_bytes[kDevice]) return true;
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      // What the micro-step before left is not counted.
      if (allocated[free->buffer]) live -= program.buffers[free->buffer].bytes;
    }
  }
  return false;
}

}  // namespace zeroplan
