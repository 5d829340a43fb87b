// Implementation of ForEachAccess; included by program.h.
#pragma once

namespace zeroplan {

template <typename... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overload(Fs...) -> Overload<Fs...>;

template <typename Visit>
void ForEachAccess(const Program& program, const Instruction& instruction, Visit&& visit) {
  auto whole = [&](BufferId id) { return Ref{id, 0, program.buffers[id].bytes, 0}; };
  std::visit(Overload{
                 [&](const LaunchKernel& launch) {
                   for (int i = 0; i < launch.arg_count; ++i) {
                     const Ref& ref = program.refs[launch.first_arg + static_cast<uint32_t>(i)];
                     if (!ref.null()) visit(ref, AccessMode(launch.kernel, i, launch.flags));
                   }
                 },
                 [&](const Collective& collective) {
                   for (const Segment& segment : program.segs(collective)) {
                     visit(segment.src, ArgMode::kIn);
                     // In place, what ranks write of their shards lies within the source.
                     const bool owned = collective.kind == CollectiveKind::kReduceToOwners &&
                                        segment.dst.buffer == segment.src.buffer;
                     visit(owned ? segment.src : segment.dst, ArgMode::kOut);
                   }
                 },
                 [&](const Copy& copy) {
                   visit(copy.src, ArgMode::kIn);
                   visit(copy.dst, ArgMode::kOut);
                 },
                 [&](const FileIo& io) {
                   visit(io.host, io.write ? ArgMode::kIn : ArgMode::kOut);
                   if (!io.file.null()) visit(io.file, io.write ? ArgMode::kOut : ArgMode::kIn);
                 },
                 [&](const Alloc& alloc) { visit(whole(alloc.buffer), ArgMode::kOut); },
                 [&](const Free& free) { visit(whole(free.buffer), ArgMode::kOut); },
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

}  // namespace zeroplan
