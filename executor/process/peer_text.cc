#include "executor/process/peer_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/strings.h"

namespace zeroplan {

std::string PeerText(std::string_view text, bool lines) {
  const std::string_view shown = text.substr(0, kMaxPeerText);
  std::string out;
  for (size_t i = 0; i < shown.size();) {
    size_t whole = 1;
    const size_t unprintable = UnprintableBytes(shown, i, &whole);
    if (shown[i] == '\n') {
      out += lines ? '\n' : ' ';
    } else if (unprintable > 0) {
      out.append(unprintable, '?');
    } else {
      out.append(shown, i, whole);
    }
    i += std::max(unprintable, whole);
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
