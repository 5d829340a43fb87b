#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/choices.h"
#include "planner/report.h"
#include "planner/report_rows.h"

namespace zeroplan {
namespace {

constexpr const char* kRed = "\x1b[31m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kReset = "\x1b[0m";

struct Column {
  const char* title;
  int width;
  bool left;
};
constexpr Column kColumns[] = {
    {"ZeRO", 4, true},     {"opt", 4, true},      {"param", 5, true},  {"recomp", 6, true},
    {"params", 6, false},  {"grads", 5, false},   {"optim", 5, false}, {"activ", 5, false},
    {"buffers", 7, false}, {"runtime", 7, false}, {"total", 5, false}, {"host", 5, false},
    {"nvme", 5, false},    {"comm", 5, false},    {"pcie", 5, false},  {"fits", 4, false}};

std::string Paint(const std::string& text, const char* code, bool colour) {
  return colour ? code + text + kReset : text;
}

std::string Line(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    if (i > 0) line += ' ';
    line += kColumns[i].left ? fmt::format("{:<{}}", cells[i], kColumns[i].width)
                             : fmt::format("{:>{}}", cells[i], kColumns[i].width);
  }
  return line;
}

// Two lines: what groups of columns have in common, then their names.
std::string Header(const ByteUnit& unit, bool colour) {
  size_t gpu_begin = 0, gpu_end = 0;
  std::vector<std::string> titles;
  for (size_t i = 0, at = 0; i < std::size(kColumns); ++i) {
    titles.emplace_back(kColumns[i].title);
    if (i == 4) gpu_begin = at;
    if (i == 11) gpu_end = at;
    at += static_cast<size_t>(kColumns[i].width) + 1;
  }
  std::string groups = fmt::format("     {:<{}}", "offload to", gpu_begin - 5);
  const std::string gpu = fmt::format(" {} on one GPU at its peak ", unit.name);
  groups += fmt::format("{:-^{}}", gpu, gpu_end - 1 - gpu_begin);
  groups += fmt::format(" {:-^11} {:-^11}", fmt::format(" {}/node ", unit.name),
                        fmt::format(" {}/step ", unit.name));
  return groups + '\n' + Paint(Line(titles), kBold, colour) + '\n';
}

std::string RecomputeName(int every) {
  if (every == 0) return "none";
  return every == 1 ? "full" : fmt::format("full/{}", every);
}

std::string Row(const ChoiceEstimate& choice, const ByteUnit& unit, bool colour) {
  auto bytes = [&](uint64_t value) { return ByteCell(value, unit); };
  const ZeroConfig& zero = choice.setup.zero;
  std::string line = Line(
      {std::to_string(zero.stage), std::string(OffloadDeviceName(zero.offload_optimizer.device)),
       std::string(OffloadDeviceName(zero.offload_param.device)),
       RecomputeName(choice.setup.recompute.every), bytes(choice.memory.of(MemoryClass::kParams)),
       bytes(choice.memory.of(MemoryClass::kGrads)),
       bytes(choice.memory.of(MemoryClass::kOptimizer)),
       bytes(choice.memory.of(MemoryClass::kActivations)),
       bytes(choice.memory.of(MemoryClass::kBuffers)), bytes(choice.runtime_bytes),
       bytes(choice.gpu_total_bytes), bytes(choice.host.total()), bytes(choice.nvme_bytes),
       bytes(choice.traffic.collective_bytes), bytes(choice.traffic.pcie_bytes()), ""});
  line.resize(line.size() - 4);
  return line + Paint(choice.fits ? " yes" : "  no", choice.fits ? kGreen : kRed, colour) + '\n';
}

std::string Headline(const Estimate& estimate, bool colour) {
  const ModelSpec& model = estimate.model;
  const Cluster& cluster = estimate.cluster;
  const TrainSetup& setup = estimate.choices.front().setup;
  std::string text = Wrap(
      fmt::format("{}: {} parameters, {} layers, hidden {}, {} heads, vocabulary {}, sequence {}",
                  model.name, FormatCount(model.ParamCount()), model.layers, model.hidden,
                  model.heads, model.vocab, estimate.seq_len),
      2);
  if (colour) text = kBold + text.substr(0, text.size() - 1) + kReset + '\n';
  const std::string host =
      cluster.host_capacity_bytes
          ? fmt::format(", {} of host memory a node", FormatBytes(*cluster.host_capacity_bytes))
          : "";
  const std::string nodes =
      cluster.nodes() == 1 ? "one node"
                           : fmt::format("{} nodes of {}", cluster.nodes(), cluster.gpus_per_node);
  text += Wrap(fmt::format("{} x {}, {}, {} a GPU{}", cluster.gpus, cluster.gpu_name, nodes,
                           FormatBytes(cluster.gpu_capacity_bytes), host),
               2);
  const auto tokens = static_cast<uint64_t>(setup.batch.global_batch() * setup.batch.seq_len);
  text += Wrap(
      fmt::format("{}, micro-batch {}, {} micro-step{} a step: {} sequence{}, {} tokens",
                  DtypeName(setup.precision.dtype), setup.batch.micro_batch, setup.batch.grad_accum,
                  setup.batch.grad_accum == 1 ? "" : "s", setup.batch.global_batch(),
                  setup.batch.global_batch() == 1 ? "" : "s", FormatCount(tokens)),
      2);
  return text + '\n';
}

// Device peaks of one choice by phase, with the buffers that make them.
std::string Phases(const ChoiceEstimate& choice) {
  std::string text = "\nPeak of each phase on one GPU (without runtime), largest buffers first:\n";
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

}  // namespace

std::string ReportTable(const Estimate& estimate, const TableStyle& style) {
  const ByteUnit unit = CommonUnit(estimate);
  std::string text = Headline(estimate, style.colour) + Header(unit, style.colour);
  for (const ChoiceEstimate& choice : estimate.choices) text += Row(choice, unit, style.colour);
  if (estimate.choices.size() == 1) text += Phases(estimate.choices.front());

  bool first = true;
  for (const ChoiceEstimate& choice : estimate.choices) {
    if (choice.fits) continue;
    if (first) text += "\nWhy not:\n";
    first = false;
    text += Wrap(fmt::format("  {}: {}", SetupLabel(choice.setup), choice.why_not), 4);
  }
  text += '\n';
  if (!style.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(style.assumed, ", ")), 2);
  }
  for (const std::string& note : style.notes) text += Wrap(note, 2);
  return text;
}

}  // namespace zeroplan
