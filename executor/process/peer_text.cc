#include "executor/process/peer_text.h"

#include <fmt/format.h>

namespace zeroplan {

std::string PeerText(std::string_view text, bool lines) {
  std::string out;
  for (size_t i = 0; i < text.size() && i < kMaxPeerText; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto before = i > 0 ? static_cast<unsigned char>(text[i - 1]) : 0u;
    const bool c1 = before == 0xc2 && c >= 0x80 && c < 0xa0;
    if (c1) out.back() = '?';
    if (c == '\n') {
      out += lines ? '\n' : ' ';
    } else {
      out += c < 0x20 || c == 0x7f || c1 ? '?' : text[i];
    }
  }
  return text.size() > kMaxPeerText ? out + "..." : out;
}

std::string WriteFailure(const Failure& failure) {
  return static_cast<char>(failure.code) + failure.message;
}

Failure ReadFailure(std::string_view payload) {
  Failure failure;
  if (!payload.empty()) {
    // As bytes: 130 is negative as a char.
    const int code = static_cast<unsigned char>(payload.front());
    for (const ExitCode known :
         {ExitCode::kUsage, ExitCode::kNothingFits, ExitCode::kDiverged, ExitCode::kInterrupted}) {
      if (code == static_cast<int>(known)) failure.code = known;
    }
    failure.message = PeerText(payload.substr(1), /*lines=*/true);
  }
  if (failure.message.empty()) failure.message = "failed";
  return failure;
}

std::string OfRank(int rank, std::string_view message) {
  const std::string name = fmt::format("rank {}: ", rank);
  while (message.starts_with(name)) message.remove_prefix(name.size());
  return name + std::string(message);
}

}  // namespace zeroplan
