// How fast the planner searches: candidates a second on one core, and what became of them.
//
//   search_benchmark [--repeat 5]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

struct Case {
  const char* name;
  const char* model;
  const char* hardware;
  int gpus;
  bool fewer_gpus;
  uint64_t gpu_bytes;    // 0: the profile's
  int64_t global_batch;  // 0: not given
};

constexpr Case kCases[] = {
    {"10B, one GPU held to 32 GB", "gpt2-10b", "hgx-h200", 1, false, 32'000'000'000, 0},
    {"1.5B, 8 GPUs", "gpt2-xl", "hgx-h200", 8, false, 0, 0},
    {"6.7B, 8 GPUs or fewer", "gpt3-6.7b", "hgx-h200", 8, true, 0, 0},
    {"10B, 64 GPUs or fewer", "gpt2-10b", "hgx-h200", 64, true, 0, 0},
    {"13B, 512 GPUs, batch 4096", "gpt3-13b", "hgx-h200", 512, false, 0, 4096},
};

SearchResult RunCase(const Case& c) {
  const HardwareProfile hardware = LoadProfile(c.hardware);
  SearchInputs inputs;
  inputs.model = LoadModel(c.model);
  inputs.base.batch.seq_len = inputs.model.positions;
  const int per_node = static_cast<int>(hardware.node.gpus.value);
  inputs.space = DefaultSpace(inputs.model, c.gpus, per_node, c.fewer_gpus);
  if (c.global_batch > 0) SetBatches(inputs.space, c.global_batch, inputs.model.positions);
  inputs.lower.backend = Backend::kCuda;
  std::vector<CostModel> costs;
  costs.reserve(inputs.space.gpus.size());
  for (int gpus : inputs.space.gpus) {
    Cluster cluster;
    cluster.hardware = hardware.name;
    cluster.gpus = gpus;
    cluster.gpus_per_node = std::min(gpus, per_node);
    cluster.gpu_capacity_bytes =
        c.gpu_bytes > 0 ? c.gpu_bytes : static_cast<uint64_t>(hardware.gpu.usable_memory.value);
    cluster.host_capacity_bytes = static_cast<uint64_t>(hardware.node.host_memory.value);
    cluster.runtime_bytes = RuntimeBytes(hardware, gpus);
    cluster.communicator_bytes = CommunicatorBytes(hardware, gpus);
    costs.emplace_back(hardware, ClusterShape{gpus, cluster.gpus_per_node});
    inputs.clusters.push_back({cluster, &costs.back()});
  }
  return Search(inputs);
}

void Print(const Case& c, int repeat) {
  std::vector<double> seconds;
  SearchResult result;
  for (int i = 0; i < repeat; ++i) {
    result = RunCase(c);
    seconds.push_back(result.stats.seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const SearchStats& s = result.stats;
  fmt::print("{:<28}{:>10}{:>12}{:>11}{:>8}{:>9}{:>9.0f}{:>12}\n", c.name, s.candidates,
             s.cut_by_memory, s.cut_by_score, s.judged, s.lowered, 1e3 * median,
             FormatCount(static_cast<uint64_t>(static_cast<double>(s.candidates) / median)));
  if (!result.best) {
    fmt::print("  nothing fits\n");
    return;
  }
  const StageBest& best = result.stages[*result.best];
  fmt::print("  best: {}, micro-batch {} x {}, {:.0f} tokens/s, {}\n",
             SetupLabel(best.estimate.setup), best.candidate->micro_batch,
             best.candidate->grad_accum, *best.estimate.time.tokens_per_second,
             FormatBytes(best.estimate.footprint.gpu_total()));
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  int repeat = 5;
  if (argc == 3 && std::string(argv[1]) == "--repeat") repeat = std::max(1, std::atoi(argv[2]));
  fmt::print(
      "Search on one core, median of {}. Candidates: all; cut by their memory bound; cut by\n"
      "their score bound; judged by a lowered program; programs lowered.\n\n",
      repeat);
  fmt::print("{:<28}{:>10}{:>12}{:>11}{:>8}{:>9}{:>9}{:>12}\n", "", "candidates", "cut memory",
             "cut score", "judged", "lowered", "ms", "configs/s");
  for (const zeroplan::Case& c : zeroplan::kCases) zeroplan::Print(c, repeat);
}
