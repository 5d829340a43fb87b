#include "core/program/memory_check.h"

#include <fmt/format.h>

#include <utility>

#include "core/program/format.h"
#include "core/program/step_order.h"

namespace zeroplan {

MemoryCheck::MemoryCheck(const Program& program, int rank, const HappensBefore& order,
                         Violations& violations)
    : program_(program),
      rank_(rank),
      at_(program.axes().Of(rank)),
      order_(order),
      violations_(violations),
      left_to_micro_step_(LeftToMicroStep(program)) {
  states_.resize(program.buffers.size());
  for (const BufferId id :
       {program.state_buffer, program.state_host_buffer, program.tokens_host_buffer}) {
    if (id != kNoBuffer) states_[id].set_from_outside = true;
  }
}

void MemoryCheck::Run(const Instruction& instruction, Moment moment, Site site) {
  auto accesses = [&] {
    // Reads first: an instruction that reads what it writes must find it written.
    ForEachAccess(program_, instruction, [&](const Ref& ref, ArgMode mode) {
      if (Reads(mode)) CheckWritten(ref, states_[ref.buffer], site);
    });
    ForEachAccess(program_, instruction,
                  [&](const Ref& ref, ArgMode mode) { CheckAccess(ref, mode, moment, site); });
  };
  std::visit(Overload{
                 [&](const Alloc& alloc) { RunAlloc(alloc.buffer, moment, site); },
                 [&](const Free& free) { RunFree(free.buffer, moment, site); },
                 [&](const LaunchKernel&) { accesses(); },
                 [&](const Collective&) { accesses(); },
                 [&](const Copy&) { accesses(); },
                 [&](const FileIo&) { accesses(); },
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

void MemoryCheck::RunAlloc(BufferId id, Moment moment, Site site) {
  State& state = states_[id];
  const Buffer& buffer = program_.buffers[id];
  if (state.life == Life::kLive) {
    violations_.Add("double_alloc", site,
                    fmt::format("{} is live since {}", BufferName(buffer),
                                FormatSite(program_, state.allocated_site)));
    return;
  }
  if (buffer.persistent && site.section != Section::kInit) {
    violations_.Add("persistent_alloc", site,
                    fmt::format("{} is persistent: init allocates it", BufferName(buffer)));
  }
  state.life = Life::kLive;
  state.allocated = moment;
  state.allocated_site = site;
  state.touches.clear();
  state.written.Clear();
  if (!buffer.persistent) live_transients_.push_back(id);

  auto check_owner = [&](const ArenaMap::Piece& piece) {
    const Buffer& other = program_.buffers[piece.owner];
    if (piece.live) {
      violations_.Add("overlap", site,
                      fmt::format("{} at [{}, {}) lies over {} at [{}, {}), which is live",
                                  BufferName(buffer), buffer.offset, buffer.offset + buffer.bytes,
                                  BufferName(other), other.offset, other.offset + other.bytes));
    } else if (!order_.Ordered(piece.freed, moment.stream)) {
      violations_.Add("overlap", site,
                      fmt::format("{} takes memory of {}, whose free is not ordered before: {}",
                                  BufferName(buffer), BufferName(other),
                                  FormatSite(program_, piece.freed_site)));
    }
  };
  arenas_[static_cast<size_t>(buffer.space)].Take(buffer.offset, buffer.offset + buffer.bytes, id,
                                                  check_owner);
}

void MemoryCheck::RunFree(BufferId id, Moment moment, Site site) {
  State& state = states_[id];
  const Buffer& buffer = program_.buffers[id];
  if (buffer.persistent) {
    violations_.Add("persistent_freed", site, fmt::format("{} is persistent", BufferName(buffer)));
    return;
  }
  if (state.life != Life::kLive) {
    violations_.Add(state.life == Life::kNever ? "use_before_alloc" : "double_free", site,
                    fmt::format("{} is not live", BufferName(buffer)));
    return;
  }
  if (!order_.Ordered(state.allocated, moment.stream)) {
    violations_.Add("use_before_alloc", site,
                    fmt::format("the free of {} is not ordered after its alloc: {}",
                                BufferName(buffer), FormatSite(program_, state.allocated_site)));
  }
  for (const Touch& touch : state.touches) {
    if (order_.Ordered(touch.moment, moment.stream)) continue;
    violations_.Add("use_after_free", site,
                    fmt::format("{} is freed without waiting for {}", BufferName(buffer),
                                FormatSite(program_, touch.site)));
    break;
  }
  state.life = Life::kFreed;
  state.freed_site = site;
  state.touches.clear();
  std::erase(live_transients_, id);
  arenas_[static_cast<size_t>(buffer.space)].Release(buffer.offset, buffer.offset + buffer.bytes,
                                                     id, moment, site);
}

void MemoryCheck::CheckWritten(const Ref& ref, const State& state, Site site) {
  if (state.set_from_outside || state.life != Life::kLive) return;
  const uint64_t begin = ref.begin(at_);
  const uint64_t missing = state.written.FirstMissing(begin, begin + ref.bytes);
  if (missing >= begin + ref.bytes) return;
  violations_.Add("uninitialised_read", site,
                  fmt::format("{} is read, but nothing wrote its byte {} since its alloc (rank {})",
                              FormatRef(program_, ref), missing, rank_));
}

void MemoryCheck::CheckAccess(const Ref& ref, ArgMode mode, Moment moment, Site site) {
  State& state = states_[ref.buffer];
  const std::string_view rule = state.life == Life::kFreed ? "use_after_free" : "use_before_alloc";
  if (state.life != Life::kLive) {
    violations_.Add(rule, site, fmt::format("{} is not live here", FormatRef(program_, ref)));
    return;
  }
  if (!order_.Ordered(state.allocated, moment.stream)) {
    violations_.Add(rule, site,
                    fmt::format("{} may be used before its alloc: {}", FormatRef(program_, ref),
                                FormatSite(program_, state.allocated_site)));
  }
  const uint64_t begin = ref.begin(at_);
  CheckRaces(ref, state, {begin, begin + ref.bytes, Writes(mode), moment, site});
  if (Writes(mode)) state.written.Add(begin, begin + ref.bytes);
}

void MemoryCheck::CheckRaces(const Ref& ref, State& state, const Touch& now) {
  if (now.begin >= now.end) return;
  size_t kept = 0;
  for (size_t i = 0; i < state.touches.size(); ++i) {
    const Touch& old = state.touches[i];
    const bool ordered = order_.Ordered(old.moment, now.moment.stream);
    if (!ordered && (old.write || now.write) && old.begin < now.end && now.begin < old.end) {
      violations_.Add("race", now.site,
                      fmt::format("{} may be {} while it is {} by {}", FormatRef(program_, ref),
                                  now.write ? "written" : "read", old.write ? "written" : "read",
                                  FormatSite(program_, old.site)));
    }
    // What comes after `now` also comes after `old`, so where `now` conflicts with all that `old`
    // conflicts with, `old` need not be kept.
    const bool covered =
        ordered && now.begin <= old.begin && old.end <= now.end && (now.write || !old.write);
    if (!covered) state.touches[kept++] = old;
  }
  state.touches.resize(kept);
  state.touches.push_back(now);
}

void MemoryCheck::EndSection(bool leaves) {
  std::vector<BufferId> left;
  for (const BufferId id : live_transients_) {
    if (leaves && left_to_micro_step_[id]) {
      left.push_back(id);
      continue;
    }
    State& state = states_[id];
    const Buffer& buffer = program_.buffers[id];
    violations_.Add("leak", state.allocated_site,
                    fmt::format("{} is not freed in its section", BufferName(buffer)));
    state.life = Life::kNever;
    arenas_[static_cast<size_t>(buffer.space)].Release(buffer.offset, buffer.offset + buffer.bytes,
                                                       id, state.allocated, state.allocated_site);
  }
  live_transients_ = std::move(left);
}

}  // namespace zeroplan
