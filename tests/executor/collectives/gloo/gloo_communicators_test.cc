// Collectives of processes against those of threads, to the bit. Each "process" is a thread with a
// group and links of its own.
#include "executor/collectives/gloo/gloo_communicators.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "executor/collectives/gloo/gloo_links.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/thread_pool.h"
#include "tests/executor/process/thread_ranks.h"
#include "tests/has.h"
#include "tests/two_hosts.h"

namespace zeroplan {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kReduceToOwners,
                                     CollectiveKind::kBroadcast, CollectiveKind::kAllToAll};
constexpr Dtype kFloats[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64};

// A group whose ranks claim to be on several hosts: all addresses 127.x.x.x are this host's.
class OnHosts : public ProcessGroup {
 public:
  OnHosts(ProcessGroup& group, int ranks_per_host) : group_(group), host_ranks_(ranks_per_host) {}

  const ProcessPlace& place() const override { return group_.place(); }
  void Barrier() override { group_.Barrier(); }
  void Broadcast(std::span<std::byte> bytes) override { group_.Broadcast(bytes); }
  std::vector<std::string> AllGather(const std::string& text) override {
    return group_.AllGather(text);
  }
  void Fail(const std::string& message) noexcept override { group_.Fail(message); }
  void FailWith(ExitCode code, const std::string& message) noexcept override {
    group_.FailWith(code, message);
  }
  bool failed() const noexcept override { return group_.failed(); }
  std::string failure() const override { return group_.failure(); }
  ExitCode failure_code() const noexcept override { return group_.failure_code(); }
  std::string host_address() const override {
    return "127.0.0." + std::to_string(1 + group_.rank() / host_ranks_);
  }

 private:
  ProcessGroup& group_;
  const int host_ranks_;
};

// One rank's memory of a call: segments of several sizes, in place or not.
class RankMemory {
 public:
  // `sizes`: of one part; of all elements for an all-reduce. One, few, not a multiple of anything,
  // more than a message has, none.
  RankMemory(CollectiveKind kind, Dtype dtype, int rank, int ranks, bool in_place,
             const std::vector<uint64_t>& sizes = {1, 5, 2503, 133'001, 0}) {
    std::mt19937 rng(static_cast<uint32_t>(rank + 1));
    std::normal_distribution<float> normal;
    const auto n = static_cast<uint64_t>(ranks);
    for (const uint64_t elements : sizes) {
      const bool gathers = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kBroadcast;
      const bool whole = kind == CollectiveKind::kAllReduce;
      const uint64_t all = elements * (whole ? 1 : n);
      CommSegment segment;
      segment.elements = elements;
      uint64_t sources = gathers ? elements : all;
      uint64_t targets =
          kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kReduceToOwners
              ? elements
              : all;
      if (kind == CollectiveKind::kReduceToOwners) {
        segment.begin = elements / 3;
        segment.end = all - all / 5;
        sources = segment.end - segment.begin;
      }
      const bool shares = in_place && (whole || gathers || kind == CollectiveKind::kReduceScatter);
      const uint64_t bytes = DtypeBytes(dtype);
      std::vector<std::byte>& memory =
          *memory_.emplace_back(std::make_unique<std::vector<std::byte>>(
              (shares ? std::max(sources, targets) : sources + targets) * bytes));
      for (uint64_t i = 0; i < memory.size() / bytes; ++i) {
        const float value = normal(rng);
        if (dtype == Dtype::kF64) {
          const double wide = value / 3.0;
          std::memcpy(memory.data() + i * bytes, &wide, bytes);
        } else {
          WriteScalar(dtype, memory.data(), static_cast<int64_t>(i), value);
        }
      }
      const uint64_t own = static_cast<uint64_t>(rank) * elements * bytes;
      std::byte* base = memory.data();
      segment.src = shares && gathers ? base + own : base;
      segment.dst = !shares                                  ? base + sources * bytes
                    : kind == CollectiveKind::kReduceScatter ? base + own
                                                             : base;
      targets_.emplace_back(segment.dst, targets * bytes);
      segments_.push_back(segment);
    }
    call_ = {kind, dtype, segments_};
  }

  const CommCall& call() const { return call_; }
  // The bytes of all targets.
  std::string Result() const {
    std::string result;
    for (const auto& [data, bytes] : targets_) {
      result.append(reinterpret_cast<const char*>(data), bytes);
    }
    return result;
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  std::vector<CommSegment> segments_;
  std::vector<std::pair<const std::byte*, uint64_t>> targets_;
  CommCall call_;
};

// What ranks that are threads end with, by rank.
std::vector<std::string> OfThreads(const std::function<RankMemory(int rank)>& make, int ranks) {
  Communicator group(ranks);
  std::vector<std::string> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RankMemory memory = make(rank);
      group.Run(rank, memory.call(), nullptr);
      results[static_cast<size_t>(rank)] = memory.Result();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

const std::vector<std::string>& Expected(CollectiveKind kind, Dtype dtype, int ranks,
                                         bool in_place) {
  static std::mutex mutex;
  static std::map<std::tuple<CollectiveKind, Dtype, int, bool>, std::vector<std::string>> known;
  const std::lock_guard lock(mutex);
  std::vector<std::string>& results = known[{kind, dtype, ranks, in_place}];
  if (results.empty()) {
    results =
        OfThreads([&](int rank) { return RankMemory(kind, dtype, rank, ranks, in_place); }, ranks);
  }
  return results;
}

using Fn = std::function<void(GlooCommunicators&, int rank)>;

std::vector<std::string> AsProcesses(int ranks, int ranks_per_host, const RankAxes& axes,
                                     const Fn& fn) {
  return AsRanks(ranks, [&](TcpGroup& group) {
    OnHosts on_hosts(group, ranks_per_host);
    GlooCommunicators communicators(axes, on_hosts);
    try {
      fn(communicators, group.rank());
    } catch (...) {
      communicators.Abort(std::current_exception());
      throw;
    }
    group.Barrier();
  });
}

TEST_CASE("every collective of every dtype has the bits of threads, whatever the hosts") {
  struct Spread {
    int ranks, per_host;
  };
  for (const auto& [ranks, per_host] :
       {Spread{2, 2}, Spread{2, 1}, Spread{3, 3}, Spread{4, 2}, Spread{6, 3}}) {
    CAPTURE(ranks);
    CAPTURE(per_host);
    const auto errors = AsProcesses(ranks, per_host, {ranks, ranks}, [&](auto& group, int rank) {
      ThreadPool pool(2);
      for (const CollectiveKind kind : kKinds) {
        for (const Dtype dtype : kFloats) {
          for (const bool in_place : {false, true}) {
            if (in_place && dtype == Dtype::kF16) continue;  // as bf16
            const RankMemory memory(kind, dtype, rank, ranks, in_place);
            group.Run(RankAxis::kAll, rank, memory.call(), rank == 1 ? &pool : nullptr);
            ZEROPLAN_CHECK(memory.Result() ==
                               Expected(kind, dtype, ranks, in_place)[static_cast<size_t>(rank)],
                           "{} of {}, in place: {}", CollectiveKindName(kind), DtypeName(dtype),
                           in_place);
          }
        }
      }
    });
    CHECK(ErrorsOf(errors) == "");
  }
}

TEST_CASE("reductions of more messages than a rank has room for") {
  const std::vector<uint64_t> sizes = {1'300'000};
  for (const int ranks : {2, 6}) {
    CAPTURE(ranks);
    const auto make = [&](int rank) {
      return RankMemory(CollectiveKind::kReduceScatter, Dtype::kBF16, rank, ranks, false, sizes);
    };
    const std::vector<std::string> expected = OfThreads(make, ranks);
    const auto errors = AsProcesses(ranks, 3, {ranks, ranks}, [&](auto& group, int rank) {
      const RankMemory memory = make(rank);
      group.Run(RankAxis::kAll, rank, memory.call(), nullptr);
      ZEROPLAN_CHECK(memory.Result() == expected[static_cast<size_t>(rank)]);
    });
    CHECK(ErrorsOf(errors) == "");
  }
}

TEST_CASE("the groups of an axis meet among themselves, interleaved with those of others") {
  constexpr int kRanks = 6, kShards = 3;
  const RankAxes axes(kShards, kRanks, /*sequence=*/2);
  constexpr RankAxis kAxesOfGroups[] = {RankAxis::kShard, RankAxis::kReplica, RankAxis::kSequence,
                                        RankAxis::kAll};
  // What goes directly, and what goes around.
  for (const std::vector<uint64_t>& sizes :
       {std::vector<uint64_t>{1, 5, 700, 0}, std::vector<uint64_t>{3, 9001}}) {
    std::map<std::pair<CollectiveKind, int>, std::vector<std::string>> expected;
    const auto make = [&](CollectiveKind kind, int place, int size) {
      return RankMemory(kind, Dtype::kF32, place, size, false, sizes);
    };
    for (const CollectiveKind kind : kKinds) {
      for (const RankAxis axis : kAxesOfGroups) {
        const int size = axes.Size(axis);
        expected[{kind, size}] = OfThreads([&](int r) { return make(kind, r, size); }, size);
      }
    }
    const auto errors = AsProcesses(kRanks, 3, axes, [&](GlooCommunicators& group, int rank) {
      for (int round = 0; round < 3; ++round) {
        for (const CollectiveKind kind : kKinds) {
          for (const RankAxis axis : kAxesOfGroups) {
            // Groups differ in nothing but their ranks: what they have goes by place.
            const int place = axes.Place(axis, rank), size = axes.Size(axis);
            const RankMemory memory = make(kind, place, size);
            group.Run(axis, rank, memory.call(), nullptr);
            ZEROPLAN_CHECK(memory.Result() == expected.at({kind, size})[static_cast<size_t>(place)],
                           "{} over axis {}", CollectiveKindName(kind), RankAxisName(axis));
          }
        }
      }
      ZEROPLAN_CHECK(group.TakeWaitedSeconds(rank) > 0);
      ZEROPLAN_CHECK(group.TakeWaitedSeconds(rank) == 0);
    });
    CHECK(ErrorsOf(errors) == "");
  }
}

TEST_CASE("a reduction takes the chain where ranks share the hosts' links") {
  const auto along = [](const std::vector<std::string>& hosts, uint64_t sum_bytes = 4) {
    return ReducesAlongChain(hosts, 4, sum_bytes);
  };
  CHECK(!along({"a"}));
  CHECK(!along({"a", "a", "a", "a"}));           // no network
  CHECK(!along({"a", "b"}));                     // half as much as along the chain
  CHECK(!along({"a", "b", "c", "d"}));           // as a ring
  CHECK(!along({"a", "a", "b", "b"}));           // as much
  CHECK(along({"a", "a", "a", "b", "b", "b"}));  // 1.5 times the gradient, against once
  CHECK(along({"a", "a", "a", "a", "b", "b", "b", "b"}));
  CHECK(!along({"a", "a", "a", "b", "b", "b"}, 8));  // sums of twice the bytes
  CHECK(!along({"a", "b", "a", "b", "a", "b"}));     // it would cross at every rank
}

// Debian gives a host's own name 127.0.1.1: ranks on rank 0's host then reach it by loopback.
TEST_CASE("ranks that reach rank 0 by loopback are on its host, and others reach them there") {
  const TwoHosts two;
  if (!two.why_not().empty() || !two.RaiseLoopback()) {
    MESSAGE("skipped: ", two.why_not().empty() ? "no loopback can be raised here" : two.why_not());
    return;
  }
  constexpr int kRanks = 3;
  const std::vector<std::string> expected_hosts = {"10.77.0.1", "10.77.0.1", "10.77.0.2"};
  int port = 0;
  UniqueFd listener;
  bool entered = false;
  std::thread([&] {
    entered = two.Enter(0);
    if (entered) listener = Listen("127.0.1.1", true, port);
  }).join();
  if (!entered) {
    MESSAGE("skipped: a thread cannot enter a network namespace here");
    return;
  }
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    ProcessPlace place = PlaceOf(rank, kRanks, port);
    place.address = rank < 2 ? "127.0.1.1" : "10.77.0.1";
    if (rank == 0) place.listen_fd = listener.Release();
    threads.emplace_back([&, place] {
      try {
        ZEROPLAN_CHECK(two.Enter(place.rank < 2 ? 0 : 1));
        TcpGroup group(place, Patient());
        SpreadFailure(group, [&] {
          {
            const GlooLinks links(group, 300);
            ZEROPLAN_CHECK(links.hosts() == expected_hosts, "{}", fmt::join(links.hosts(), ","));
            group.Barrier();
          }
          GlooCommunicators communicators({kRanks, kRanks}, group);
          const RankMemory memory(CollectiveKind::kAllReduce, Dtype::kF32, place.rank, kRanks,
                                  false);
          communicators.Run(RankAxis::kAll, place.rank, memory.call(), nullptr);
          ZEROPLAN_CHECK(memory.Result() == Expected(CollectiveKind::kAllReduce, Dtype::kF32,
                                                     kRanks,
                                                     false)[static_cast<size_t>(place.rank)]);
          group.Barrier();
        });
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(place.rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ErrorsOf(errors) == "");
}

// The ports of 127.0.0.1 where this process listens.
std::vector<int> OwnListeners() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::vector<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string place, local, remote, state, skipped, inode;
    words >> place >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) words >> skipped;
    words >> inode;
    if (state == "0A" && local.starts_with("0100007F:") && own.contains(inode)) {
      ports.push_back(std::stoi(local.substr(9), nullptr, 16));
    }
  }
  return ports;
}

// Connects to wherever the ranks listen for each other, before they tell each other where that is,
// in the first `attempts` of a set-up.
class WithStrangers : public OnHosts {
 public:
  WithStrangers(ProcessGroup& group, const std::vector<int>& others, std::string garbage,
                bool stays, int attempts)
      : OnHosts(group, 8),
        others_(others),
        garbage_(std::move(garbage)),
        stays_(stays),
        attempts_(attempts) {}

  std::vector<std::string> AllGather(const std::string& text) override {
    // Places are told behind a word of 32 bytes and its length; problems can be as long.
    const bool tells_places = text.starts_with("32:");
    if (tells_places && attempts_ > 0) {
      Barrier();  // all listen
      if (rank() == 0) {
        --attempts_;
        for (const int port : OwnListeners()) {
          if (std::find(others_.begin(), others_.end(), port) == others_.end()) Visit(port);
        }
      } else {
        --attempts_;
      }
      Barrier();
    }
    return OnHosts::AllGather(text);
  }

 private:
  void Visit(int port) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
    [[maybe_unused]] const ssize_t sent =
        send(fd.get(), garbage_.data(), garbage_.size(), MSG_NOSIGNAL);
    if (stays_) stay_.push_back(std::move(fd));
  }

  const std::vector<int>& others_;
  const std::string garbage_;
  const bool stays_;
  int attempts_;
  std::vector<UniqueFd> stay_;
};

TEST_CASE("a stranger who connects while connections are set up does not end the run") {
  constexpr int kRanks = 3;
  const auto run = [&](const std::string& garbage, bool stays, int attempts) {
    std::vector<int> others;
    return AsRanks(kRanks, [&](TcpGroup& group) {
      if (group.rank() == 0) others = OwnListeners();  // the control channel's
      WithStrangers strangers(group, others, garbage, stays, attempts);
      SpreadFailure(group, [&] {
        GlooCommunicators communicators({kRanks, kRanks}, strangers);
        const RankMemory memory(CollectiveKind::kAllReduce, Dtype::kF32, group.rank(), kRanks,
                                false);
        communicators.Run(RankAxis::kAll, group.rank(), memory.call(), nullptr);
        ZEROPLAN_CHECK(memory.Result() == Expected(CollectiveKind::kAllReduce, Dtype::kF32, kRanks,
                                                   false)[static_cast<size_t>(group.rank())]);
        group.Barrier();
      });
    });
  };
  const std::string request = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: scan\r\n\r\n";
  SUBCASE("says nothing and goes") { CHECK(ErrorsOf(run("", false, 1)) == ""); }
  SUBCASE("says nothing and stays") { CHECK(ErrorsOf(run("", true, 1)) == ""); }
  SUBCASE("asks for a page and goes") { CHECK(ErrorsOf(run(request, false, 2)) == ""); }
  SUBCASE("asks for a page and stays") { CHECK(ErrorsOf(run(request, true, 1)) == ""); }
  SUBCASE("in every attempt") {
    for (const std::string& error : run("", false, 100)) {
      CAPTURE(error);
      CHECK(Has(error, "Gloo: connections between the ranks could not be set up in 4 attempts"));
    }
  }
}

TEST_CASE("who waits is let go when another rank fails, with that one's words") {
  constexpr int kRanks = 3;
  const auto errors = AsRanks(kRanks, [](TcpGroup& group) {
    GlooCommunicators communicators({kRanks, kRanks}, group);
    group.Barrier();
    if (group.rank() == 1) {
      communicators.Abort(std::make_exception_ptr(Error(ExitCode::kDiverged, "it diverges")));
      throw Error(ExitCode::kDiverged, "it diverges");
    }
    const RankMemory memory(CollectiveKind::kAllReduce, Dtype::kF32, group.rank(), kRanks, false);
    communicators.Run(RankAxis::kAll, group.rank(), memory.call(), nullptr);
  });
  CHECK(errors ==
        std::vector<std::string>{"rank 1: it diverges", "it diverges", "rank 1: it diverges"});
}

TEST_CASE("what interrupts a rank that waits is what it throws") {
  const auto errors = AsRanks(2, [](TcpGroup& group) {
    GlooCommunicators communicators({2, 2}, group);
    if (group.rank() == 1) return group.Barrier();
    std::thread watch([&] {
      communicators.Abort(std::make_exception_ptr(Error(ExitCode::kRuntime, "step 3 hangs")));
    });
    const RankMemory memory(CollectiveKind::kAllGather, Dtype::kF32, 0, 2, false);
    try {
      communicators.Run(RankAxis::kAll, 0, memory.call(), nullptr);
    } catch (...) {
      watch.join();
      throw;
    }
    watch.join();
  });
  CHECK(errors == std::vector<std::string>{"rank 0: step 3 hangs", "rank 0: step 3 hangs"});
}

}  // namespace
}  // namespace zeroplan
