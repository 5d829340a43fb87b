#include "planner/page/charts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "tests/planner/page/page_reading.h"

namespace zeroplan {
namespace {

struct DrawnText {
  std::string text;
  double left, right, top, bottom;  // of its letters, at most
};

std::vector<DrawnText> Texts(const std::string& svg) {
  std::vector<DrawnText> texts;
  const std::regex element("<text [^>]*x=\"([0-9.]+)\" y=\"([0-9.]+)\"([^>]*)>([^<]*)</text>");
  for (std::sregex_iterator at(svg.begin(), svg.end(), element), end; at != end; ++at) {
    const double x = std::stod((*at)[1]), y = std::stod((*at)[2]);
    const std::string side = (*at)[3], text = (*at)[4];
    const double pixels = TextPixels(text, kLabelFont);
    const double left = side.find("end") != std::string::npos      ? x - pixels
                        : side.find("middle") != std::string::npos ? x - pixels / 2
                                                                   : x;
    texts.push_back({text, left, left + pixels, y - 10, y + 2});
  }
  return texts;
}

TEST_CASE("the capacity line crosses no word, however long the bars are, and stays a line") {
  BarChart chart;
  chart.name = "memory";
  chart.parts = {"all"};
  chart.limit = Limit{40e9, "40.0 GB may be taken"};
  for (int i = 0; i < 40; ++i) {
    const double bytes = 1e9 * (i + 0.7);
    chart.bars.push_back({"stage 3, optimizer and parameters on cpu (micro-batch " +
                              std::to_string(i) + " x 4 micro-steps)",
                          {bytes},
                          false,
                          FormatQuantity(bytes, Quantity::kBytes)});
  }
  for (const int width : {960, 368}) {
    CAPTURE(width);
    const std::string svg = DrawBars(chart, width);
    const std::regex line(
        "<line class=\"limit\" x1=\"([0-9.]+)\" y1=\"([0-9.]+)\" x2=\"[0-9.]+\" y2=\"([0-9.]+)\"");
    double drawn = 0, top = 1e9, bottom = 0;
    for (std::sregex_iterator at(svg.begin(), svg.end(), line), end; at != end; ++at) {
      const double x = std::stod((*at)[1]), y0 = std::stod((*at)[2]), y1 = std::stod((*at)[3]);
      drawn += y1 - y0;
      top = std::min(top, y0);
      bottom = std::max(bottom, y1);
      for (const DrawnText& text : Texts(svg)) {
        CAPTURE(text.text);
        CHECK_FALSE((text.left < x && x < text.right && text.top < y1 && y0 < text.bottom));
      }
    }
    // Beside all bars: it gives way to words above them alone.
    CHECK(drawn > (width > 600 ? 0.99 : 0.3) * (bottom - top));
    for (const DrawnText& text : Texts(svg)) {
      CHECK(text.left >= 0);
      CHECK(text.right <= width);
    }
  }
}

}  // namespace
}  // namespace zeroplan
