// Frames there and back, and frames of whatever bytes.
#include "executor/process/star_frames.h"

#include <doctest/doctest.h>

#include <random>

#include "executor/process/handshake.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

Part SomePart() {
  return {7,
          CollectiveCall::kAllGather,
          3,
          milliseconds(1500),
          "saving step 40",
          std::string("a\0b", 3)};
}

TEST_CASE("frames of collectives come back as they were") {
  const auto part = ReadPart(WritePart(SomePart()));
  REQUIRE(part);
  CHECK(part->number == 7);
  CHECK(part->call == CollectiveCall::kAllGather);
  CHECK(part->size == 3);
  CHECK(part->limit == milliseconds(1500));
  CHECK(part->purpose == "saving step 40");
  CHECK(part->bytes == std::string("a\0b", 3));
  const Result sent{9, CollectiveCall::kBroadcast, {"", "x", std::string(1000, 'y')}};
  const auto result = ReadResult(WriteResult(sent));
  REQUIRE(result);
  CHECK(result->number == 9);
  CHECK(result->call == CollectiveCall::kBroadcast);
  CHECK(result->texts == sent.texts);
  const auto doing = ReadDoing(WriteDoing({milliseconds(-5), "in barrier 3\x1b"}));
  REQUIRE(doing);
  CHECK(doing->since == milliseconds(0));
  CHECK(doing->what == "in barrier 3?");
  Part longest = SomePart();
  longest.limit = milliseconds::max();
  REQUIRE(ReadPart(WritePart(longest)));
  CHECK(ReadPart(WritePart(longest))->limit == kLongestLimit);
}

TEST_CASE("every frame that is cut short is refused") {
  const std::string doing = WriteDoing({milliseconds(5), "in barrier 3"});
  for (size_t bytes = 0; bytes < doing.size(); ++bytes) {
    CHECK_FALSE(ReadDoing(doing.substr(0, bytes)));
  }
  CHECK_FALSE(ReadDoing(doing + "x"));
  const std::string part = WritePart(SomePart());
  for (size_t bytes = 0; bytes < part.size() - 3; ++bytes) {
    CHECK_FALSE(ReadPart(part.substr(0, bytes)));
  }
  const std::string result = WriteResult({9, CollectiveCall::kAllGather, {"abc"}});
  for (size_t bytes = 10; bytes < result.size(); ++bytes) {
    CHECK_FALSE(ReadResult(result.substr(0, bytes)));
  }
}

TEST_CASE("frames of whatever bytes are refused or harmless") {
  std::mt19937_64 random(1);
  ProcessPlace place;
  place.rank = 1;
  place.world_size = 2;
  const std::vector<std::string> seeds = {WritePart(SomePart()),
                                          WriteResult({9, CollectiveCall::kAllGather, {"a", "b"}}),
                                          WriteDoing({milliseconds(5), "in barrier 3"}),
                                          WriteHello(place, std::string(kNonceBytes, 'n')), ""};
  for (int round = 0; round < 200'000; ++round) {
    std::string bytes = seeds[random() % seeds.size()];
    if (bytes.empty()) bytes.resize(random() % 64);
    for (uint64_t change = random() % 4 + 1; change > 0 && !bytes.empty(); --change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 8));
    if (const auto part = ReadPart(bytes)) {
      const bool sound = part->limit.count() >= 0 && part->limit <= kLongestLimit &&
                         part->bytes.size() + part->purpose.size() <= bytes.size() + 3 &&
                         !NameOfCall(part->call, part->number).empty();
      if (!sound) FAIL_CHECK("a nonsense part");
    }
    if (const auto result = ReadResult(bytes)) {
      size_t all = 0;
      for (const std::string& text : result->texts) all += text.size() + 8;
      if (all > bytes.size()) FAIL_CHECK("a result out of nothing");
    }
    if (const auto doing = ReadDoing(bytes);
        doing && doing->what.find('\x1b') != std::string::npos) {
      FAIL_CHECK("an escape code");
    }
    if (const auto hello = ReadHello(bytes); hello && hello->nonce.size() > kNonceBytes) {
      FAIL_CHECK("a nonce of another size");
    }
    const Failure failure = ReadFailure(bytes);
    if (failure.message.empty() || failure.code == ExitCode::kDone) FAIL_CHECK("no failure");
  }
}

}  // namespace
}  // namespace zeroplan
