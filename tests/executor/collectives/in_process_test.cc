#include "executor/collectives/in_process.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {
namespace {

constexpr std::array<int, 5> kWorlds = {1, 2, 3, 4, 8};
constexpr std::array<Dtype, 4> kFloats = {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64};

// The elements of one rank, as bytes of a dtype.
struct Tensor {
  Dtype dtype;
  std::vector<std::byte> bytes;

  Tensor(Dtype type, uint64_t elements) : dtype(type), bytes(elements * DtypeBytes(type)) {}
  std::byte* at(uint64_t element) { return bytes.data() + element * DtypeBytes(dtype); }
  double value(uint64_t i) const {
    double wide = 0;
    if (dtype == Dtype::kF64) {
      std::memcpy(&wide, bytes.data() + i * 8, 8);
    } else {
      wide = ReadScalar(dtype, bytes.data(), static_cast<int64_t>(i));
    }
    return wide;
  }
  void set(uint64_t i, double value) {
    if (dtype == Dtype::kF64) {
      std::memcpy(at(i), &value, 8);
    } else {
      WriteScalar(dtype, bytes.data(), static_cast<int64_t>(i), static_cast<float>(value));
    }
  }
  bool operator==(const Tensor&) const = default;
};

std::vector<Tensor> RandomTensors(int world, Dtype dtype, uint64_t elements, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<Tensor> tensors(static_cast<size_t>(world), Tensor(dtype, elements));
  for (Tensor& tensor : tensors) {
    for (uint64_t i = 0; i < elements; ++i) tensor.set(i, normal(rng));
  }
  return tensors;
}

// What rank order in fp32 (or fp64) and one rounding make of element `i`; checked against a sum in
// double.
Tensor Expected(const std::vector<Tensor>& sources, uint64_t elements) {
  Tensor sum(sources[0].dtype, elements);
  for (uint64_t i = 0; i < elements; ++i) {
    float narrow = 0;
    double wide = 0, magnitude = 0;
    for (size_t r = 0; r < sources.size(); ++r) {
      const double x = sources[r].value(i);
      narrow = r == 0 ? static_cast<float>(x) : narrow + static_cast<float>(x);
      wide += x;
      magnitude += std::fabs(x);
    }
    sum.set(i, sum.dtype == Dtype::kF64 ? wide : narrow);
    // Half a unit in the last place of the dtype, of the largest partial sum.
    const double epsilon = sum.dtype == Dtype::kBF16  ? 0x1p-8
                           : sum.dtype == Dtype::kF16 ? 0x1p-10
                           : sum.dtype == Dtype::kF32 ? 0x1p-21
                                                      : 0x1p-50;
    REQUIRE(std::fabs(sum.value(i) - wide) <= epsilon * magnitude);
  }
  return sum;
}

// Runs fn(rank) on a thread each.
template <typename Fn>
void OnThreads(int ranks, Fn&& fn) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(fn, rank);
  for (std::thread& thread : threads) thread.join();
}

// The same for the ranks of a group; the first exception that is not a consequence of another is
// rethrown.
template <typename Fn>
void OnRanks(Communicator& group, Fn&& fn) {
  OnThreads(group.world_size(), [&](int rank) {
    try {
      fn(rank);
    } catch (...) {
      group.Abort(std::current_exception());
    }
  });
  if (group.cause()) std::rethrow_exception(group.cause());
}

void RunOne(Communicator& group, CollectiveKind kind, Dtype dtype,
            const std::vector<CommSegment>& by_rank, ThreadPool* pool = nullptr) {
  OnRanks(group, [&](int rank) {
    group.Run(rank, {kind, dtype, {&by_rank[static_cast<size_t>(rank)], 1}},
              rank == 0 ? pool : nullptr);
  });
}

TEST_CASE("all-reduce: rank order, one rounding, the same bits everywhere, in place or not") {
  for (const int world : kWorlds) {
    for (const Dtype dtype : kFloats) {
      for (const bool in_place : {false, true}) {
        CAPTURE(world);
        CAPTURE(DtypeName(dtype));
        // Neither a multiple of the ranks nor of a block.
        constexpr uint64_t kElements = 2503;
        std::vector<Tensor> sources = RandomTensors(world, dtype, kElements, 1);
        std::vector<Tensor> targets(sources.size(), Tensor(dtype, kElements));
        const Tensor expected = Expected(sources, kElements);
        std::vector<CommSegment> segments;
        for (size_t r = 0; r < sources.size(); ++r) {
          segments.push_back(
              {sources[r].at(0), (in_place ? sources : targets)[r].at(0), kElements});
        }
        Communicator group(world);
        RunOne(group, CollectiveKind::kAllReduce, dtype, segments);
        for (const Tensor& result : in_place ? sources : targets) CHECK(result == expected);
      }
    }
  }
}

TEST_CASE("all-reduce: more ranks than elements, and none at all") {
  Communicator group(8);
  std::vector<Tensor> tensors = RandomTensors(8, Dtype::kF64, 3, 2);
  const Tensor expected = Expected(tensors, 3);
  std::vector<CommSegment> segments;
  for (Tensor& tensor : tensors) segments.push_back({tensor.at(0), tensor.at(0), 3});
  RunOne(group, CollectiveKind::kAllReduce, Dtype::kF64, segments);
  for (const Tensor& result : tensors) CHECK(result == expected);
  for (CommSegment& segment : segments) segment.elements = 0;
  RunOne(group, CollectiveKind::kAllReduce, Dtype::kF64, segments);
  CHECK(tensors[5] == expected);
}

TEST_CASE("all-reduce: threads of a rank do not change the bits") {
  constexpr uint64_t kElements = 200'000;
  std::vector<Tensor> tensors = RandomTensors(2, Dtype::kBF16, kElements, 3);
  const Tensor expected = Expected(tensors, kElements);
  std::vector<CommSegment> segments;
  for (Tensor& tensor : tensors) segments.push_back({tensor.at(0), tensor.at(0), kElements});
  Communicator group(2);
  ThreadPool pool(3, 4096);
  RunOne(group, CollectiveKind::kAllReduce, Dtype::kBF16, segments, &pool);
  CHECK(tensors[0] == expected);
  CHECK(tensors[1] == expected);
}

TEST_CASE("reduce-scatter: each rank gets its part of the sum, in place or not") {
  for (const int world : kWorlds) {
    for (const Dtype dtype : kFloats) {
      for (const bool in_place : {false, true}) {
        CAPTURE(world);
        constexpr uint64_t kPart = 1091;
        const uint64_t elements = kPart * static_cast<uint64_t>(world);
        std::vector<Tensor> sources = RandomTensors(world, dtype, elements, 4);
        std::vector<Tensor> targets(sources.size(), Tensor(dtype, kPart));
        Tensor expected = Expected(sources, elements);
        std::vector<CommSegment> segments;
        for (size_t r = 0; r < sources.size(); ++r) {
          segments.push_back(
              {sources[r].at(0), in_place ? sources[r].at(r * kPart) : targets[r].at(0), kPart});
        }
        Communicator group(world);
        RunOne(group, CollectiveKind::kReduceScatter, dtype, segments);
        for (size_t r = 0; r < sources.size(); ++r) {
          const std::byte* result = in_place ? sources[r].at(r * kPart) : targets[r].at(0);
          CHECK(std::memcmp(result, expected.at(r * kPart), kPart * DtypeBytes(dtype)) == 0);
        }
      }
    }
  }
}

TEST_CASE("all-gather and broadcast: part r comes from rank r, in place or not") {
  for (const int world : kWorlds) {
    for (const auto kind : {CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
      for (const bool in_place : {false, true}) {
        CAPTURE(world);
        constexpr uint64_t kPart = 777;
        const uint64_t elements = kPart * static_cast<uint64_t>(world);
        std::vector<Tensor> parts = RandomTensors(world, Dtype::kBF16, kPart, 5);
        std::vector<Tensor> targets(parts.size(), Tensor(Dtype::kBF16, elements));
        Tensor expected(Dtype::kBF16, elements);
        std::vector<CommSegment> segments;
        for (size_t r = 0; r < parts.size(); ++r) {
          std::memcpy(expected.at(r * kPart), parts[r].at(0), kPart * 2);
          std::memcpy(targets[r].at(r * kPart), parts[r].at(0), kPart * 2);
          segments.push_back(
              {in_place ? targets[r].at(r * kPart) : parts[r].at(0), targets[r].at(0), kPart});
        }
        Communicator group(world);
        RunOne(group, kind, Dtype::kBF16, segments);
        for (const Tensor& result : targets) CHECK(result == expected);
      }
    }
  }
}

TEST_CASE("all-to-all: part r comes from the part of this rank in rank r's") {
  for (const int world : kWorlds) {
    CAPTURE(world);
    constexpr uint64_t kPart = 777;
    const auto ranks = static_cast<uint64_t>(world);
    std::vector<Tensor> sources = RandomTensors(world, Dtype::kBF16, kPart * ranks, 6);
    std::vector<Tensor> targets(sources.size(), Tensor(Dtype::kBF16, kPart * ranks));
    std::vector<CommSegment> segments;
    for (size_t r = 0; r < ranks; ++r) {
      segments.push_back({sources[r].at(0), targets[r].at(0), kPart});
    }
    Communicator group(world);
    RunOne(group, CollectiveKind::kAllToAll, Dtype::kBF16, segments);
    for (size_t me = 0; me < ranks; ++me) {
      for (size_t r = 0; r < ranks; ++r) {
        CHECK(std::memcmp(targets[me].at(r * kPart), sources[r].at(me * kPart), kPart * 2) == 0);
      }
    }
  }
}

TEST_CASE("reduce-to-owners: any range of a unit, each rank its own part") {
  std::mt19937 rng(6);
  for (const int world : kWorlds) {
    for (int round = 0; round < 20; ++round) {
      const uint64_t shard = 64 * (1 + rng() % 5);
      const uint64_t unit = shard * static_cast<uint64_t>(world);
      const uint64_t begin = rng() % unit;
      const uint64_t end = begin + rng() % (unit - begin + 1);
      const Dtype dtype = kFloats[rng() % kFloats.size()];
      CAPTURE(world);
      CAPTURE(begin);
      CAPTURE(end);
      std::vector<Tensor> sources = RandomTensors(world, dtype, end - begin, rng());
      std::vector<Tensor> targets = RandomTensors(world, dtype, shard, rng());
      std::vector<Tensor> expected = targets;
      const Tensor sum = Expected(sources, end - begin);
      for (uint64_t e = begin; e < end; ++e) {
        expected[e / shard].set(e % shard, sum.value(e - begin));
      }
      std::vector<CommSegment> segments;
      for (size_t r = 0; r < sources.size(); ++r) {
        segments.push_back({sources[r].at(0), targets[r].at(0), shard, begin, end});
      }
      Communicator group(world);
      RunOne(group, CollectiveKind::kReduceToOwners, dtype, segments);
      CHECK(targets == expected);
    }
  }
}

TEST_CASE("several segments and several calls, one after the other") {
  constexpr uint64_t kElements = 500;
  std::vector<Tensor> a = RandomTensors(3, Dtype::kF32, kElements, 7);
  std::vector<Tensor> b = RandomTensors(3, Dtype::kF32, kElements, 8);
  const Tensor sum_a = Expected(a, kElements), sum_b = Expected(b, kElements);
  Communicator group(3);
  OnRanks(group, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const std::array<CommSegment, 2> both = {CommSegment{a[r].at(0), a[r].at(0), kElements},
                                             CommSegment{b[r].at(0), b[r].at(0), kElements}};
    group.Run(rank, {CollectiveKind::kAllReduce, Dtype::kF32, both}, nullptr);
    for (int i = 0; i < 100; ++i) {
      // Sums of equal values: powers of three, until the values are infinite on all ranks alike.
      group.Run(rank, {CollectiveKind::kAllReduce, Dtype::kF32, {both.data(), 1}}, nullptr);
    }
  });
  for (size_t r = 0; r < 3; ++r) {
    CHECK(b[r] == sum_b);
    CHECK(a[r] == a[0]);
    CHECK(std::isinf(a[r].value(0)));
  }
  CHECK(sum_a.value(0) != 0);
}

TEST_CASE("a rank that fails lets the others go, and its error is what the caller sees") {
  Communicator group(4);
  std::vector<Tensor> tensors = RandomTensors(4, Dtype::kF32, 10, 9);
  const auto run = [&](int rank) {
    if (rank == 2) ThrowRuntime("rank 2 lost its disk");
    const CommSegment segment{tensors[static_cast<size_t>(rank)].at(0),
                              tensors[static_cast<size_t>(rank)].at(0), 10};
    group.Run(rank, {CollectiveKind::kAllReduce, Dtype::kF32, {&segment, 1}}, nullptr);
  };
  CHECK_THROWS_WITH_AS(OnRanks(group, run), "rank 2 lost its disk", Error);
  // And so does every later collective.
  CHECK_THROWS_AS(group.Run(0, {CollectiveKind::kAllReduce, Dtype::kF32, {}}, nullptr),
                  GroupAborted);
}

TEST_CASE("ranks at different collectives are reported by all of them, not deadlocked") {
  for (int round = 0; round < 100; ++round) {
    Communicator group(3);
    std::array<std::string, 3> reports;
    OnThreads(3, [&](int rank) {
      // The rank's own: gone when it fails.
      std::vector<Tensor> tensor = RandomTensors(1, Dtype::kF32, 9, 10);
      const CommSegment segment{tensor[0].at(0), tensor[0].at(0), 3};
      const auto kind = rank == 2 ? CollectiveKind::kAllGather : CollectiveKind::kAllReduce;
      try {
        group.Run(rank, {kind, Dtype::kF32, {&segment, 1}}, nullptr);
      } catch (const CheckFailure& failure) {
        reports[static_cast<size_t>(rank)] = failure.what();
      }
    });
    for (const std::string& report : reports) {
      CAPTURE(report);
      CHECK(report.find("rank 2 is at a all_gather of 1 fp32 segments, rank 0 at a all_reduce") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a group aborted midway through a collective: all ranks ran it, or none did") {
  constexpr int kRanks = 3;
  constexpr uint64_t kPart = 300'000;
  const std::vector<Tensor> parts = RandomTensors(kRanks, Dtype::kF32, kPart, 11);
  Tensor gathered(Dtype::kF32, 0);
  for (const Tensor& part : parts) {
    gathered.bytes.insert(gathered.bytes.end(), part.bytes.begin(), part.bytes.end());
  }
  const Tensor untouched(Dtype::kF32, kPart * kRanks);
  std::mt19937 rng(12);
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    Communicator group(kRanks);
    std::vector<Tensor> sources = parts;
    std::vector<Tensor> targets(kRanks, untouched);
    const std::chrono::microseconds delay(rng() % 1000);
    std::thread outsider([&] {
      std::this_thread::sleep_for(delay);
      group.Abort(std::make_exception_ptr(Error(ExitCode::kRuntime, "the disk is full")));
    });
    OnThreads(kRanks, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const CommSegment segment{sources[r].at(0), targets[r].at(0), kPart};
      try {
        group.Run(rank, {CollectiveKind::kAllGather, Dtype::kF32, {&segment, 1}}, nullptr);
      } catch (const GroupAborted&) {
      }
      // The rank may do with its memory what it likes now.
      std::fill(sources[r].bytes.begin(), sources[r].bytes.end(), std::byte{0xff});
    });
    outsider.join();
    const Tensor& expected = targets[0] == untouched ? untouched : gathered;
    for (const Tensor& target : targets) CHECK((target == expected));
  }
}

}  // namespace
}  // namespace zeroplan
