// A group of the first ranks of a run whose other ranks follow; ranks are threads here.
#include "executor/measure/sub_group.h"

#include <doctest/doctest.h>

#include <barrier>
#include <cstring>
#include <numeric>
#include <thread>

namespace zeroplan {
namespace {

struct Shared {
  explicit Shared(int ranks) : barrier(ranks), parts(static_cast<size_t>(ranks)) {}
  std::barrier<> barrier;
  std::vector<std::string> parts;
};

class ThreadGroup : public ProcessGroup {
 public:
  ThreadGroup(Shared& shared, int rank) : shared_(shared) {
    place_.rank = place_.local_rank = rank;
    place_.world_size = place_.local_world_size = static_cast<int>(shared.parts.size());
  }
  const ProcessPlace& place() const override { return place_; }
  void Barrier() override { AllGather(""); }
  void Broadcast(std::span<std::byte>) override { FAIL("not through here"); }
  std::vector<std::string> AllGather(const std::string& text) override {
    shared_.parts[static_cast<size_t>(place_.rank)] = text;
    shared_.barrier.arrive_and_wait();
    std::vector<std::string> all = shared_.parts;
    shared_.barrier.arrive_and_wait();
    ++collectives;
    return all;
  }
  void Fail(const std::string&) noexcept override {}
  bool failed() const noexcept override { return false; }
  std::string failure() const override { return {}; }

  int collectives = 0;

 private:
  Shared& shared_;
  ProcessPlace place_;
};

struct Seen {
  std::vector<std::string> gathered;
  uint64_t broadcast = 0;
  int world_size = 0, local_world_size = 0, collectives = 0;
};

std::vector<Seen> Run(int ranks, int members) {
  Shared shared(ranks);
  std::vector<Seen> seen(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadGroup parent(shared, rank);
      Seen& own = seen[static_cast<size_t>(rank)];
      SubGroup group(parent, members);
      if (!group.is_member()) {
        group.Follow();
      } else {
        own.world_size = group.world_size();
        own.local_world_size = group.place().local_world_size;
        group.Barrier();
        own.gathered = group.AllGather("of " + std::to_string(group.rank()));
        own.broadcast = rank == 0 ? 4711 : 0;
        group.Broadcast(std::as_writable_bytes(std::span(&own.broadcast, 1)));
        group.Dismiss();
      }
      own.collectives = parent.collectives;
    });
  }
  threads.clear();
  return seen;
}

TEST_CASE("members meet, the others follow and all end together") {
  for (const int members : {1, 2, 4}) {
    CAPTURE(members);
    const std::vector<Seen> seen = Run(4, members);
    std::vector<std::string> wanted;
    for (int rank = 0; rank < members; ++rank) wanted.push_back("of " + std::to_string(rank));
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      const Seen& own = seen[static_cast<size_t>(rank)];
      CHECK(own.collectives == 4);
      if (rank >= members) continue;
      CHECK(own.world_size == members);
      CHECK(own.local_world_size == members);
      CHECK(own.gathered == wanted);
      CHECK(own.broadcast == 4711);
    }
  }
}

}  // namespace
}  // namespace zeroplan
