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

TEST_CASE(
    "names of dots lie over nothing else, and where there is room the chosen one has its own") {
  DotChart chart;
  chart.name = "price against time";
  chart.x = Quantity::kSeconds;
  chart.y = Quantity::kMoney;
  chart.limit = Limit{72 * 3600.0, "deadline 72 h"};
  chart.limit_y = Limit{40'000, "budget 40,000 USD"};
  for (int i = 0; i < 30; ++i) {  // most have others close by
    chart.dots.push_back({3600.0 * (20 + i % 7 * 9), 5'000.0 + 3'000 * (i % 11), "",
                          i == 17 ? Dot::Kind::kChosen : Dot::Kind::kOther,
                          "machine " + std::to_string(i) + " x DGX"});
  }
  for (const int width : {960, 360}) {
    CAPTURE(width);
    const std::string svg = DrawDots(chart, width);
    const auto x = Attributes(svg, "circle", "cx"), y = Attributes(svg, "circle", "cy");
    std::vector<DrawnText> names, others;
    for (const DrawnText& text : Texts(svg)) {
      (text.text.starts_with("machine ") ? names : others).push_back(text);
    }
    // A phone has no room for it.
    CHECK((width < 600 || std::any_of(names.begin(), names.end(), [](const DrawnText& text) {
             return text.text == "machine 17 x DGX";
           })));
    CHECK(names.size() >= 3);
    for (size_t i = 0; i < names.size(); ++i) {
      const DrawnText& name = names[i];
      CAPTURE(name.text);
      CHECK(name.left >= 0);
      CHECK(name.right <= width);
      const auto apart = [&](const DrawnText& other) {
        return name.right <= other.left || other.right <= name.left || name.bottom <= other.top ||
               other.bottom <= name.top;
      };
      for (size_t j = i + 1; j < names.size(); ++j) CHECK(apart(names[j]));
      for (const DrawnText& other : others) CHECK(apart(other));
      for (size_t c = 0; c < x.size(); ++c) {
        const double px = std::stod(x[c]), py = std::stod(y[c]);
        CHECK_FALSE((name.left < px && px < name.right && name.top < py && py < name.bottom));
      }
    }
  }
}

TEST_CASE("a falling front is a stair through what is beaten by none") {
  DotChart chart;
  chart.dots = {
      {1, 9, "", Dot::Kind::kFront}, {3, 4, "", Dot::Kind::kFront}, {6, 2, "", Dot::Kind::kChosen}};
  const auto corners = [&](bool falls) {
    chart.falls = falls;
    const std::string svg = DrawDots(chart, 960);
    const auto paths = Attributes(svg, "path class=\"front\"", "d");
    return paths.empty() ? 0 : std::count(paths[0].begin(), paths[0].end(), 'L');
  };
  CHECK(corners(true) == 4);
  CHECK(corners(false) == 0);  // a rising stair leaves all but one out
}

}  // namespace
}  // namespace zeroplan
