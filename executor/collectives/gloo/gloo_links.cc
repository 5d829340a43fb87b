#include "executor/collectives/gloo/gloo_links.h"

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "executor/process/connection.h"
#include "executor/process/handshake.h"
#include "executor/process/host_text.h"

namespace zeroplan {

namespace {

using std::chrono::milliseconds;

// Gloo takes a wait that runs out for the end of all its connections: limits are the run's own.
constexpr milliseconds kForEver = std::chrono::hours(24 * 365);
// How soon a failure of the group lets go who waits here.
constexpr milliseconds kLookEvery(50);
// A connection that breaks is most often one of a rank that is gone, and the group knows it soon.
constexpr milliseconds kVerdict(5'000);
// How often connections are set up before a network is taken for the reason that they are not.
constexpr int kAttempts = 4;
// What a rank says first over a connection, under a number that no message has, and how long it is
// waited for, that much longer in each attempt. Its peer has said that it is connected.
constexpr size_t kWordBytes = 32;
constexpr uint64_t kWordNumber = ~uint64_t{0};
constexpr milliseconds kWordLimit(10'000);

// The hosts of the ranks, by rank. A rank that knows its host by loopback is on rank 0's, which
// ranks on other hosts reach by rank 0's address.
std::vector<std::string> HostsOfRanks(ProcessGroup& group) {
  std::vector<std::string> hosts = group.AllGather(group.host_address());
  if (IsLoopbackText(hosts.front())) return hosts;
  for (std::string& host : hosts) {
    if (IsLoopbackText(host)) host = hosts.front();
  }
  return hosts;
}

std::shared_ptr<gloo::transport::Device> MakeDevice(const std::string& own_host) {
  gloo::transport::tcp::attr attr;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    attr.iface = interface;
  } else {
    attr.hostname = own_host;
  }
  try {
    return gloo::transport::tcp::CreateDevice(attr);
  } catch (const std::system_error& error) {
    ThrowNoThread("Gloo", error.code().value());  // its own, of which it has one
  } catch (const std::exception& error) {
    ThrowRuntime(
        "Gloo: cannot listen at {}: {}; GLOO_SOCKET_IFNAME names the interface that leads to the "
        "other hosts",
        attr.iface.empty() ? attr.hostname : attr.iface, error.what());
  }
}

// A text of texts, each after its length.
std::string Pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += fmt::format("{}:{}", text.size(), text);
  return packed;
}

std::vector<std::string> Unpack(const std::string& packed) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < packed.size();) {
    char* rest = nullptr;
    const size_t bytes = std::strtoull(packed.c_str() + at, &rest, 10);
    const size_t begin = static_cast<size_t>(rest - packed.c_str()) + 1;
    texts.push_back(packed.substr(begin, bytes));
    at = begin + bytes;
  }
  return texts;
}

}  // namespace

struct GlooLinks::Message::Buffer {
  std::unique_ptr<gloo::transport::UnboundBuffer> bytes;
  int peer = 0;
  bool sends = false;
};

void GlooLinks::Message::Delete::operator()(Buffer* buffer) const noexcept { delete buffer; }
GlooLinks::Message::~Message() = default;

class GlooLinks::Impl {
 public:
  Impl(ProcessGroup& group, double limit_seconds)
      : group_(group),
        hosts_(HostsOfRanks(group)),
        device_(MakeDevice(hosts_[static_cast<size_t>(group.rank())])) {
    Connect(limit_seconds);
    watcher_ = StartThread("the watch of Gloo's connections", [this] { WatchGroup(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    changed_.notify_all();
    watcher_.join();
  }

  const std::vector<std::string>& hosts() const { return hosts_; }

  Message Start(bool sends, int peer, uint64_t number, void* data, uint64_t bytes) {
    ThrowIfAborted();
    Message message;
    message.buffer_.reset(new Message::Buffer);
    Message::Buffer& buffer = *message.buffer_;
    buffer.peer = peer;
    buffer.sends = sends;
    try {
      buffer.bytes = context_->createUnboundBuffer(data, bytes);
      if (sends) {
        buffer.bytes->send(peer, number);
      } else {
        buffer.bytes->recv(peer, number);
      }
    } catch (const std::exception& error) {
      Lost(peer, error.what());
    }
    return message;
  }

  void Await(Message& message) {
    if (!message) return;
    Message::Buffer& buffer = *message.buffer_;
    {
      const std::lock_guard lock(mutex_);
      waits_for_ = &buffer;
      if (aborted_) LetGo();
    }
    bool through = false;
    std::string problem;
    try {
      through = buffer.sends ? buffer.bytes->waitSend(nullptr, kForEver)
                             : buffer.bytes->waitRecv(nullptr, kForEver);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    {
      const std::lock_guard lock(mutex_);
      waits_for_ = nullptr;
    }
    if (!problem.empty()) Lost(buffer.peer, problem);
    if (!through) ThrowIfAborted();
    message.buffer_.reset();
  }

  void Abort(const std::exception_ptr& cause) noexcept {
    const std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = cause;
    LetGo();
  }

 private:
  // Until all pairs are connected, each of their ends listens, and takes whoever comes first for
  // its peer. So the ranks tell each other over the control channel, which knows who belongs to the
  // run, what they will say first, and begin anew where another has come.
  void Connect(double limit_seconds) {
    const auto begin = std::chrono::steady_clock::now();
    for (int attempt = 1;; ++attempt) {
      const std::string problem = TryConnect(limit_seconds, attempt);
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      const bool late = limit_seconds > 0 && waited.count() >= limit_seconds;
      std::string first;
      bool again = attempt < kAttempts;
      const std::vector<std::string> all = group_.AllGather((late ? '!' : '.') + problem);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        again = again && all[rank].front() != '!';
        if (first.empty() && all[rank].size() > 1) {
          first = fmt::format("rank {}: {}", rank, all[rank].substr(1));
        }
      }
      if (first.empty()) return;
      if (!again) {
        ThrowRuntime(
            "Gloo: connections between the ranks could not be set up{}: {}; the network between "
            "the hosts may not let them reach one another ('zeroplan doctor --hosts' says where), "
            "or GLOO_SOCKET_IFNAME names the interface that does",
            attempt > 1 ? fmt::format(" in {} attempts", attempt) : "", first);
      }
      if (group_.rank() == 0) {
        LogWarning(
            "Gloo: {}; a stranger who connects meanwhile, as a port scan does, ends the set-up of "
            "connections: they are set up again (attempt {} of {})",
            first, attempt + 1, kAttempts);
      }
    }
  }

  // "", or what went wrong: another attempt needs another context. Comes back on every rank.
  std::string TryConnect(double limit_seconds, int attempt) {
    const int rank = group_.rank(), ranks = group_.world_size();
    const auto limit =
        limit_seconds > 0 ? milliseconds(static_cast<int64_t>(limit_seconds * 1000)) : kForEver;
    context_ = device_->createContext(rank, ranks);
    context_->setTimeout(limit);
    // What each rank says: what it says first, and where it listens for each of the others.
    std::vector<std::string> mine = {RandomBytes(kWordBytes)};
    try {
      for (int peer = 0; peer < ranks; ++peer) {
        std::vector<char> bytes;
        if (peer != rank) bytes = context_->createPair(peer)->address().bytes();
        mine.emplace_back(bytes.begin(), bytes.end());
      }
    } catch (const std::exception& error) {
      ThrowRuntime("Gloo: cannot listen: {}", error.what());
    }
    std::vector<std::vector<std::string>> said;
    for (const std::string& text : group_.AllGather(Pack(mine))) said.push_back(Unpack(text));
    std::string problem;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const std::string& address = said[static_cast<size_t>(peer)][static_cast<size_t>(rank) + 1];
      try {
        context_->getPair(peer)->connect({address.begin(), address.end()});
      } catch (const std::exception& error) {
        if (problem.empty()) problem = NoConnection(peer, error.what());
      }
    }
    // A rank whose peer has gone elsewhere is not waited for.
    for (const std::string& text : group_.AllGather(problem)) {
      if (!text.empty()) return problem;
    }
    return HearPeers(said, attempt);
  }

  // Each end says its rank's word first.
  std::string HearPeers(const std::vector<std::vector<std::string>>& said, int attempt) {
    const int rank = group_.rank(), ranks = group_.world_size();
    std::string own = said[static_cast<size_t>(rank)].front();
    std::vector<std::string> heard(static_cast<size_t>(ranks), std::string(kWordBytes, '\0'));
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
    int peer = 0;
    try {
      const auto begun = [&](std::string& bytes) {
        return buffers.emplace_back(context_->createUnboundBuffer(bytes.data(), bytes.size()))
            .get();
      };
      for (peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        begun(own)->send(peer, kWordNumber);
        begun(heard[static_cast<size_t>(peer)])->recv(peer, kWordNumber);
      }
      size_t next = 0;
      for (peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        buffers[next++]->waitSend(nullptr, attempt * kWordLimit);
        buffers[next++]->waitRecv(nullptr, attempt * kWordLimit);
        if (heard[static_cast<size_t>(peer)] != said[static_cast<size_t>(peer)].front()) {
          return NoConnection(peer, "another has connected in its place");
        }
      }
    } catch (const std::exception& error) {
      return NoConnection(peer, error.what());
    }
    return "";
  }

  std::string NoConnection(int peer, std::string_view why) const {
    return fmt::format("no connection to rank {} at {}: {}{}", peer,
                       hosts_[static_cast<size_t>(peer)], why,
                       OnHostText(hosts_[static_cast<size_t>(group_.rank())]));
  }

  // REQUIRES: mutex_ is held
  void LetGo() noexcept {
    if (waits_for_ == nullptr) return;
    if (waits_for_->sends) {
      waits_for_->bytes->abortWaitSend();
    } else {
      waits_for_->bytes->abortWaitRecv();
    }
  }

  void ThrowIfAborted() {
    std::exception_ptr cause;
    {
      const std::lock_guard lock(mutex_);
      cause = aborted_;
    }
    if (!cause) return;
    group_.ThrowIfFailed();
    std::rethrow_exception(cause);
  }

  [[noreturn]] void Lost(int peer, const std::string& why) {
    const auto begin = std::chrono::steady_clock::now();
    while (!group_.failed() && std::chrono::steady_clock::now() - begin < kVerdict) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    ThrowIfAborted();
    group_.ThrowIfFailed();
    ThrowRuntime("Gloo: the connection to rank {} at {} is lost: {}", peer,
                 hosts_[static_cast<size_t>(peer)], why);
  }

  void WatchGroup() {
    std::unique_lock lock(mutex_);
    while (!leaving_ && !aborted_) {
      changed_.wait_for(lock, kLookEvery, [this] { return leaving_; });
      if (leaving_ || !group_.failed()) continue;
      aborted_ = std::make_exception_ptr(Error(group_.failure_code(), group_.failure()));
      LetGo();
    }
  }

  ProcessGroup& group_;
  const std::vector<std::string> hosts_;
  const std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ = false;
  std::exception_ptr aborted_;
  Message::Buffer* waits_for_ = nullptr;
  std::jthread watcher_;  // last
};

GlooLinks::GlooLinks(ProcessGroup& group, double limit_seconds)
    : impl_(std::make_unique<Impl>(group, limit_seconds)) {}
GlooLinks::~GlooLinks() = default;

const std::vector<std::string>& GlooLinks::hosts() const { return impl_->hosts(); }

GlooLinks::Message GlooLinks::Send(int to, uint64_t number, const std::byte* data, uint64_t bytes) {
  // Gloo reads a buffer that is sent, and takes its address as one that could be written to.
  return impl_->Start(true, to, number, const_cast<std::byte*>(data), bytes);
}

GlooLinks::Message GlooLinks::Receive(int from, uint64_t number, std::byte* data, uint64_t bytes) {
  return impl_->Start(false, from, number, data, bytes);
}

void GlooLinks::Await(Message& message) { impl_->Await(message); }
void GlooLinks::Abort(const std::exception_ptr& cause) noexcept { impl_->Abort(cause); }

}  // namespace zeroplan
