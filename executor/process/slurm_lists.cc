#include "executor/process/slurm_lists.h"

#include <charconv>
#include <cstdint>

namespace zeroplan {
namespace {

// Takes a number off the front of `text`.
std::optional<int> TakeNumber(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool Take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::string FirstSlurmHost(std::string_view node_list) {
  std::string host;
  for (size_t at = 0; at < node_list.size(); ++at) {
    const char c = node_list[at];
    if (c == ',') break;
    if (c == ']') return "";
    if (c != '[') {
      host += c;
      continue;
    }
    const size_t close = node_list.find(']', at);
    if (close == std::string_view::npos) return "";
    const std::string_view range = node_list.substr(at + 1, close - at - 1);
    const std::string_view first = range.substr(0, range.find_first_of(",-"));
    if (first.empty()) return "";
    host += first;  // as written: leading zeros belong to the name
    at = close;
  }
  return host;
}

std::optional<int> SlurmTasksOfNode(std::string_view tasks_per_node, int node) {
  int64_t nodes = 0;
  while (!tasks_per_node.empty()) {
    const std::optional<int> tasks = TakeNumber(tasks_per_node);
    if (!tasks) return std::nullopt;
    int repeat = 1;
    if (Take(tasks_per_node, "(x")) {
      const std::optional<int> times = TakeNumber(tasks_per_node);
      if (!times || !Take(tasks_per_node, ")")) return std::nullopt;
      repeat = *times;
    }
    nodes += repeat;
    if (node < nodes) return tasks;
    if (!tasks_per_node.empty() && !Take(tasks_per_node, ",")) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace zeroplan
