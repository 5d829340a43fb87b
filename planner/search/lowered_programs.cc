#include "planner/search/lowered_programs.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/units.h"

namespace zeroplan {
namespace {

bool HasNoTime(const Instruction& instruction) {
  return std::holds_alternative<Alloc>(instruction.op) ||
         std::holds_alternative<Free>(instruction.op);
}

template <typename T>
uint64_t BytesOf(const std::vector<T>& list) {
  return list.capacity() * sizeof(T);
}

uint64_t BytesOf(const Program& program) {
  uint64_t bytes = sizeof(LoweredChoice) + BytesOf(program.buffers) + BytesOf(program.refs) +
                   BytesOf(program.segments);
  for (const auto& section : program.sections) bytes += BytesOf(section);
  return bytes;
}

bool IsStep(size_t section) {
  return section == static_cast<size_t>(Section::kMicroStep) ||
         section == static_cast<size_t>(Section::kOptimizerStep);
}

// The arguments and segments of what is left alone.
void DropUnused(Program& program) {
  std::vector<Ref> refs;
  std::vector<Segment> segments;
  for (auto& section : program.sections) {
    for (Instruction& instruction : section) {
      if (auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
        const std::span<const Ref> args = program.args(*launch);
        launch->first_arg = static_cast<uint32_t>(refs.size());
        refs.insert(refs.end(), args.begin(), args.end());
      } else if (auto* collective = std::get_if<Collective>(&instruction.op)) {
        const std::span<const Segment> segs = program.segs(*collective);
        collective->first_segment = static_cast<uint32_t>(segments.size());
        segments.insert(segments.end(), segs.begin(), segs.end());
      }
    }
  }
  refs.shrink_to_fit();
  segments.shrink_to_fit();
  program.refs = std::move(refs);
  program.segments = std::move(segments);
  program.buffers.shrink_to_fit();
  ParamLayout layout;  // without its units and tensors
  layout.shards = program.layout.shards;
  layout.slices = program.layout.slices;
  program.layout = std::move(layout);
}

LoweredChoice Digest(Program program) {
  LoweredChoice choice;
  choice.arena_bytes = program.arena_bytes;
  choice.live_peak_bytes = program.live_peak_bytes;
  choice.outside = OutsideArenasOf(program);
  for (size_t s = 0; s < kSections; ++s) {
    std::vector<Instruction>& list = program.sections[s];
    choice.instructions += list.size();
    if (!IsStep(s)) {
      list = {};
      continue;
    }
    choice.step_instructions += list.size();
    std::erase_if(list, HasNoTime);
    list.shrink_to_fit();
  }
  DropUnused(program);
  choice.step = std::move(program);
  return choice;
}

}  // namespace

LoweredPrograms::LoweredPrograms(ModelSpec model, TrainSetup base, const LowerOptions& options,
                                 uint64_t most_bytes)
    : model_(std::move(model)),
      base_(std::move(base)),
      options_(options),
      tensors_(std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model_))),
      most_bytes_(most_bytes) {}

Program LoweredPrograms::InFull(const Candidate& candidate) const {
  return Lower(model_, tensors_, SetupOf(candidate, base_), options_, &walk_.places);
}

uint64_t LoweredPrograms::LogitsChunks(const Candidate& candidate) const {
  const auto bytes = [&](int64_t rows) {
    return LogitsChunkBytes(model_, base_.precision.dtype, rows, options_);
  };
  const int64_t rows = candidate.micro_batch * (base_.batch.seq_len / candidate.sequence_ranks);
  return CeilDiv(static_cast<uint64_t>(rows), bytes(rows) / bytes(1));
}

// What a search reads of a program is the same of one that LowerToWalk makes, but for the number of
// its instructions, which budgets are of. Beside the step's these change neither with recompute nor
// with the micro-batch, but where evaluation has another number of chunks of logits.
LoweredChoice LoweredPrograms::Lowered(const Candidate& candidate) {
  Candidate like = candidate;
  like.micro_batch = 1;
  like.recompute = kNoRecompute;
  const auto [beside, first] = beside_step_.try_emplace({like, LogitsChunks(candidate)}, 0);
  if (first) {
    LoweredChoice choice = Digest(InFull(candidate));
    beside->second = choice.instructions - choice.step_instructions;
    return choice;
  }
  LoweredChoice choice =
      Digest(LowerToWalk(model_, tensors_, SetupOf(candidate, base_), options_, walk_));
  choice.instructions = choice.step_instructions + beside->second;
  return choice;
}

std::shared_ptr<const LoweredChoice> LoweredPrograms::Of(Candidate candidate) {
  candidate.grad_accum = std::min<int64_t>(candidate.grad_accum, 3);
  const auto known = kept_.find(candidate);
  if (known != kept_.end()) {
    by_use_.splice(by_use_.begin(), by_use_, known->second.at);
    return known->second.choice;
  }
  Kept kept;
  kept.choice = std::make_shared<const LoweredChoice>(Lowered(candidate));
  kept.bytes = BytesOf(kept.choice->step);
  kept.at = by_use_.insert(by_use_.begin(), candidate);
  bytes_ += kept.bytes;
  kept_.emplace(candidate, kept);
  while (bytes_ > most_bytes_ && by_use_.size() > 1) {
    const auto oldest = kept_.find(by_use_.back());
    bytes_ -= oldest->second.bytes;
    kept_.erase(oldest);
    by_use_.pop_back();
  }
  return kept.choice;
}

}  // namespace zeroplan
