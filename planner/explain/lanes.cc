#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "planner/explain/explain.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

constexpr int kNameWidth = 15;
constexpr char kIdle = '.', kPartly = '-';

struct LaneKind {
  char letter;
  const char* meaning;
};
constexpr LaneKind kKinds[] = {
    {'F', "forward"},         {'B', "backward"},     {'U', "update"},
    {'g', "gather"},          {'r', "reduce"},       {'h', "to the device"},
    {'d', "from the device"}, {'c', "host kernels"}, {'s', "disk"}};
constexpr size_t kKindCount = std::size(kKinds);

// Index into kKinds.
size_t KindOf(const Instruction& instruction) {
  switch (instruction.stream) {
    case Stream::kCompute:
      return instruction.phase == Phase::kForward    ? 0
             : instruction.phase == Phase::kBackward ? 1
                                                     : 2;
    case Stream::kGather:
      return 3;
    case Stream::kReduce:
      return 4;
    case Stream::kHostToDevice:
      return 5;
    case Stream::kDeviceToHost:
      return 6;
    case Stream::kHost:
      return 7;
    case Stream::kStorage:
    case Stream::kStorageWrite:
      return 8;
  }
  return 2;
}

// Seconds of each kind by column, of one stream.
using Shares = std::vector<std::array<double, kKindCount>>;

void AddSpan(Shares& shares, const PlayedSpan& span, size_t kind, double column_seconds) {
  const auto first = static_cast<int>(std::max(0.0, span.begin_seconds) / column_seconds);
  for (int c = first; c < static_cast<int>(shares.size()); ++c) {
    const double begin = std::max(span.begin_seconds, c * column_seconds);
    const double end = std::min(span.end_seconds, (c + 1) * column_seconds);
    if (end <= begin && c > first) break;
    shares[static_cast<size_t>(c)][kind] += std::max(0.0, end - begin);
  }
}

std::string Row(const Shares& shares, double column_seconds) {
  std::string row;
  for (const auto& column : shares) {
    double busy = 0;
    size_t most = 0;
    for (size_t k = 0; k < kKindCount; ++k) {
      busy += column[k];
      if (column[k] > column[most]) most = k;
    }
    // Borders of spans and columns that coincide on paper differ by rounding.
    const double slack = 1e-6 * column_seconds;
    row += busy <= slack                       ? kIdle
           : busy < column_seconds / 2 - slack ? kPartly
                                               : kKinds[most].letter;
  }
  return row;
}

// Ticks at the quarters, each label right of its tick, the last one left of the end.
std::string Axis(double total_seconds, size_t columns) {
  constexpr int kTicks = 4;
  std::string line(columns, ' ');
  auto number = [&](int tick) {
    const double ms = 1e3 * total_seconds * tick / kTicks;
    const double largest = 1e3 * total_seconds;
    return fmt::format("{:.{}f}", ms, largest < 1 ? 4 : largest < 100 ? 2 : largest < 1000 ? 1 : 0);
  };
  for (int tick = 0; tick < kTicks; ++tick) {
    const std::string text = fmt::format("|{}", number(tick));
    line.replace(static_cast<size_t>(tick) * columns / kTicks, text.size(), text);
  }
  const std::string last = number(kTicks) + " ms|";
  line.replace(columns - last.size(), last.size(), last);
  return fmt::format("{:<{}}{}\n", "", kNameWidth, line);
}

}  // namespace

int LaneColumns(size_t page_columns) {
  constexpr int kMost = 80, kLeast = 40;
  return std::clamp(static_cast<int>(page_columns) - kNameWidth, kLeast, kMost);
}

std::string DrawLanes(const Program& program, const PlayedPart& played, size_t page_columns) {
  const double total = played.time.total_seconds;
  if (!(total > 0)) return "";
  const auto columns = static_cast<size_t>(LaneColumns(page_columns));
  const double column_seconds = total / static_cast<double>(columns);
  std::vector<Shares> lanes(kStreams, Shares(columns));
  for (const PlayedSpan& span : played.spans) {
    const Instruction& instruction = program.section(span.section)[span.index];
    AddSpan(lanes[static_cast<size_t>(instruction.stream)], span, KindOf(instruction),
            column_seconds);
  }
  std::string text;
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    if (played.time.busy(stream) == 0) continue;
    text += fmt::format("{:<{}}{}\n", StreamName(stream), kNameWidth,
                        Row(lanes[static_cast<size_t>(s)], column_seconds));
  }
  return text + Axis(total, columns);
}

std::string LaneLegend(std::string_view drawn) {
  // Only what stands in the rows themselves: stream names and the axis have letters too.
  std::string rows;
  for (size_t begin = 0; begin < drawn.size();) {
    const size_t end = std::min(drawn.find('\n', begin), drawn.size());
    if (drawn[begin] != ' ') {
      rows += drawn.substr(begin + kNameWidth, end - begin - kNameWidth);
    }
    begin = end + 1;
  }
  std::string legend;
  auto add = [&](char letter, const char* meaning) {
    if (rows.find(letter) == std::string::npos) return;
    legend += fmt::format("{}{} {}", legend.empty() ? "" : ", ", letter, meaning);
  };
  for (const LaneKind& kind : kKinds) add(kind.letter, kind.meaning);
  add(kPartly, "busy for less than half of the column");
  add(kIdle, "idle");
  return legend;
}

}  // namespace zeroplan
