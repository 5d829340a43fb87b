#include "executor/process/star_frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/strings.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

constexpr auto kMaxLimitMs = static_cast<uint64_t>(milliseconds(kLongestLimit).count());
constexpr size_t kMaxPurpose = 200;

template <typename T>
void Append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void AppendText(std::string& to, std::string_view text) {
  Append(to, static_cast<uint64_t>(text.size()));
  to += text;
}

// Takes values off the front of bytes; after what is not there, `good` is false for ever.
struct Taker {
  std::string_view left;
  bool good = true;

  template <typename T>
  T Number() {
    T value{};
    good = good && left.size() >= sizeof value;
    if (!good) return value;
    std::memcpy(&value, left.data(), sizeof value);
    left.remove_prefix(sizeof value);
    return value;
  }
  std::string_view Text() {
    const auto bytes = Number<uint64_t>();
    good = good && bytes <= left.size();
    if (!good) return {};
    const std::string_view text = left.substr(0, bytes);
    left.remove_prefix(bytes);
    return text;
  }
  CollectiveCall Call() {
    const auto call = Number<uint8_t>();
    good = good && call <= static_cast<uint8_t>(CollectiveCall::kAllGather);
    return good ? static_cast<CollectiveCall>(call) : CollectiveCall::kBarrier;
  }
  milliseconds Time() {
    const auto ms = Number<uint64_t>();
    good = good && ms <= kMaxLimitMs;
    return milliseconds(good ? static_cast<int64_t>(ms) : 0);
  }
  std::string Purpose() { return PeerText(Text().substr(0, kMaxPurpose)); }
};

uint64_t InRange(milliseconds time) {
  return time.count() < 0 ? 0 : std::min(static_cast<uint64_t>(time.count()), kMaxLimitMs);
}

}  // namespace

std::string NameOfCall(CollectiveCall call, uint64_t number) {
  constexpr const char* kNames[] = {"barrier", "broadcast", "all-gather"};
  return fmt::format("{} {}", kNames[static_cast<size_t>(call)], number);
}

std::string InPurpose(const std::string& purpose) {
  return purpose.empty() ? "" : fmt::format(" ({})", purpose);
}

std::string WritePart(const Part& part) {
  std::string text;
  Append(text, part.number);
  Append(text, part.call);
  Append(text, part.size);
  Append(text, InRange(part.limit));
  AppendText(text, part.purpose);
  return text += part.bytes;
}

std::optional<Part> ReadPart(std::string_view payload) {
  Taker taker{payload};
  Part part;
  part.number = taker.Number<uint64_t>();
  part.call = taker.Call();
  part.size = taker.Number<uint64_t>();
  part.limit = taker.Time();
  part.purpose = taker.Purpose();
  part.bytes = taker.left;
  if (!taker.good) return std::nullopt;
  return part;
}

std::string WriteResult(const Result& result) {
  std::string text;
  Append(text, result.number);
  Append(text, result.call);
  for (const std::string& one : result.texts) AppendText(text, one);
  return text;
}

std::optional<Result> ReadResult(std::string_view payload) {
  Taker taker{payload};
  Result result;
  result.number = taker.Number<uint64_t>();
  result.call = taker.Call();
  while (taker.good && !taker.left.empty()) result.texts.emplace_back(taker.Text());
  if (!taker.good) return std::nullopt;
  return result;
}

std::string WriteDoing(const Doing& doing) {
  std::string text;
  Append(text, InRange(doing.since));
  AppendText(text, doing.what);
  return text;
}

std::optional<Doing> ReadDoing(std::string_view payload) {
  Taker taker{payload};
  Doing doing;
  doing.since = taker.Time();
  doing.what = taker.Purpose();
  if (!taker.good || !taker.left.empty()) return std::nullopt;
  return doing;
}

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
