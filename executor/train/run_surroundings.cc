#include "executor/train/run_surroundings.h"

#include <fmt/format.h>

#include "core/program/chrome_trace.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/save_room.h"
#include "executor/checkpoint/shard_writer.h"

namespace zeroplan {

void CheckRunRoom(const Program& program, const TrainOptions& options, int64_t steps, int64_t done,
                  int ranks_here) {
  SaveDemand demand;
  demand.shard_bytes = ShardFileBytes(program.layout);
  demand.final_bytes = HfWeightsBytes(*program.layout.tensors, options.final_weights.dtype);
  // At the end, and at the multiples of an interval before it.
  demand.saves = 1;
  const auto add = [&](int64_t every) {
    if (every > 0 && steps > done) demand.saves += (steps - 1) / every - done / every;
  };
  add(options.save_every);
  demand.keep = options.keep;
  if (options.keep_best) {
    add(options.validate_every);
    ++demand.keep;
  }
  const int here = options.backend == Backend::kCpu ? program.setup.batch.world_size : ranks_here;
  demand.swap_bytes =
      program.arena_bytes[static_cast<size_t>(Space::kFile)] * static_cast<uint64_t>(here);
  demand.swap_dir = options.swap_dir;
  CheckSaveRoom(options.save_dir, demand);
}

void WriteTrace(const Program& program, const Engine& engine, const TrainOptions& options) {
  ChromeTrace trace(program);
  for (int i = 0; i < engine.local_rank_count(); ++i) {
    const int rank = engine.first_local_rank() + i;
    std::vector<TracedInstruction> issued;
    for (const ExecutedInstruction& executed : engine.ExecutedTrace(rank)) {
      issued.push_back({executed.section, executed.index});
    }
    GiveTimes(program, engine.SpanTrace(rank), &issued);
    trace.AddProcess(fmt::format("rank {}", rank), issued);
  }
  if (options.add_to_trace) options.add_to_trace(trace);
  WriteTraceFile(options.trace_file, trace, "--trace");
}

}  // namespace zeroplan
