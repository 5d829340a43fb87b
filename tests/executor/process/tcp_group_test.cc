// Groups of threads over localhost: what ranks exchange, who is let in, what is said of failures.
#include "executor/process/tcp_group.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "executor/process/launch_environment.h"
#include "executor/process/process_group.h"
#include "executor/process/rendezvous.h"
#include "tests/executor/process/thread_ranks.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

int ConnectRaw(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

TEST_CASE("large and small texts reach every rank, in rank order") {
  const auto errors = AsRanks(3, [](TcpGroup& group) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5'000'000}}) {
      const auto texts = group.AllGather(std::string(bytes, static_cast<char>('a' + group.rank())));
      ZEROPLAN_CHECK(texts.size() == 3);
      for (size_t r = 0; r < 3; ++r) {
        ZEROPLAN_CHECK(texts[r] == std::string(bytes, static_cast<char>('a' + r)));
      }
    }
    std::vector<std::byte> bytes(3'000'000, group.rank() == 0 ? std::byte{7} : std::byte{0});
    group.Broadcast(bytes);
    for (const std::byte byte : bytes) ZEROPLAN_CHECK(byte == std::byte{7});
    group.Barrier();
  });
  CHECK(ErrorsOf(errors) == "");
}

TEST_CASE("no rank passes a barrier before all have come") {
  std::atomic<int> came = 0;
  const auto errors = AsRanks(4, [&](TcpGroup& group) {
    for (int round = 1; round <= 20; ++round) {
      ++came;
      group.Barrier();
      ZEROPLAN_CHECK(came >= 4 * round, "{} in round {}", came.load(), round);
      group.Barrier();
    }
  });
  CHECK(ErrorsOf(errors) == "");
}

TEST_CASE("the first failure is what every rank reports, at every call after it") {
  for (const int failing : {0, 2}) {
    CAPTURE(failing);
    const auto errors = AsRanks(3, [&](TcpGroup& group) {
      group.Barrier();
      if (group.rank() == failing) {
        group.FailWith(ExitCode::kUsage, "no room in /data");
        group.Fail("a second thought");
      }
      try {
        group.Barrier();
        ZEROPLAN_CHECK(false, "passed");
      } catch (const Error& error) {
        ZEROPLAN_CHECK(error.code() == ExitCode::kUsage);
      }
      ZEROPLAN_CHECK(group.failed() && group.failure_code() == ExitCode::kUsage);
      group.AllGather("");
    });
    const std::string expected = "rank " + std::to_string(failing) + ": no room in /data";
    CHECK(errors == std::vector<std::string>(3, expected));
  }
}

TEST_CASE("ranks that fail at the same time agree on who was first") {
  const auto errors = AsRanks(4, [](TcpGroup& group) {
    group.Barrier();
    group.Fail("me");
    throw Error(ExitCode::kRuntime, group.failure());
  });
  for (const std::string& error : errors) {
    CHECK(error == errors[0]);
    CHECK(error.ends_with(": me"));
  }
}

TEST_CASE("ranks at different calls are told so") {
  const auto errors = AsRanks(2, [](TcpGroup& group) {
    if (group.rank() == 0) {
      group.Barrier();
    } else {
      group.AllGather("");
    }
  });
  for (const std::string& error : errors) CHECK(error.find("at ") != std::string::npos);
}

TEST_CASE("strangers neither get in nor in the way") {
  int port = 0;
  UniqueFd listener = Listen("127.0.0.1", false, port);
  // Before rank 0 accepts anybody: one says nothing, one nonsense, one goes away.
  const UniqueFd mute(ConnectRaw(port));
  const UniqueFd nonsense(ConnectRaw(port));
  REQUIRE(write(nonsense.get(), "GET / HTTP/1.1\r\n\r\n", 18) == 18);
  ::close(ConnectRaw(port));
  std::string intruder_error;
  std::vector<std::thread> threads;
  std::vector<std::string> gathered;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessPlace place = PlaceOf(rank, 2, port);
      if (rank == 0) place.listen_fd = listener.Release();
      // A process of another run comes first and is sent away.
      if (rank == 1) {
        ProcessPlace other = place;
        other.run_token = "another";
        try {
          TcpGroup intruder(other, Patient());
        } catch (const Error& error) {
          intruder_error = error.what();
        }
      }
      TcpGroup group(place, Patient());
      const auto texts = group.AllGather(std::to_string(rank));
      if (rank == 0) gathered = texts;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(gathered == std::vector<std::string>{"0", "1"});
  CHECK(intruder_error.find("another run") != std::string::npos);
}

TEST_CASE("waiting has an end that names who is missing") {
  TcpGroupOptions options;
  options.meet_limit = milliseconds(300);
  int port = 0;
  UniqueFd listener = Listen("127.0.0.1", false, port);
  ProcessPlace hub = PlaceOf(0, 3, port);
  hub.listen_fd = listener.Release();
  CHECK_THROWS_WITH_AS(TcpGroup(hub, options), doctest::Contains("ranks 1, 2 did not come"), Error);
  // Nobody listens there any more.
  CHECK_THROWS_WITH_AS(TcpGroup(PlaceOf(1, 3, port), options),
                       doctest::Contains("cannot reach rank 0 at 127.0.0.1"), Error);
}

// Three ranks, of which `late` never comes to barrier 1 though its other thread is well and says
// so. What each threw.
std::vector<std::string> OneDoesNotCome(int late, std::chrono::seconds limit) {
  return AsRanks(3, [&](TcpGroup& group) {
    group.Barrier();
    group.SetDeadline(limit, "saving step 40");
    if (group.rank() == late) Await([&] { return group.failed(); });
    group.Barrier();
  });
}

TEST_CASE("a rank that does not come is named, with what it is at") {
  for (const int late : {0, 2}) {
    CAPTURE(late);
    const std::string name =
        fmt::format("rank {}: has not come to barrier 1 (saving step 40) within ", late);
    std::string why;
    const auto names_it = [&](milliseconds limit) {
      const auto errors = OneDoesNotCome(late, std::chrono::ceil<std::chrono::seconds>(limit));
      why = fmt::format("{}", fmt::join(errors, "\n"));
      return errors == std::vector<std::string>(3, errors[0]) && errors[0].starts_with(name) &&
             std::stoll(errors[0].substr(name.size())) * 1000 >= limit.count() &&
             errors[0].find(" s of rank ") != std::string::npos &&
             errors[0].find("saving step 40, past barrier 0 for ") != std::string::npos;
    };
    CHECK_MESSAGE(WithLongerLimits(milliseconds(1'000), names_it), why);
  }
}

TEST_CASE("all ranks that do not come are named, up to a few") {
  std::string why;
  const auto names_them = [&](milliseconds limit) {
    const auto errors = AsRanks(13, [&](TcpGroup& group) {
      group.Barrier();
      group.SetDeadline(std::chrono::ceil<std::chrono::seconds>(limit), "");
      if (group.rank() > 1) Await([&] { return group.failed(); });
      group.AllGather("");
    });
    why = fmt::format("{}", fmt::join(errors, "\n"));
    return errors == std::vector<std::string>(13, errors[0]) &&
           errors[0].starts_with("rank 2: has not come to all-gather 1 within ") &&
           errors[0].ends_with(". Nor have ranks 3, 4, 5, 6, 7, 8, 9 and 3 more");
  };
  CHECK_MESSAGE(WithLongerLimits(milliseconds(1'000), names_them), why);
}

TEST_CASE("a longer deadline is kept to") {
  TcpGroupOptions options = Patient();
  options.collective_limit = milliseconds(300);
  const auto errors = AsRanks(
      2,
      [&](TcpGroup& group) {
        group.SetDeadline(std::chrono::ceil<std::chrono::seconds>(kNoLimit), "loading weights");
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1'500));
        group.Barrier();
      },
      options);
  CHECK(ErrorsOf(errors) == "");
}

TEST_CASE("ranks that expect another size of a broadcast are told so") {
  const auto errors = AsRanks(2, [](TcpGroup& group) {
    std::vector<std::byte> bytes(group.rank() == 0 ? 10 : 20);
    group.Broadcast(bytes);
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("bytes of broadcast 0 where rank") != std::string::npos);
    CHECK(error.find("20 ") != std::string::npos);
    CHECK(error.find("10 ") != std::string::npos);
  }
}

TEST_CASE("a message that names its rank already does not name it twice") {
  const auto errors = AsRanks(2, [](TcpGroup& group) {
    if (group.rank() == 0) group.Fail("rank 0: rank 0: no room");
    group.Barrier();
  });
  CHECK(errors == std::vector<std::string>(2, "rank 0: no room"));
}

TEST_CASE("ranks know whether rank 0 says why the run failed") {
  std::atomic<int> said = 0;
  AsRanks(3, [&](TcpGroup& group) {
    CHECK_FALSE(group.rank_0_says_it());
    group.Barrier();
    if (group.rank() == 0) group.Fail("no room");
    try {
      group.Barrier();
    } catch (const Error&) {
      if (group.rank_0_says_it()) ++said;
    }
  });
  CHECK(said == 3);
}

// torchrun starts workers again with the same address, port and run id; its count of restarts
// differs between hosts, so that nothing may hang on it.
TEST_CASE("ranks that torchrun starts again meet at the port of those that failed") {
  int free_port = 0;
  Listen("127.0.0.1", false, free_port).Close();
  for (int start = 0; start < 3; ++start) {
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const std::map<std::string, std::string> variables = {
            {"RANK", std::to_string(rank)},
            {"WORLD_SIZE", "3"},
            {"LOCAL_RANK", std::to_string(rank)},
            {"LOCAL_WORLD_SIZE", "3"},
            {"MASTER_ADDR", "localhost"},
            {"MASTER_PORT", std::to_string(free_port)},
            {"TORCHELASTIC_RUN_ID", "none"},
            {"TORCHELASTIC_MAX_RESTARTS", "3"},
            {"TORCHELASTIC_RESTART_COUNT", std::to_string(rank == 0 ? start : 0)}};
        try {
          const auto place = PlaceFromEnvironment([&](const char* name) -> const char* {
            const auto found = variables.find(name);
            return found == variables.end() ? nullptr : found->second.c_str();
          });
          TcpGroup group(*place, Patient());
          group.Barrier();
          if (start < 2 && rank == start) group.Fail("the GPU fell off the bus");
          group.Barrier();
        } catch (const Error& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string name = "rank " + std::to_string(start);
    const std::string failed = name + ": the GPU fell off the bus";
    CHECK(errors == std::vector<std::string>(3, start < 2 ? failed : ""));
  }
}

TEST_CASE("an occupied port is named, with the way to another") {
  int port = 0;
  const UniqueFd taken = Listen("127.0.0.1", false, port);
  CHECK_THROWS_WITH_AS(TcpGroup(PlaceOf(0, 2, port), Patient()), doctest::Contains("ZEROPLAN_PORT"),
                       Error);
}

TEST_CASE("a single process is a group of its own") {
  SingleProcess group;
  group.Barrier();
  CHECK(group.world_size() == 1);
  CHECK(group.AllGather("x") == std::vector<std::string>{"x"});
  CHECK_FALSE(group.failed());
}

}  // namespace
}  // namespace zeroplan
