// What a peer may send. An input whose first byte is 0 is sent through a real connection, in one
// piece and in several; else it is a message that a frame may hold. Reading gives nothing, or what
// can be written and read back; what reaches a terminal has no control characters.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "executor/process/connection.h"
#include "executor/process/handshake.h"
#include "executor/process/star_frames.h"
#include "tests/fuzz/need.h"

namespace zeroplan {
namespace {

void NeedPrintable(std::string_view text) {
  for (const char c : text) Need(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  for (size_t i = 1; i < text.size(); ++i) {
    Need(text[i - 1] != '\xc2' || static_cast<unsigned char>(text[i]) >= 0xa0 ||
         static_cast<unsigned char>(text[i]) < 0x80);
  }
}

void ReadMessages(std::string_view payload) {
  if (const auto part = ReadPart(payload)) {
    NeedPrintable(part->purpose);
    Need(part->limit.count() >= 0 && part->limit <= kLongestLimit);
    Need(!NameOfCall(part->call, part->number).empty());
    const std::string written = WritePart(*part);
    const auto back = ReadPart(written);
    Need(back && WritePart(*back) == written && back->bytes == part->bytes);
  }
  if (const auto result = ReadResult(payload)) {
    // It takes no more memory than it came with.
    size_t bytes = 0;
    for (const std::string& text : result->texts) bytes += text.size() + 8;
    Need(bytes + 9 == payload.size() && WriteResult(*result) == payload);
  }
  if (const auto doing = ReadDoing(payload)) {
    NeedPrintable(doing->what);
    const std::string written = WriteDoing(*doing);
    const auto back = ReadDoing(written);
    Need(back && WriteDoing(*back) == written);
  }
  if (const auto hello = ReadHello(payload)) {
    ProcessPlace hub;
    hub.world_size = 4;
    const bool refused = !WhyRefused(*hello, hub).empty();
    Need(refused || (hello->rank >= 1 && hello->rank < 4 && hello->world_size == 4 &&
                     hello->nonce.size() == kNonceBytes));
  }
  const Failure failure = ReadFailure(payload);
  Need(failure.code != ExitCode::kDone);
  // The message may have lines of its own.
  std::string message = failure.message;
  std::replace(message.begin(), message.end(), '\n', ' ');
  NeedPrintable(message);
  Need(message.size() <= kMaxPeerText + 3);  // "..." where it was cut
  const Failure back = ReadFailure(WriteFailure(failure));
  Need(back.code == failure.code && back.message == failure.message);
  NeedPrintable(PeerText(payload));
}

struct Received {
  std::vector<Frame> frames;
  bool open = false;
};

// The bytes in pieces of `piece`.
Received Receive(std::string_view bytes, size_t piece, size_t max_payload) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  Connection connection(UniqueFd(ends[0]), max_payload);
  const UniqueFd other(ends[1]);
  Received received;
  const auto take = [&] {
    connection.Pump();
    while (auto frame = connection.Next()) received.frames.push_back(std::move(*frame));
  };
  while (!bytes.empty() && connection.open()) {
    const std::string_view now = bytes.substr(0, piece);
    bytes.remove_prefix(now.size());
    if (write(other.get(), now.data(), now.size()) != static_cast<ssize_t>(now.size()))
      std::abort();
    take();
  }
  if (connection.open()) take();
  received.open = connection.open();
  return received;
}

void Read(std::string_view bytes) {
  const Received whole = Receive(bytes, bytes.size() + 1, Connection::kMaxHello);
  const Received pieces =
      Receive(bytes, std::max<size_t>(1, bytes.size() / 7), Connection::kMaxHello);
  Need(whole.open == pieces.open && whole.frames.size() == pieces.frames.size());
  size_t taken = 0;
  for (size_t i = 0; i < whole.frames.size(); ++i) {
    const Frame& frame = whole.frames[i];
    Need(frame.type == pieces.frames[i].type && frame.payload == pieces.frames[i].payload);
    Need(frame.payload.size() <= Connection::kMaxHello);
    const SharedFrame again = MakeFrame(frame.type, frame.payload);
    Need(bytes.substr(taken, again->size()) == *again);
    taken += again->size();
    ReadMessages(frame.payload);
  }
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 0) {
    zeroplan::Read(rest);
  } else {
    zeroplan::ReadMessages(rest);
  }
  return 0;
}
