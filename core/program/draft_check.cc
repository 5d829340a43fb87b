#include <fmt/format.h>

#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/program/program.h"
#include "core/program/static_check.h"
#include "core/program/step_order.h"
#include "core/program/unrolled_check.h"
#include "core/program/verify.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

// ---- buffers ----

class BufferTableCheck {
 public:
  BufferTableCheck(const Program& program, Violations& violations)
      : program_(program), violations_(violations) {}

  void Run() {
    for (const Buffer& buffer : program_.buffers) Visit(buffer);
    CheckOwn("state", program_.state_buffer, Role::kState);
    CheckOwn("state_host", program_.state_host_buffer, Role::kStateHost);
    CheckOwn("tokens", program_.tokens_buffer, Role::kTokens);
    CheckOwn("tokens_host", program_.tokens_host_buffer, Role::kTokensHost);
    CheckOwn("matmul_workspace", program_.matmul_workspace, Role::kWorkspace);
    for (size_t u = 0; u < program_.layout.units.size(); ++u) CheckShards(static_cast<int>(u));
  }

 private:
  template <typename... Args>
  void Add(std::string_view rule, fmt::format_string<Args...> what, Args&&... args) {
    violations_.Add(rule, {}, what, std::forward<Args>(args)...);
  }

  void Visit(const Buffer& buffer) {
    const auto units = static_cast<int>(program_.layout.units.size());
    if (buffer.unit < -1 || buffer.unit >= units) {
      Add("bad_unit", "{} belongs to unit {} of {}", BufferName(buffer), buffer.unit, units);
      return;
    }
    if (buffer.layer < -2 || buffer.layer > program_.model.layers) {
      Add("bad_unit", "{} belongs to layer {} of {}", BufferName(buffer), buffer.layer,
          program_.model.layers);
    }
    if (!buffer.persistent || buffer.unit < 0) return;
    const bool state = buffer.role == Role::kOptimizerState;
    uint64_t& bytes = state ? states_of_unit_[{buffer.state, HomeOf(buffer.space), buffer.unit}]
                            : of_unit_[{buffer.role, buffer.unit}];
    if (bytes > 0) {
      Add("duplicate_role", "a second {}", BufferName(buffer));
    }
    bytes = buffer.bytes;
    CheckSize(buffer);
  }

  // Checks the size of a buffer that holds a whole unit or shard in the dtype it names.
  void CheckSize(const Buffer& buffer) {
    const Unit& unit = program_.layout.units[static_cast<size_t>(buffer.unit)];
    const bool whole = buffer.role == Role::kParamFull || buffer.role == Role::kGradFull;
    if (!whole && buffer.role != Role::kParamShard) return;
    const uint64_t elements = whole ? unit.padded_elements : unit.shard_elements;
    if (buffer.bytes == StoredBytes(buffer.dtype, elements)) return;
    Add("shard_cover", "{} has {} bytes for {} elements of {}", BufferName(buffer), buffer.bytes,
        elements, DtypeName(buffer.dtype));
  }

  void CheckOwn(std::string_view name, BufferId id, Role role) {
    if (id == kNoBuffer) return;
    if (id >= program_.buffers.size()) {
      Add("malformed", "{} is no buffer", name);
    } else if (const Role found = program_.buffers[id].role; found != role) {
      Add("malformed", "{} is a buffer for {}", name, RoleName(found));
    }
  }

  uint64_t Bytes(Role role, int unit) const {
    const auto found = of_unit_.find({role, unit});
    return found == of_unit_.end() ? 0 : found->second;
  }

  // What is spread over device, host and file holds each element of the shard once. None at all: a
  // pass will add it, or nobody needs it.
  void CheckShards(int unit) {
    const Unit& of = program_.layout.units[static_cast<size_t>(unit)];
    auto check = [&](std::string_view what, uint64_t bytes, uint64_t elements, Dtype dtype) {
      const uint64_t wanted = StoredBytes(dtype, elements);
      if (bytes == 0 || bytes == wanted) return;
      Add("shard_cover", "{} of unit {} have {} bytes for {} elements, not {}", what, unit, bytes,
          elements, wanted);
    };
    for (const StateKind kind : kMomentKinds) {
      uint64_t bytes = 0;
      for (const Home home : kHomes) {
        const auto found = states_of_unit_.find({kind, home, unit});
        bytes += found == states_of_unit_.end() ? 0 : found->second;
      }
      check(StateKindName(kind), bytes, of.owned_elements(), program_.layout.StateDtype(kind));
    }
    // Gradients that are accumulated in place are whole on the device, and so is any copy's source.
    if (program_.section(Section::kMicroStep).empty() || GradsInPlace(program_.setup)) return;
    const uint64_t grads = Bytes(Role::kGradShard, unit) + Bytes(Role::kGradHost, unit);
    check("reduced gradients", grads, GradShardElements(program_.setup, of),
          program_.setup.precision.grad_accum_dtype);
  }

  const Program& program_;
  Violations& violations_;
  // Bytes of persistent buffers, optimizer states apart.
  std::map<std::pair<Role, int32_t>, uint64_t> of_unit_;
  std::map<std::tuple<StateKind, Home, int32_t>, uint64_t> states_of_unit_;
};

// ---- tags ----

bool HasPhase(Section section, Phase phase) {
  switch (section) {
    case Section::kInit:
    case Section::kLoad:
      return phase == Phase::kInit;
    case Section::kMicroStep:
      return phase == Phase::kForward || phase == Phase::kBackward;
    case Section::kOptimizerStep:
    case Section::kDrain:
      return phase == Phase::kStep;
    case Section::kEval:
    case Section::kGenerate:
    case Section::kDecode:
      return phase == Phase::kForward;
    case Section::kSave:
      return phase == Phase::kSave;
  }
  return false;
}

void CheckTags(const Program& program, Violations& violations) {
  const uint8_t kinds = MicroStepKinds(program.setup.batch.grad_accum);
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    const auto add = [&]<typename... Args>(fmt::format_string<Args...> what, Args&&... args) {
      violations.Add("illegal_tag", site, what, std::forward<Args>(args)...);
    };
    if (!HasPhase(site.section, instruction.phase)) {
      add("{} has no phase {}", SectionName(site.section), PhaseName(instruction.phase));
    }
    if (instruction.layer < -2 || instruction.layer > program.model.layers) {
      add("layer {} of {}", instruction.layer, program.model.layers);
    }
    if (site.section != Section::kMicroStep && instruction.when != kEvery) {
      add("only micro_step tells kinds of micro-steps apart");
    } else if ((instruction.when & ~kEvery) != 0 || !RunsIn(instruction, site.section, kinds)) {
      add("no micro-step of {} is of its kinds", program.setup.batch.grad_accum);
    }
  });
}

// What belongs to a later stage.
void CheckStage(const Program& program, DraftStage stage, Violations& violations) {
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    const bool allocates = std::holds_alternative<Alloc>(instruction.op);
    const bool orders = std::holds_alternative<RecordEvent>(instruction.op) ||
                        std::holds_alternative<WaitEvent>(instruction.op);
    if ((allocates && stage < DraftStage::kLifetimes) || (orders && stage < DraftStage::kEvents)) {
      violations.Add("malformed", site, "its stage has not come yet");
    }
  });
}

// ---- memory in list order ----

// For one rank. Ranges move with its coordinates, so the first and the last rank stand for all.
class ListOrderCheck {
 public:
  ListOrderCheck(const Program& program, DraftStage stage, int rank, Violations& violations)
      : program_(program),
        stage_(stage),
        rank_(rank),
        at_(program.axes().Of(rank)),
        violations_(violations),
        states_(program.buffers.size()),
        left_to_micro_step_(stage >= DraftStage::kLifetimes
                                ? LeftToMicroStep(program)
                                : std::vector<bool>(program.buffers.size(), false)) {}

  void Run() {
    NoteWritesOfPersistent();
    for (int s = 0; s < kSections; ++s) {
      const auto section = static_cast<Section>(s);
      if (section != Section::kMicroStep) {
        RunList(section, kEvery);
        continue;
      }
      for (const When kind : {kOnly, kFirst, kMiddle, kLast}) {
        if (MicroStepKinds(program_.setup.batch.grad_accum) & kind) RunList(section, kind);
      }
    }
  }

 private:
  enum class Life : uint8_t { kNever, kLive, kFreed };
  struct State {
    Life life = Life::kNever;
    ByteSet written;  // of a transient buffer so far; of a persistent one anywhere
  };

  void NoteWritesOfPersistent() {
    for (const BufferId id :
         {program_.state_buffer, program_.state_host_buffer, program_.tokens_host_buffer}) {
      if (id != kNoBuffer) states_[id].written.Add(0, program_.buffers[id].bytes);  // by the engine
    }
    ForEachInstruction(program_, [&](const Instruction& instruction, Site) {
      if (ChangesLife(instruction)) return;
      ForEachAccess(program_, instruction, [&](const Ref& ref, ArgMode mode) {
        if (program_.buffers[ref.buffer].persistent && Writes(mode)) NoteWrite(ref);
      });
    });
  }

  static bool ChangesLife(const Instruction& instruction) {
    return std::holds_alternative<Alloc>(instruction.op) ||
           std::holds_alternative<Free>(instruction.op);
  }

  void RunList(Section section, uint8_t kind) {
    const bool micro_step = section == Section::kMicroStep;
    ForgetLives(micro_step && (kind & kTakesFromMicroStep) != 0);
    int64_t index = -1;
    for (const Instruction& instruction : program_.section(section)) {
      site_ = {section, ++index};
      if (!RunsIn(instruction, section, kind)) continue;
      if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
        RunAlloc(alloc->buffer);
      } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
        RunFree(free->buffer);
      } else {
        RunAccesses(instruction);
      }
    }
    if (stage_ < DraftStage::kLifetimes) return;
    const bool leaves = micro_step && (kind & kLeavesToMicroStep) != 0;
    for (const BufferId id : touched_) {
      if (states_[id].life != Life::kLive || (leaves && left_to_micro_step_[id])) continue;
      Add("leak", id, "is never freed");
    }
  }

  // `takes`: but for what the micro-step before left.
  void ForgetLives(bool takes) {
    std::vector<BufferId> left;
    for (const BufferId id : touched_) {
      if (takes && states_[id].life == Life::kLive && left_to_micro_step_[id]) {
        left.push_back(id);
        continue;
      }
      states_[id].life = Life::kNever;
      states_[id].written.Clear();
    }
    touched_ = std::move(left);
  }

  void RunAlloc(BufferId id) {
    const bool persistent = program_.buffers[id].persistent;
    if (persistent && site_.section != Section::kInit) {
      Add("persistent_alloc", id, "is persistent: init allocates it");
    }
    if (persistent ? !allocated_.insert(id).second : states_[id].life == Life::kLive) {
      Add("double_alloc", id, "is allocated already");
    }
    if (!persistent) Begin(id);
  }

  void RunFree(BufferId id) {
    if (program_.buffers[id].persistent) return Add("persistent_freed", id, "is persistent");
    State& state = states_[id];
    if (state.life == Life::kFreed) Add("double_free", id, "is freed already");
    if (state.life == Life::kNever) Add("use_before_alloc", id, "is freed before any use");
    state.life = Life::kFreed;
    state.written.Clear();
  }

  void RunAccesses(const Instruction& instruction) {
    // Reads first: an instruction that reads what it writes must find it written.
    ForEachAccess(program_, instruction, [&](const Ref& ref, ArgMode mode) {
      Touch(ref.buffer);
      if (Reads(mode)) CheckWritten(ref);
    });
    ForEachAccess(program_, instruction, [&](const Ref& ref, ArgMode mode) {
      if (Writes(mode)) NoteWrite(ref);
    });
  }

  void Begin(BufferId id) {
    State& state = states_[id];
    if (state.life == Life::kNever) touched_.push_back(id);
    state.life = Life::kLive;
    state.written.Clear();
  }

  void Touch(BufferId id) {
    if (program_.buffers[id].persistent) {
      const bool known = stage_ < DraftStage::kLifetimes || allocated_.count(id);
      if (!known) Add("use_before_alloc", id, "is not allocated");
      return;
    }
    const Life life = states_[id].life;
    if (life == Life::kFreed) Add("use_after_free", id, "has been freed");
    if (life != Life::kNever) return;
    if (stage_ >= DraftStage::kLifetimes) Add("use_before_alloc", id, "is not allocated");
    Begin(id);
  }

  void CheckWritten(const Ref& ref) {
    const bool persistent = program_.buffers[ref.buffer].persistent;
    if (persistent && stage_ < DraftStage::kReachable) return;  // a later pass may write it
    const uint64_t begin = ref.begin(at_), end = begin + ref.bytes;
    const uint64_t missing = states_[ref.buffer].written.FirstMissing(begin, end);
    if (missing == end) return;
    violations_.Add("uninitialised_read", site_, "{}: rank {} reads byte {}, which nothing {}",
                    FormatRef(program_, ref), rank_, missing,
                    persistent ? "ever writes" : "wrote before");
  }

  void NoteWrite(const Ref& ref) {
    const uint64_t begin = ref.begin(at_);
    states_[ref.buffer].written.Add(begin, begin + ref.bytes);
  }

  void Add(std::string_view rule, BufferId id, std::string_view what) {
    violations_.Add(rule, site_, "{} {}", BufferName(program_.buffers[id]), what);
  }

  const Program& program_;
  const DraftStage stage_;
  const int rank_;
  const Coordinates at_;
  Violations& violations_;
  std::vector<State> states_;
  const std::vector<bool> left_to_micro_step_;  // by buffer
  std::vector<BufferId> touched_;               // transient buffers of this list
  std::set<BufferId> allocated_;                // persistent ones
  Site site_;
};

}  // namespace

std::vector<Violation> CheckDraft(const Program& program, DraftStage stage, int limit) {
  Violations violations(program, limit);
  if (!CheckWellFormed(program, violations)) return violations.Take();
  CheckLayout(program, violations);
  BufferTableCheck(program, violations).Run();
  CheckTags(program, violations);
  CheckStage(program, stage, violations);
  CheckInstructions(program, violations, stage >= DraftStage::kReachable);
  ListOrderCheck(program, stage, 0, violations).Run();
  if (const int last = program.setup.batch.world_size - 1; last > 0) {
    ListOrderCheck(program, stage, last, violations).Run();
  }
  if (stage >= DraftStage::kEvents) CheckEvents(program, violations);
  if (stage >= DraftStage::kPlaced) CheckBuffers(program, violations);
  return violations.Take();
}

}  // namespace zeroplan
