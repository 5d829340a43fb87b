#include "planner/report/report_details.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/units.h"
#include "planner/report/report_rows.h"

namespace zeroplan {

std::string PhasePeaks(const ChoiceEstimate& choice) {
  std::string text = "Peak of each phase on one GPU (without runtime), largest buffers first:\n";
  for (int p = 0; p < kPhases; ++p) {
    const PhasePeak& peak = choice.memory.phases[static_cast<size_t>(p)];
    if (peak.bytes == 0) continue;
    std::vector<std::string> parts;
    for (const Culprit& culprit : peak.culprits) {
      parts.push_back(fmt::format("{} {}", CulpritName(culprit), FormatBytes(culprit.bytes)));
    }
    text += Wrap(fmt::format("  {:<9}{:>9}:  {}", PhaseName(static_cast<Phase>(p)),
                             FormatBytes(peak.bytes), fmt::join(parts, ", ")),
                 22);
  }
  return text;
}

std::string StreamTimes(const SectionTime& time) {
  std::string text = "Each stream in one step; what compute waits for it is the exposed part:\n";
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    const double busy = time.busy(stream);
    if (busy == 0) continue;
    text += fmt::format("  {:<15}busy {:>9} ({:>5.1f} %)", StreamName(stream), FormatSeconds(busy),
                        100 * busy / time.total_seconds);
    if (stream != Stream::kCompute) {
      text += fmt::format("   exposed {:>9}", FormatSeconds(time.exposed(stream)));
    }
    text += '\n';
  }
  return text;
}

std::string ModelLine(const ModelSpec& model, int64_t seq_len) {
  return fmt::format(
      "{}: {} parameters, {} layers, hidden {}, {} heads, vocabulary {}, sequence {}", model.name,
      FormatCount(model.ParamCount()), model.layers, model.hidden, model.heads, model.vocab,
      seq_len);
}

std::string ClusterLine(const Cluster& cluster) {
  const std::string host =
      cluster.host_capacity_bytes
          ? fmt::format(", {} of host memory a node", FormatBytes(*cluster.host_capacity_bytes))
          : "";
  const std::string nodes =
      cluster.nodes() == 1 ? "one node"
                           : fmt::format("{} nodes of {}", cluster.nodes(), cluster.gpus_per_node);
  return fmt::format("{} x {}, {}, {} a GPU{}", cluster.gpus, cluster.gpu_name, nodes,
                     FormatBytes(cluster.gpu_capacity_bytes), host);
}

std::string BatchLine(const TrainSetup& setup) {
  const BatchSpec& batch = setup.batch;
  const auto tokens = static_cast<uint64_t>(batch.global_batch() * batch.seq_len);
  return fmt::format("{}, micro-batch {}, {} micro-step{} a step: {} sequence{}, {} tokens",
                     DtypeName(setup.precision.dtype), batch.micro_batch, batch.grad_accum,
                     batch.grad_accum == 1 ? "" : "s", batch.global_batch(),
                     batch.global_batch() == 1 ? "" : "s", FormatCount(tokens));
}

}  // namespace zeroplan
