// Strangers at the rendezvous, and peers that break the protocol after it.
#include "executor/process/rendezvous.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "executor/process/handshake.h"
#include "executor/process/star_frames.h"
#include "tests/executor/process/thread_ranks.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

const std::string kSecret(40, 's');

// From 127.0.0.`from`; -1 if nobody listens there.
int ConnectFrom(int from, int port, int to = 1) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(0x7f000000u + static_cast<uint32_t>(from));
  CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(0x7f000000u + static_cast<uint32_t>(to));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// A port of this host that nobody listens at while this is held.
UniqueFd TakePort(int& port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port = ntohs(address.sin_port);
  return fd;
}

// What a call threw, and its code; "" if nothing.
struct Thrown {
  std::string text;
  ExitCode code = ExitCode::kDone;
};
Thrown Catch(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {};
}

// Rank 0 and rank 1 of two as threads, each with what it does; what each threw.
std::vector<Thrown> TwoRanks(const std::function<void(ProcessPlace)>& hub,
                             const std::function<void(ProcessPlace)>& rank) {
  int port = 0;
  UniqueFd listener = Listen("127.0.0.1", false, port);
  ProcessPlace first = PlaceOf(0, 2, port), second = PlaceOf(1, 2, port);
  first.listen_fd = listener.Release();
  std::vector<Thrown> thrown(2);
  std::thread other([&] { thrown[1] = Catch([&] { rank(second); }); });
  thrown[0] = Catch([&] { hub(first); });
  other.join();
  return thrown;
}

MeetOptions Within(milliseconds limit) { return {limit, nullptr}; }

// Connections that send a byte a while, for ever, and come again when they are dropped.
class Crowd {
 public:
  Crowd(int count, int from, int port) {
    for (int i = 0; i < count; ++i) fds_.push_back(ConnectFrom(from, port));
    thread_ = std::thread([this, from, port] {
      while (!over_) {
        for (int& fd : fds_) {
          if (fd >= 0 && send(fd, "\0", 1, MSG_NOSIGNAL) == 1) continue;
          if (fd >= 0) close(fd);
          fd = over_ ? -1 : ConnectFrom(from, port);
        }
        std::this_thread::sleep_for(milliseconds(50));
      }
    });
  }
  ~Crowd() {
    over_ = true;
    thread_.join();
    for (const int fd : fds_) {
      if (fd >= 0) close(fd);
    }
  }

 private:
  std::vector<int> fds_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// The longest that two ranks took to meet among strangers.
std::chrono::duration<double> MeetInACrowd() {
  std::chrono::duration<double> longest(0);
  for (const int from : {1, 2}) {  // the rank's own address, and another
    for (const int count : {64, 300}) {
      CAPTURE(from);
      CAPTURE(count);
      int port = 0;
      UniqueFd listener = Listen("127.0.0.1", false, port);
      const Crowd crowd(count, from, port);
      const auto begin = std::chrono::steady_clock::now();
      Thrown hub, rank;
      std::thread thread([&] {
        ProcessPlace place = PlaceOf(0, 2, port);
        place.listen_fd = listener.Release();
        hub = Catch([&] { MeetAsHub(place, Within(kNoLimit)); });
      });
      std::this_thread::sleep_for(milliseconds(300));  // all places are likely to be taken by now
      rank = Catch([&] { MeetHub(PlaceOf(1, 2, port), Within(kNoLimit)); });
      thread.join();
      CHECK(hub.text == "");
      CHECK(rank.text == "");
      longest = std::max<std::chrono::duration<double>>(longest,
                                                        std::chrono::steady_clock::now() - begin);
    }
  }
  return longest;
}

TEST_CASE("slow strangers keep no rank out, however many and from wherever") { MeetInACrowd(); }

TEST_CASE("slow strangers do not keep ranks waiting" * doctest::test_suite("timing")) {
  CHECK(MeetInACrowd() < std::chrono::seconds(5));
}

TEST_CASE("who does not know the secret does not join, and says nothing of it") {
  std::vector<std::string> why(3);
  const auto thrown = TwoRanks(
      [](ProcessPlace place) {
        place.secret = kSecret;
        MeetAsHub(place, Within(kNoLimit));
      },
      [&](ProcessPlace place) {
        const auto join = [&](const std::string& secret, const std::string& token) {
          place.secret = secret;
          place.run_token = token;
          return Catch([&] { MeetHub(place, Within(kNoLimit)); }).text;
        };
        why[0] = join("", "token");
        why[1] = join(std::string(40, 't'), "token");
        why[2] = join(kSecret, "other");
        CHECK(join(kSecret, "token") == "");
      });
  CHECK(thrown[0].text == "");
  CHECK(thrown[1].text == "");
  CHECK(why[0].find("rank 0 has a secret and it has none; set ZEROPLAN_SECRET_FILE") !=
        std::string::npos);
  CHECK(why[1].find("another run or has another secret") != std::string::npos);
  CHECK(why[2].find("another run or has another secret") != std::string::npos);
}

TEST_CASE("whoever listens in rank 0's place learns no secret and gets no rank") {
  std::string heard;
  std::vector<Thrown> thrown;
  const auto gets_no_rank = [&](milliseconds limit) {
    std::atomic<bool> over = false;
    thrown = TwoRanks(
        [&](ProcessPlace place) {  // an impostor
          const UniqueFd listener(place.listen_fd);
          while (!over) {
            UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (!fd) {
              std::this_thread::sleep_for(milliseconds(5));
              continue;
            }
            Connection connection(std::move(fd));
            connection.Queue(FrameType::kChallenge, std::string(kNonceBytes, 'n'));
            connection.Queue(FrameType::kJoined, std::string(32, 'p'));
            connection.Queue(FrameType::kStart);
            for (int turn = 0; turn < 20; ++turn) {
              connection.Pump();
              while (const auto frame = connection.Next()) heard += frame->payload;
              std::this_thread::sleep_for(milliseconds(5));
            }
          }
        },
        [&](ProcessPlace place) {
          place.secret = kSecret;
          const Thrown why = Catch([&] { MeetHub(place, Within(limit)); });
          over = true;
          throw Error(why.code, why.text);
        });
    return thrown[1].text.find("does not know this run's secret") != std::string::npos;
  };
  CHECK_MESSAGE(WithLongerLimits(milliseconds(1'000), gets_no_rank), thrown[1].text);
  CHECK(thrown[1].code == ExitCode::kRuntime);
  CHECK(heard.find("zeroplan") != std::string::npos);
  CHECK(heard.find(kSecret) == std::string::npos);
  CHECK(heard.find("token") == std::string::npos);
}

TEST_CASE("ranks that had come hear who did not") {
  Thrown hub, rank;
  const auto hear = [&](milliseconds limit) {
    int port = 0;
    UniqueFd listener = Listen("127.0.0.1", false, port);
    ProcessPlace place = PlaceOf(0, 3, port);
    place.listen_fd = listener.Release();
    std::thread thread([&] { hub = Catch([&] { MeetAsHub(place, Within(limit)); }); });
    rank = Catch([&] { MeetHub(PlaceOf(1, 3, port), Within(limit)); });
    thread.join();
    const std::string why = fmt::format("rank 2 did not come within {} s", limit.count() / 1'000);
    return hub.text.find(why) != std::string::npos && rank.text == hub.text;
  };
  CHECK_MESSAGE(WithLongerLimits(milliseconds(1'000), hear), hub.text, "\n", rank.text);
  CHECK(hub.text.find("⟦rendezvous_timeout⟧") != std::string::npos);
  CHECK(rank.code == ExitCode::kRuntime);
}

TEST_CASE("a stop is heard while ranks meet") {
  std::atomic<bool> stop = false;
  const MeetOptions options{kNoLimit, [&] { return stop.load(); }};
  int port = 0;
  UniqueFd listener = Listen("127.0.0.1", false, port);
  ProcessPlace place = PlaceOf(0, 4, port);
  place.listen_fd = listener.Release();
  Thrown hub, joined, not_joined;
  std::thread a([&] { hub = Catch([&] { MeetAsHub(place, options); }); });
  std::thread b([&] { joined = Catch([&] { MeetHub(PlaceOf(1, 4, port), options); }); });
  // Nobody listens at this one's port, nor can.
  int free_port = 0;
  const UniqueFd taken = TakePort(free_port);
  std::thread c([&] { not_joined = Catch([&] { MeetHub(PlaceOf(2, 4, free_port), options); }); });
  std::this_thread::sleep_for(milliseconds(500));  // they are likely to wait by then
  stop = true;
  for (std::thread* thread : {&a, &b, &c}) thread->join();
  for (const Thrown& thrown : {hub, joined, not_joined}) {
    CHECK(thrown.code == ExitCode::kInterrupted);
    CHECK(thrown.text.find("interrupted while the ranks met") != std::string::npos);
  }
}

TEST_CASE("a rank that is stopped while ranks meet stops the others") {
  std::vector<Thrown> thrown;
  // The rank has to have come when it is stopped, or rank 0 would not know of it.
  const auto stops_others = [&](milliseconds limit) {
    thrown = TwoRanks(
        [&](ProcessPlace place) {
          place.world_size = 3;
          MeetAsHub(place, Within(10 * limit));
        },
        [&](ProcessPlace place) {
          place.world_size = 3;
          const auto begin = std::chrono::steady_clock::now();
          const auto stopped = [&] { return std::chrono::steady_clock::now() - begin > limit; };
          MeetHub(place, {kNoLimit, stopped});
        });
    return thrown[0].text == "rank 1: interrupted while the ranks met";
  };
  CHECK_MESSAGE(WithLongerLimits(milliseconds(500), stops_others), thrown[0].text);
  CHECK(thrown[0].code == ExitCode::kInterrupted);
}

TEST_CASE("rank 0 listens at the named address alone") {
  int port = 0;
  const UniqueFd named = Listen("127.0.0.2", false, port);
  CHECK(ConnectFrom(1, port) == -1);
  const UniqueFd reached(ConnectFrom(1, port, 2));
  CHECK(reached);
  // A name of this host that is its loopback interface's is no way in for other hosts.
  port = 0;
  const UniqueFd all = Listen("localhost", true, port);
  const UniqueFd through(ConnectFrom(1, port, 3));
  CHECK(through);
  // One of several addresses is not known to be this host's.
  port = 0;
  const UniqueFd list = Listen("203.0.113.7,127.0.0.1", true, port);
  const UniqueFd also(ConnectFrom(1, port, 3));
  CHECK(also);
  port = 0;
  CHECK_THROWS_WITH_AS(Listen("no-such-host.invalid", true, port),
                       doctest::Contains("no-such-host.invalid"), Error);
}

TEST_CASE("failures of peers are failures, and fit for a terminal") {
  for (int code = 0; code < 256; ++code) {
    const Failure read = ReadFailure(static_cast<char>(code) + std::string("why"));
    const bool known = code == 2 || code == 3 || code == 5 || code == 130;
    CHECK(static_cast<int>(read.code) == (known ? code : 4));
  }
  CHECK(ReadFailure("").message == "failed");
  CHECK(ReadFailure(std::string(1, '\0')).message == "failed");
  CHECK(PeerText("a\x1b]0;title\x07\r\nb\x7f \xc2\x9b"
                 "2J \xc3\xa4") == "a?]0;title?? b? ??2J \xc3\xa4");
  CHECK(ReadFailure("\x04two\x1b[1m\nlines").message == "two?[1m\nlines");
  CHECK(PeerText(std::string(100'000, 'x')).size() == kMaxPeerText + 3);
  CHECK(OfRank(3, "rank 3: rank 3: x") == "rank 3: x");
  CHECK(OfRank(3, "rank 31: x") == "rank 3: rank 31: x");
  // Through a whole group.
  for (const char code : {'\0', '\1', '\xff'}) {
    const auto thrown =
        TwoRanks([](ProcessPlace place) { TcpGroup(place, Patient()).Barrier(); },
                 [&](ProcessPlace place) {
                   Connection connection = MeetHub(place, Within(kNoLimit));
                   connection.Queue(FrameType::kFailed, code + std::string("\x1b[2J gone"));
                   connection.Pump();
                   std::this_thread::sleep_for(milliseconds(300));
                 });
    CHECK(thrown[0].code == ExitCode::kRuntime);
    CHECK(thrown[0].text == "rank 1: ?[2J gone");
  }
}

TEST_CASE("a rank that breaks the protocol is lost, and nothing else happens") {
  const std::string huge(8, '\xff');
  const std::vector<std::pair<FrameType, std::string>> frames = {
      {FrameType::kPart, ""},
      {FrameType::kPart, std::string(8, '\0')},
      {FrameType::kPart, std::string(8, '\0') + '\7' + std::string(24, '\0')},  // no such call
      {FrameType::kPart, std::string(25, '\0') + huge},                         // purpose's length
      {FrameType::kPart, std::string(17, '\0') + huge + std::string(8, '\0')},  // limit
      {FrameType::kAlive, ""},
      {FrameType::kAlive, std::string(8, '\0') + huge},
      {FrameType::kResult, ""},
      {FrameType::kStart, ""},
      {FrameType::kHello, "zeroplan"},
      {FrameType::kJoined, ""},
      {FrameType::kRefused, "no"},
      {FrameType::kChallenge, ""},
      {FrameType::kProof, ""}};
  for (size_t i = 0; i < frames.size(); ++i) {
    CAPTURE(i);
    const auto thrown = TwoRanks([](ProcessPlace place) { TcpGroup(place, Patient()).Barrier(); },
                                 [&](ProcessPlace place) {
                                   Connection evil = MeetHub(place, Within(kNoLimit));
                                   evil.Queue(frames[i].first, frames[i].second);
                                   while (evil.open()) {
                                     evil.Pump();
                                     std::this_thread::sleep_for(milliseconds(5));
                                   }
                                 });
    CHECK(thrown[0].code == ExitCode::kRuntime);
    CAPTURE(thrown[0].text);
    CHECK(thrown[0].text.starts_with("rank 1: lost (it sent "));
  }
}

TEST_CASE("two parts of one collective are a rank's end") {
  const auto thrown = TwoRanks(
      [](ProcessPlace place) {
        TcpGroup group(place, Patient());
        Await([&] { return group.failed(); });  // rank 0 has no part in it yet
        group.Barrier();
      },
      [](ProcessPlace place) {
        Connection evil = MeetHub(place, Within(kNoLimit));
        Part part;
        part.limit = kNoLimit;
        for (int i = 0; i < 2; ++i) evil.Queue(FrameType::kPart, WritePart(part));
        while (evil.open()) {
          evil.Pump();
          std::this_thread::sleep_for(milliseconds(5));
        }
      });
  CHECK(thrown[0].text == "rank 1: lost (it sent two parts of one collective)");
}

TEST_CASE("a rank 0 that breaks the protocol is lost") {
  const auto result = [](CollectiveCall call, std::vector<std::string> texts, uint64_t number = 0) {
    return WriteResult(Result{number, call, std::move(texts)});
  };
  const std::vector<std::pair<FrameType, std::string>> frames = {
      {FrameType::kResult, ""},
      {FrameType::kResult, result(CollectiveCall::kBarrier, {})},
      {FrameType::kResult, result(CollectiveCall::kAllGather, {"a"})},
      {FrameType::kResult, result(CollectiveCall::kAllGather, {"a", "b", "c"})},
      {FrameType::kResult, result(CollectiveCall::kAllGather, {"a", "b"}, 1)},
      {FrameType::kResult,
       result(CollectiveCall::kAllGather, {}) + std::string(8, '\xff')},  // a text's length
      {FrameType::kPart, ""},
      {FrameType::kStart, ""}};
  for (size_t i = 0; i < frames.size(); ++i) {
    CAPTURE(i);
    const auto thrown = TwoRanks(
        [&](ProcessPlace place) {
          Connection evil = std::move(MeetAsHub(place, Within(kNoLimit))[1]);
          bool answered = false;
          while (evil.open()) {
            evil.Pump();
            while (const auto frame = evil.Next()) {
              if (frame->type != FrameType::kPart || answered) continue;
              answered = true;
              evil.Queue(frames[i].first, frames[i].second);
            }
            std::this_thread::sleep_for(milliseconds(5));
          }
        },
        [](ProcessPlace place) { TcpGroup(place, Patient()).AllGather("x"); });
    CHECK(thrown[1].code == ExitCode::kRuntime);
    CAPTURE(thrown[1].text);
    CHECK(thrown[1].text.starts_with("rank 0: lost (it sent "));
  }
  for (const size_t bytes : {size_t{0}, size_t{9}, size_t{11}}) {
    const auto thrown = TwoRanks(
        [&](ProcessPlace place) {
          Connection evil = std::move(MeetAsHub(place, Within(kNoLimit))[1]);
          evil.Queue(FrameType::kAlive);
          while (evil.open()) {
            evil.Pump();
            while (const auto frame = evil.Next()) {
              if (frame->type != FrameType::kPart) continue;
              evil.Queue(FrameType::kResult,
                         result(CollectiveCall::kBroadcast, {std::string(bytes, 'x')}));
            }
            std::this_thread::sleep_for(milliseconds(5));
          }
        },
        [](ProcessPlace place) {
          std::vector<std::byte> ten(10);
          TcpGroup(place, Patient()).Broadcast(ten);
        });
    CHECK(thrown[1].text == "rank 0: lost (it sent a broadcast of another size)");
  }
}

TEST_CASE("a rank 0 that only says that it is well keeps nobody waiting") {
  std::string why;
  const auto gives_up = [&](milliseconds limit) {
    why = TwoRanks(
              [](ProcessPlace place) {
                Connection evil = std::move(MeetAsHub(place, Within(kNoLimit))[1]);
                while (evil.open()) {
                  if (!evil.wants_to_send()) evil.Queue(FrameType::kAlive);
                  evil.Pump();
                  while (evil.Next()) {
                  }
                  std::this_thread::sleep_for(milliseconds(50));
                }
              },
              [&](ProcessPlace place) {
                TcpGroupOptions options = Patient();
                options.silence_limit = limit;
                TcpGroup group(place, options);
                group.SetDeadline(std::chrono::seconds(1), "loading weights");
                group.Barrier();
              })[1]
              .text;
    return why.starts_with("rank 0: no answer to barrier 0 (loading weights) for ");
  };
  CHECK_MESSAGE(WithLongerLimits(milliseconds(1'000), gives_up), why);
}

TEST_CASE("a secret's file is its owner's alone") {
  std::string name = (std::filesystem::temp_directory_path() / "zeroplan_secret_XXXXXX").string();
  const UniqueFd file(mkstemp(name.data()));
  const auto write = [&](const std::string& text) { std::ofstream(name) << text; };
  const auto why = [&] { return Catch([&] { ReadSecretFile(name); }); };
  write(kSecret + "\n");
  CHECK(ReadSecretFile(name) == kSecret);
  for (const mode_t mode : {0640, 0604, 0620, 0601, 0777}) {
    chmod(name.c_str(), mode);
    CHECK(why().code == ExitCode::kUsage);
    CHECK(why().text.find("chmod 600") != std::string::npos);
  }
  chmod(name.c_str(), 0600);
  for (const std::string& bad : {std::string(), std::string("short\n"), std::string(5000, 'x')}) {
    write(bad);
    CHECK(why().text.starts_with("ZEROPLAN_SECRET_FILE: "));
    CHECK(why().text.find("openssl rand -hex 32") != std::string::npos);
  }
  std::filesystem::remove(name);
  CHECK(why().text.find("No such file") != std::string::npos);
  CHECK(Catch([] { ReadSecretFile("/tmp"); }).text.find("no regular file") != std::string::npos);
  CHECK(RandomBytes(32) != RandomBytes(32));
}

}  // namespace
}  // namespace zeroplan
