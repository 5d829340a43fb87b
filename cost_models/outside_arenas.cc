#include "cost_models/outside_arenas.h"

#include "core/program/communicators.h"
#include "core/program/replay.h"

namespace zeroplan {

OutsideArenas OutsideArenasOf(const Program& program) {
  OutsideArenas outside;
  outside.communicators = static_cast<int>(CommunicatorsOf(program).size());
  if (program.backend != Backend::kCuda) return outside;
  const ReplayCount replayed = CountReplayed(program);
  outside.graph_bytes = static_cast<uint64_t>(replayed.graphs) * kGraphBytes +
                        static_cast<uint64_t>(replayed.nodes) * kGraphNodeBytes;
  return outside;
}

}  // namespace zeroplan
