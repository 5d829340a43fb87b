#include "executor/measure/attention_rows.h"

#include <fmt/format.h>

#include <sstream>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr const char* kRows = "rows";
constexpr const char* kFailed = "failed ";

}  // namespace

std::string AttentionText(const MachineMeasurement& found) {
  for (const FailedPart& part : found.failed) {
    if (part.name == "attention") return kFailed + part.why;
  }
  std::string text = fmt::format("{} {}", kRows, found.kernels.attention.size());
  for (const AttentionRate& row : found.kernels.attention) {
    text += fmt::format("\n{} {} {} {} {:.17g} {:.17g}", row.batch, row.heads, row.seq,
                        row.head_dim, row.forward_flops_per_second, row.backward_flops_per_second);
  }
  return text;
}

std::vector<AttentionRate> AttentionOfText(const std::string& text) {
  if (text.starts_with(kFailed)) {
    ThrowRuntime("{}", text.substr(std::char_traits<char>::length(kFailed)));
  }
  std::istringstream in(text);
  std::string word, more;
  size_t count = 0;
  bool whole = in >> word >> count && word == kRows;
  std::vector<AttentionRate> rows;
  for (AttentionRate row; whole && rows.size() < count; rows.push_back(row)) {
    in >> row.batch >> row.heads >> row.seq >> row.head_dim >> row.forward_flops_per_second >>
        row.backward_flops_per_second;
    whole = !in.fail();
  }
  if (!whole || in >> more) {
    ThrowRuntime("another rank's rows cannot be read: \"{}\"", text.substr(0, 60));
  }
  return rows;
}

}  // namespace zeroplan
