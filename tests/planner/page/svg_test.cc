#include "planner/page/svg.h"

#include <doctest/doctest.h>

#include <cmath>

namespace zeroplan {
namespace {

std::vector<std::string> Labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks) labels.push_back(tick.label);
  return labels;
}

TEST_CASE("ticks are round numbers in the unit that suits") {
  using Strings = std::vector<std::string>;
  CHECK(Labels(AxisFromZero(173e9, Quantity::kBytes, 400, false)) ==
        Strings{"0", "50 GB", "100 GB", "150 GB", "200 GB"});
  CHECK(Labels(AxisFromZero(0.9, Quantity::kSeconds, 480, false)) ==
        Strings{"0", "200 ms", "400 ms", "600 ms", "800 ms", "1000 ms"});
  CHECK(Labels(AxisFromZero(2.2, Quantity::kSeconds, 320, false)) ==
        Strings{"0", "0.5 s", "1.0 s", "1.5 s", "2.0 s", "2.5 s"});
  CHECK(Labels(AxisFromZero(119'000, Quantity::kTokenRate, 120, true)) ==
        Strings{"0", "50K", "100K", "150K"});
  CHECK(Labels(AxisAround(1, 4, Quantity::kCount, 800, false)) == Strings{"1", "2", "3", "4"});
  CHECK(Labels(AxisAround(2.41, 2.93, Quantity::kNumber, 120, true)) ==
        Strings{"2.4", "2.6", "2.8", "3.0"});
}

TEST_CASE("an axis holds its values and ends on ticks, whatever they are") {
  for (const double most : {1e-7, 3.0, 17.0, 999.0, 1001.0, 4.99e9, 1.5e13}) {
    for (const double pixels : {120.0, 320.0, 880.0}) {
      CAPTURE(most);
      CAPTURE(pixels);
      for (const Quantity quantity : {Quantity::kBytes, Quantity::kSeconds, Quantity::kNumber}) {
        const Axis axis = AxisFromZero(most, quantity, pixels, false);
        CHECK(axis.end >= most * (1 - 1e-9));
        CHECK(axis.ticks.front().at == axis.begin);
        CHECK(axis.ticks.back().at == doctest::Approx(axis.end));
        for (size_t i = 1; i < axis.ticks.size(); ++i) {
          CHECK(axis.ticks[i].label != axis.ticks[i - 1].label);
          const double apart =
              pixels * (axis.Share(axis.ticks[i].at) - axis.Share(axis.ticks[i - 1].at));
          const double widths = (TextPixels(axis.ticks[i].label, kTickFont) +
                                 TextPixels(axis.ticks[i - 1].label, kTickFont)) /
                                2;
          if (axis.ticks.size() > 2) CHECK(apart > widths);
        }
      }
    }
  }
}

TEST_CASE("labels of a logarithmic axis keep apart") {
  for (const double pixels : {300.0, 900.0}) {
    const Axis axis = LogAxis(3e9, 4e12, Quantity::kBytes, pixels);
    REQUIRE(axis.ticks.size() >= 2);
    double end = -1;
    for (const Tick& tick : axis.ticks) {
      const double half = TextPixels(tick.label, kTickFont) / 2;
      CHECK(axis.Share(tick.at) * pixels - half > end);
      end = axis.Share(tick.at) * pixels + half;
      CHECK(tick.at >= axis.begin);
      CHECK(tick.at <= axis.end);
    }
  }
  CHECK(Labels(LogAxis(8e9, 3e11, Quantity::kBytes, 900)) ==
        std::vector<std::string>{"10 GB", "20 GB", "50 GB", "100 GB", "200 GB"});
}

TEST_CASE("labels break at spaces") {
  CHECK(BreakLabel("stage 2, optimizer on cpu", 1000, 12) ==
        std::vector<std::string>{"stage 2, optimizer on cpu"});
  const std::vector<std::string> lines = BreakLabel("stage 2, optimizer on cpu", 80, 12);
  CHECK(lines.size() > 1);
  for (const std::string& line : lines) CHECK(TextPixels(line, 12) <= 80);
  CHECK(BreakLabel("", 80, 12) == std::vector<std::string>{""});
}

}  // namespace
}  // namespace zeroplan
