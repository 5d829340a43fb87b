#include "cli/run/train/watch_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/units.h"

namespace zeroplan {
namespace {

constexpr size_t kAxis = 10;   // columns of a curve's numbers
constexpr size_t kNames = 12;  // columns before a bar

// At most 7 characters.
std::string Label(double value) {
  return value >= 1000 ? FormatCount(static_cast<uint64_t>(std::llround(value)))
                       : fmt::format("{:.4g}", value);
}

// Values as columns of a curve: rows from the top, each `values.size()` wide, a '*' where the value
// is; all between the smallest and the largest.
std::vector<std::string> Curve(const std::vector<double>& values, size_t rows) {
  std::vector<std::string> lines;
  if (values.empty() || rows < 2) return lines;
  const auto [low_at, high_at] = std::minmax_element(values.begin(), values.end());
  const double low = *low_at, high = *high_at;
  const double span = high > low ? high - low : 1;
  std::vector<std::string> drawn(rows, std::string(values.size(), ' '));
  for (size_t i = 0; i < values.size(); ++i) {
    const double share = high > low ? (values[i] - low) / span : 0.5;
    const auto row = static_cast<size_t>(std::lround((1 - share) * static_cast<double>(rows - 1)));
    drawn[std::min(row, rows - 1)][i] = '*';
  }
  for (size_t r = 0; r < rows; ++r) {
    const bool labelled = r == 0 || r + 1 == rows;
    const double value = r == 0 ? high : low;
    lines.push_back(fmt::format("{:>{}} |{}", labelled ? Label(value) : "", kAxis - 2, drawn[r]));
  }
  return lines;
}

void AddCurve(std::vector<std::string>& lines, const std::string& title, const Series& series,
              size_t columns, size_t rows) {
  if (rows < 3 || series.empty() || columns <= kAxis + 8) return;
  const std::vector<double> values = series.Means(columns - kAxis);
  const std::vector<std::string> curve = Curve(values, rows - 1);
  if (curve.empty()) return;
  lines.push_back(title);
  lines.insert(lines.end(), curve.begin(), curve.end());
}

// "GPU 0 mem   [######|...] 40.1 GB of 80.0 GB  planned 60.0 GB": full as far as it is used, '|' at
// what is planned.
std::string Bar(const std::string& name, double share, const std::optional<double>& mark,
                const std::vector<LinePart>& parts, size_t columns) {
  constexpr size_t kLeast = 6, kMost = 40, kBrackets = 3;
  const size_t before = kNames + kBrackets + kLeast;
  const std::string text = JoinParts(parts, columns > before ? columns - before : 0);
  const size_t taken = kNames + kBrackets + text.size();
  const size_t width = std::clamp(columns > taken ? columns - taken : 0, kLeast, kMost);
  const auto at = [&](double of) {
    return static_cast<size_t>(std::clamp(of, 0.0, 1.0) * static_cast<double>(width));
  };
  std::string bar(at(share), '#');
  bar.resize(width, '.');
  if (mark) bar[std::min(at(*mark), width - 1)] = '|';
  return fmt::format("{:<{}}[{}] {}", name, kNames, bar, text);
}

double ShareOf(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

std::string Bytes(uint64_t part, uint64_t all) {
  return fmt::format("{} of {}", FormatBytes(part), FormatBytes(all));
}

void AddGpu(std::vector<std::string>& lines, const GpuLoad& gpu, size_t index,
            const std::optional<uint64_t>& planned, size_t columns) {
  if (gpu.used_bytes && gpu.memory_bytes) {
    std::vector<LinePart> parts = {{Bytes(*gpu.used_bytes, *gpu.memory_bytes), 0}};
    std::optional<double> mark;
    if (planned) {
      parts.push_back({fmt::format("planned {}", FormatBytes(*planned)), 1});
      mark = ShareOf(*planned, *gpu.memory_bytes);
    }
    lines.push_back(Bar(fmt::format("GPU {} mem", index),
                        ShareOf(*gpu.used_bytes, *gpu.memory_bytes), mark, parts, columns));
  }
  std::vector<LinePart> parts;
  if (gpu.busy_share) parts.push_back({fmt::format("{:.0f} %", 100 * *gpu.busy_share), 0});
  if (gpu.watts && gpu.limit_watts) {
    parts.push_back({fmt::format("{:.0f} of {:.0f} W", *gpu.watts, *gpu.limit_watts), 1});
  } else if (gpu.watts) {
    parts.push_back({fmt::format("{:.0f} W", *gpu.watts), 1});
  }
  if (gpu.clock_hz) parts.push_back({fmt::format("{:.0f} MHz", *gpu.clock_hz * 1e-6), 2});
  if (gpu.pcie_sent && gpu.pcie_received) {
    parts.push_back({fmt::format("PCIe {:.1f} GB/s out, {:.1f} in", *gpu.pcie_sent * 1e-9,
                                 *gpu.pcie_received * 1e-9),
                     3});
  }
  if (parts.empty()) return;
  lines.push_back(Bar(fmt::format("GPU {} busy", index), gpu.busy_share.value_or(0), std::nullopt,
                      parts, columns));
}

void AddHost(std::vector<std::string>& lines, const WatchState& state, size_t columns) {
  const HostLoad& host = state.load.host;
  if (host.memory_bytes > 0) {
    const uint64_t used = host.memory_bytes - std::min(host.available_bytes, host.memory_bytes);
    std::vector<LinePart> parts = {
        {Bytes(used, host.memory_bytes), 0},
        {fmt::format("this process {}", FormatBytes(host.process_bytes)), 2}};
    std::optional<double> mark;
    if (state.planned_host_bytes > 0) {
      parts.push_back({fmt::format("planned {}", FormatBytes(state.planned_host_bytes)), 1});
      mark = ShareOf(state.planned_host_bytes, host.memory_bytes);
    }
    lines.push_back(Bar("host mem", ShareOf(used, host.memory_bytes), mark, parts, columns));
  }
  if (host.cores > 0) {
    lines.push_back(Bar("host busy", host.busy_cores / host.cores, std::nullopt,
                        {{fmt::format("{:.1f} of {} cores", host.busy_cores, host.cores), 0},
                         {fmt::format("this process {:.1f}", host.process_cores), 1}},
                        columns));
  }
}

}  // namespace

void Series::Add(double value) {
  if (!std::isfinite(value)) return;
  pending_sum_ += value;
  if (++pending_count_ < per_point_) return;
  points_.push_back(pending_sum_ / static_cast<double>(pending_count_));
  pending_sum_ = 0;
  pending_count_ = 0;
  if (points_.size() < kMost) return;
  for (size_t i = 0; i < points_.size() / 2; ++i) {
    points_[i] = (points_[2 * i] + points_[2 * i + 1]) / 2;
  }
  points_.resize(points_.size() / 2);
  per_point_ *= 2;
}

std::vector<double> Series::Means(size_t most) const {
  std::vector<double> all = points_;
  if (pending_count_ > 0) all.push_back(pending_sum_ / static_cast<double>(pending_count_));
  if (all.size() <= most || most == 0) return all;
  std::vector<double> means;
  for (size_t i = 0; i < most; ++i) {
    const size_t begin = i * all.size() / most, end = (i + 1) * all.size() / most;
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += all[k];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  return means;
}

std::string DurationText(double seconds) {
  const auto s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}m{:02}s", s / 60, s % 60);
}

std::vector<LinePart> LoadParts(const MachineLoad& load) {
  std::vector<LinePart> parts;
  if (!load.gpus.empty()) {
    const GpuLoad& gpu = load.gpus.front();
    if (gpu.watts) parts.push_back({fmt::format("{:.0f} W", *gpu.watts), 3});
    if (gpu.clock_hz) parts.push_back({fmt::format("{:.0f} MHz", *gpu.clock_hz * 1e-6), 6});
    if (gpu.busy_share) parts.push_back({fmt::format("busy {:.0f}%", 100 * *gpu.busy_share), 4});
    if (gpu.pcie_sent && gpu.pcie_received) {
      parts.push_back(
          {fmt::format("PCIe {:.1f}/{:.1f} GB/s", *gpu.pcie_sent * 1e-9, *gpu.pcie_received * 1e-9),
           5});
    }
  }
  const HostLoad& host = load.host;
  if (host.memory_bytes > 0) {
    const uint64_t used = host.memory_bytes - std::min(host.available_bytes, host.memory_bytes);
    parts.push_back(
        {fmt::format("host {} of {}", FormatBytes(used), FormatBytes(host.memory_bytes)), 5});
  }
  if (host.cores > 0) {
    parts.push_back({fmt::format("{:.1f} of {} cores", host.process_cores, host.cores), 6});
  }
  return parts;
}

std::vector<std::string> WatchLines(const WatchState& state, size_t columns, size_t rows,
                                    const std::vector<std::string>& messages) {
  std::vector<std::string> head, machine;
  const double share =
      state.steps > 0 ? static_cast<double>(state.step) / static_cast<double>(state.steps) : 0;
  head.push_back(JoinParts(
      {{fmt::format("zeroplan train {} on {} rank{}", state.model, state.ranks,
                    state.ranks == 1 ? "" : "s"),
        1},
       {fmt::format("{} of {} steps", state.step, state.steps), 0},
       {fmt::format("elapsed {}", DurationText(state.elapsed_seconds)), 3},
       {state.step > state.first_step ? fmt::format("ETA {}", DurationText(state.left_seconds))
                                      : "",
        2}},
      columns));
  head.push_back(
      Bar("steps", share, std::nullopt, {{fmt::format("{:.0f} %", 100 * share), 0}}, columns));
  head.push_back(JoinParts(state.parts, columns));
  for (size_t i = 0; i < state.load.gpus.size(); ++i) {
    AddGpu(machine, state.load.gpus[i], i, state.planned_gpu_bytes, columns);
  }
  AddHost(machine, state, columns);

  const size_t foot = std::min<size_t>(messages.size(), 4);
  const size_t fixed = head.size() + machine.size() + foot + 2;
  const size_t room = rows > fixed ? rows - fixed : 0;
  const size_t speed_rows = room >= 12 ? 5 : 0;
  std::vector<std::string> lines = std::move(head);
  lines.emplace_back();
  AddCurve(lines, fmt::format("loss, steps {} to {}", state.first_step + 1, state.step),
           state.losses, columns, std::min<size_t>(room - speed_rows, 20));
  AddCurve(lines, "tokens/s", state.speeds, columns, speed_rows);
  lines.insert(lines.end(), machine.begin(), machine.end());
  if (foot > 0) lines.emplace_back();
  lines.insert(lines.end(), messages.end() - static_cast<ptrdiff_t>(foot), messages.end());
  if (lines.size() > rows) lines.resize(rows);
  return lines;
}

}  // namespace zeroplan
