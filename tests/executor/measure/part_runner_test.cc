// One part's failure and the other parts.
#include "executor/measure/part_runner.h"

#include <doctest/doctest.h>

#include <barrier>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/base/error.h"

namespace zeroplan {
namespace {

struct Fixture {
  MachineMeasurement result;
  std::vector<std::string> said;
  PartRunner runner{result, [this](const std::string& line) { said.push_back(line); }};
};

TEST_CASE("a part says what it does and how long it took") {
  Fixture f;
  CHECK(f.runner.Try("gemm", "matrix products",
                     [](MachineMeasurement& out) { out.kernels.launch_seconds = 1e-6; }));
  CHECK(f.result.kernels.launch_seconds == 1e-6);
  CHECK(f.result.measured == std::vector<std::string>{"gemm"});
  CHECK(f.result.failed.empty());
  REQUIRE(f.said.size() == 2);
  CHECK(f.said[0] == "gemm: matrix products");
  CHECK(f.said[1].starts_with("gemm: 0."));
  CHECK(f.said[1].ends_with(" s"));
}

TEST_CASE("a part in two pieces is listed once") {
  Fixture f;
  CHECK(f.runner.Try("gemm", "matrix products", [](MachineMeasurement&) {}));
  CHECK(f.runner.Try("gemm", "matrix products of 8 bits", [](MachineMeasurement&) {}));
  CHECK(f.result.measured == std::vector<std::string>{"gemm"});
}

TEST_CASE("what a failed part has found is dropped, what was there before stays") {
  Fixture f;
  f.result.collectives.push_back({CollectiveOp::kAllReduce, 2, 1024, 1e-5});
  const auto fails = [](MachineMeasurement& out) {
    out.collectives.push_back({CollectiveOp::kAllReduce, 4, 1024, 1e-5});
    ThrowRuntime("NCCL: no way");
  };
  SUBCASE("and the others go on") {
    CHECK_FALSE(f.runner.Try("collectives", "NCCL", fails));
    CHECK(f.runner.Try("pcie", "copies", [](MachineMeasurement&) {}));
    CHECK(f.result.measured == std::vector<std::string>{"pcie"});
  }
  SUBCASE("and the error names it where nothing can go on") {
    CHECK_THROWS_WITH_AS(f.runner.Run("collectives", "NCCL", fails),
                         "measuring collectives: NCCL: no way", Error);
    CHECK(f.result.measured.empty());
  }
  CHECK(f.result.collectives.size() == 1);
  REQUIRE(f.result.failed.size() == 1);
  CHECK(f.result.failed[0].name == "collectives");
  CHECK(f.result.failed[0].why == "NCCL: no way");
  CHECK(f.said[1].find("collectives: failed after") == 0);
}

TEST_CASE("bugs fail a part, errors of the command line end everything") {
  Fixture f;
  CHECK_FALSE(f.runner.Try("gemm", "products",
                           [](MachineMeasurement&) { ZEROPLAN_CHECK(false, "a bug"); }));
  REQUIRE(f.result.failed.size() == 1);
  CHECK(f.result.failed[0].why.find("a bug") != std::string::npos);
  CHECK_THROWS_AS(
      f.runner.Try("disk", "x", [](MachineMeasurement&) { ThrowUsage("--nvme-path: no"); }), Error);
  CHECK(f.result.failed.size() == 1);
}

struct Shared {
  explicit Shared(int ranks) : barrier(ranks), parts(static_cast<size_t>(ranks)) {}
  std::barrier<> barrier;
  std::vector<std::string> parts;
};

class ThreadGroup : public ProcessGroup {
 public:
  ThreadGroup(Shared& shared, int rank)
      : ThreadGroup(shared, rank, rank, static_cast<int>(shared.parts.size())) {}
  ThreadGroup(Shared& shared, int rank, int local_rank, int local_world_size) : shared_(shared) {
    place_.rank = rank;
    place_.world_size = static_cast<int>(shared.parts.size());
    place_.local_rank = local_rank;
    place_.local_world_size = local_world_size;
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

// What RanksOfAHost says on each rank, or its error.
std::vector<std::string> HostsOf(const std::vector<std::pair<int, int>>& local_rank_and_size) {
  const auto ranks = static_cast<int>(local_rank_and_size.size());
  Shared shared(ranks);
  std::vector<std::string> said(local_rank_and_size.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      const auto& [local, size] = local_rank_and_size[at];
      ThreadGroup group(shared, rank, local, size);
      try {
        said[at] = std::to_string(RanksOfAHost(group));
      } catch (const Error& error) {
        said[at] = error.what();
      }
    });
  }
  threads.clear();
  return said;
}

TEST_CASE("hosts have as many ranks each, which follow one another") {
  using Said = std::vector<std::string>;
  CHECK(HostsOf({{0, 1}}) == Said{"1"});
  CHECK(HostsOf({{0, 2}, {1, 2}}) == Said{"2", "2"});
  CHECK(HostsOf({{0, 1}, {0, 1}, {0, 1}}) == Said{"1", "1", "1"});
  CHECK(HostsOf({{0, 2}, {1, 2}, {0, 2}, {1, 2}}) == Said{"2", "2", "2", "2"});
  for (const std::string& said : HostsOf({{0, 2}, {1, 2}, {0, 1}})) {
    CHECK(said.find("start as many on each") != std::string::npos);
  }
  for (const std::string& said : HostsOf({{0, 2}, {1, 2}, {0, 2}})) {
    CHECK(said.find("3 ranks are not whole hosts of 2") != std::string::npos);
  }
  for (const std::string& said : HostsOf({{0, 2}, {0, 2}, {1, 2}, {1, 2}})) {
    CHECK(said.find("rank 1 is rank 0 of its host") != std::string::npos);
  }
}

TEST_CASE("attention's rows arrive to the bit") {
  MachineMeasurement found;
  CHECK(AttentionOfText(AttentionText(found)).empty());
  found.kernels.attention = {{16, 25, 1024, 64, 1e14 / 3, 2e14 / 7}, {1, 12, 512, 128, 1, 2.5}};
  CHECK(AttentionOfText(AttentionText(found)) == found.kernels.attention);
}

TEST_CASE("a failure arrives as one, whatever was measured before") {
  MachineMeasurement found;
  found.kernels.attention = {{16, 25, 1024, 64, 1e14, 2e14}};
  found.failed = {{"gemm", "not this"}, {"attention", "cuDNN: no plan\n  of 25 heads"}};
  CHECK_THROWS_WITH_AS(AttentionOfText(AttentionText(found)), "cuDNN: no plan\n  of 25 heads",
                       Error);
}

TEST_CASE("other texts are refused") {
  for (const char* text :
       {"", "rows", "rows x", "rows 1", "rows 0\n1 2 3 4 5 6", "rows 2\n1 2 3 4 5 6",
        "rows 1\n1 2 3 4 5", "rows 1\n1 2 3 4 5 x", "rows 1\n1 2 3 4 5 6 7", "lines 0"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(AttentionOfText(text), Error);
  }
}

}  // namespace

}  // namespace zeroplan
