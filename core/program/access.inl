// Implementation of ForEachAccess and ForEachTouched; included by program.h.
#pragma once

namespace zeroplan {

template <typename... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overload(Fs...) -> Overload<Fs...>;

// Calls visit(ref, mode), where mode() is an ArgMode: who does not ask does not pay for the look-up.
template <typename Visit>
void ForEachRef(const Program& program, const Instruction& instruction, Visit&& visit) {
  constexpr auto in = [] { return ArgMode::kIn; };
  constexpr auto out = [] { return ArgMode::kOut; };
  auto whole = [&](BufferId id) { return Ref{id, 0, program.buffers[id].bytes, 0}; };
  std::visit(Overload{
                 [&](const LaunchKernel& launch) {
                   for (int i = 0; i < launch.arg_count; ++i) {
                     const Ref& ref = program.refs[launch.first_arg + static_cast<uint32_t>(i)];
                     if (ref.null()) continue;
                     visit(ref, [&] { return AccessMode(launch.kernel, i, launch.flags); });
                   }
                 },
                 [&](const Collective& collective) {
                   for (const Segment& segment : program.segs(collective)) {
                     visit(segment.src, in);
                     // In place, what ranks write of their shards lies within the source.
                     const bool owned = collective.kind == CollectiveKind::kReduceToOwners &&
                                        segment.dst.buffer == segment.src.buffer;
                     visit(owned ? segment.src : segment.dst, out);
                   }
                 },
                 [&](const Copy& copy) {
                   visit(copy.src, in);
                   visit(copy.dst, out);
                 },
                 [&](const FileIo& io) {
                   io.write ? visit(io.host, in) : visit(io.host, out);
                   if (!io.file.null()) io.write ? visit(io.file, out) : visit(io.file, in);
                 },
                 [&](const Alloc& alloc) { visit(whole(alloc.buffer), out); },
                 [&](const Free& free) { visit(whole(free.buffer), out); },
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

template <typename Visit>
void ForEachAccess(const Program& program, const Instruction& instruction, Visit&& visit) {
  ForEachRef(program, instruction, [&](const Ref& ref, auto mode) { visit(ref, mode()); });
}

template <typename Visit>
void ForEachTouched(const Program& program, const Instruction& instruction, Visit&& visit) {
  ForEachRef(program, instruction, [&](const Ref& ref, auto) { visit(ref.buffer); });
}

}  // namespace zeroplan
