// Reads back what pages and pictures hold, for tests.
#pragma once

#include <map>
#include <regex>
#include <string>
#include <vector>

namespace zeroplan {

// Values of attribute `name` of every `element` in `text`, in order; "" where one lacks it.
inline std::vector<std::string> Attributes(const std::string& text, const std::string& element,
                                           const std::string& name) {
  const std::regex tag("<" + element + "[ >][^>]*>"), value(" " + name + "=\"([^\"]*)\"");
  std::vector<std::string> values;
  for (std::sregex_iterator at(text.begin(), text.end(), tag), end; at != end; ++at) {
    const std::string found = at->str();
    std::smatch match;
    values.push_back(std::regex_search(found, match, value) ? match[1].str() : "");
  }
  return values;
}

// Of a bar chart: by bar, the sum of its parts' values.
inline std::map<int, double> BarSums(const std::string& svg) {
  const std::vector<std::string> bars = Attributes(svg, "rect", "data-bar"),
                                 values = Attributes(svg, "rect", "data-value");
  std::map<int, double> sums;
  for (size_t i = 0; i < bars.size(); ++i) {
    if (!bars[i].empty()) sums[std::stoi(bars[i])] += std::stod(values[i]);
  }
  return sums;
}

inline size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace zeroplan
