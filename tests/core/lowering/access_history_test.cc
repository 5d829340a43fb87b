// AccessHistory against a history of every single byte.
#include "core/lowering/access_history.h"

#include <doctest/doctest.h>

#include <random>

namespace zeroplan {
namespace {

constexpr uint64_t kBytes = 24;

struct ByByte {
  std::array<StreamClock, kBytes> read, write;
  ByByte() {
    read.fill(kNoneYet);
    write.fill(kNoneYet);
  }
  StreamClock Needs(ByteSpan span, bool writes) const {
    StreamClock need = kNoneYet;
    for (uint64_t b = span.begin; b < span.end; ++b) {
      for (size_t s = 0; s < kStreams; ++s) {
        need[s] = std::max(need[s], write[b][s]);
        if (writes) need[s] = std::max(need[s], read[b][s]);
      }
    }
    return need;
  }
  void Note(ByteSpan span, bool writes, size_t stream, int32_t index) {
    for (uint64_t b = span.begin; b < span.end; ++b) {
      if (writes) {
        read[b] = write[b] = kNoneYet;
        write[b][stream] = index;
      } else {
        read[b][stream] = index;
      }
    }
  }
};

StreamClock NeedsOf(const AccessHistory& history, ByteSpan span, bool writes) {
  StreamClock need = kNoneYet;
  history.AddNeeds(span, writes, need);
  return need;
}

// Runs random accesses. Returns how often the history asked for more than the bytes do.
int RunRandom(unsigned seed, bool whole_writes, bool in_file = false) {
  std::mt19937 random(seed);
  AccessHistory history;
  ByByte bytes;
  int more = 0;
  for (int32_t i = 0; i < 200; ++i) {
    ByteSpan span{random() % kBytes, 0};
    span.end = span.begin + 1 + random() % (kBytes - span.begin);
    const bool whole = random() % 4 == 0;
    if (whole) span = {0, kBytes};
    const bool all = span.begin == 0 && span.end == kBytes;
    // So that it is kept by ranges from the start.
    const bool cuts = i == 0 && !in_file;
    const bool writes = cuts || (random() % 2 == 0 && (whole_writes || !all));
    if (cuts) span = {3, 7};
    const size_t stream = random() % kStreams;
    const StreamClock want = bytes.Needs(span, writes), got = NeedsOf(history, span, writes);
    bool less = false;
    for (size_t s = 0; s < kStreams; ++s) {
      less |= got[s] < want[s];
      more += got[s] > want[s];
    }
    CHECK_FALSE(less);
    bytes.Note(span, writes, stream, i);
    history.Note(span, kBytes, writes, stream, i, in_file);
  }
  return more;
}

TEST_CASE("access history: by ranges it knows what every byte would") {
  for (unsigned seed = 1; seed <= 50; ++seed) CHECK(RunRandom(seed, false) == 0);
}

TEST_CASE("access history: of a buffer in a file it always knows what every byte would") {
  for (unsigned seed = 1; seed <= 50; ++seed) CHECK(RunRandom(seed, true, true) == 0);
}

TEST_CASE("access history: never less, and as one range after a whole write") {
  for (unsigned seed = 1; seed <= 50; ++seed) RunRandom(seed, true);
  AccessHistory history;
  history.Note({0, 8}, 16, true, 1, 5);
  CHECK(NeedsOf(history, {8, 16}, true) == kNoneYet);
  history.Note({0, 16}, 16, true, 2, 6);
  StreamClock want = kNoneYet;
  want[2] = 6;
  CHECK(NeedsOf(history, {0, 1}, false) == want);
  // A part that is only read counts as all of it, until a part is written.
  history.Note({0, 4}, 16, false, 3, 7);
  CHECK(NeedsOf(history, {8, 16}, true)[3] == 7);
}

TEST_CASE("a reference covers what it covers on any rank") {
  const ByteSpan span = SpanOverRanks({0, 10, 4, 8}, {3, 3});
  CHECK(span.begin == 10);
  CHECK(span.end == 30);
  // 3 shards of 2 slices.
  CHECK(SpanOverRanks({0, 10, 4, 8, 4}, {3, 6}).end == 34);
}

}  // namespace
}  // namespace zeroplan
