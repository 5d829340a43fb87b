#include "executor/process/handshake.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/hash.h"

namespace zeroplan {
namespace {

constexpr std::string_view kMagic = "zeroplan";
constexpr uint32_t kProtocol = 2;

struct Numbers {
  uint32_t protocol = kProtocol;
  int32_t rank = 0, world_size = 0;
};

}  // namespace

std::string WriteHello(const ProcessPlace& place, std::string_view nonce) {
  const Numbers numbers{kProtocol, place.rank, place.world_size};
  std::string text(kMagic);
  text.append(reinterpret_cast<const char*>(&numbers), sizeof numbers);
  text += place.secret.empty() ? '\0' : '\1';
  return text += nonce;
}

std::optional<Hello> ReadHello(std::string_view payload) {
  if (!payload.starts_with(kMagic)) return std::nullopt;
  payload.remove_prefix(kMagic.size());
  Numbers numbers;
  if (payload.size() < sizeof numbers) return std::nullopt;
  std::memcpy(&numbers, payload.data(), sizeof numbers);
  payload.remove_prefix(sizeof numbers);
  Hello hello{numbers.protocol, numbers.rank, numbers.world_size, false, {}};
  if (hello.protocol != kProtocol) return hello;
  if (payload.size() != 1 + kNonceBytes) return std::nullopt;
  hello.has_secret = payload[0] != '\0';
  hello.nonce = payload.substr(1);
  return hello;
}

std::string WhyRefused(const Hello& hello, const ProcessPlace& hub) {
  if (hello.protocol != kProtocol) {
    return fmt::format(
        "it speaks version {} of the protocol, rank 0 version {}; install the same zeroplan "
        "everywhere",
        hello.protocol, kProtocol);
  }
  if (hello.world_size != hub.world_size) {
    return fmt::format("it has a run of {} ranks, rank 0 one of {}; start all with the same count",
                       hello.world_size, hub.world_size);
  }
  if (hello.rank < 1 || hello.rank >= hub.world_size) {
    return fmt::format("there is a rank {} already; every rank is started once", hello.rank);
  }
  if (hello.has_secret != !hub.secret.empty()) {
    return fmt::format(
        "{} has a secret and {} has none; set ZEROPLAN_SECRET_FILE for all ranks or for none",
        hello.has_secret ? "it" : "rank 0", hello.has_secret ? "rank 0" : "it");
  }
  return "";
}

Prover::Prover(const ProcessPlace& place)
    : key_(AsText(
          Sha256(fmt::format("{}:{}{}", place.secret.size(), place.secret, place.run_token)))) {}

std::string Prover::ProofOfRank(const Hello& hello, std::string_view hub_nonce) const {
  return Proof("rank", hello, hub_nonce);
}

std::string Prover::ProofOfHub(const Hello& hello, std::string_view hub_nonce) const {
  return Proof("hub", hello, hub_nonce);
}

std::string Prover::Proof(std::string_view side, const Hello& hello,
                          std::string_view hub_nonce) const {
  std::string said =
      fmt::format("zeroplan {} {} {} {}\n", kProtocol, side, hello.rank, hello.world_size);
  said += hello.nonce;
  said += hub_nonce;
  return std::string(AsText(HmacSha256(key_, said)));
}

bool SameProof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return differ == 0;
}

namespace {

constexpr size_t kMaxSecret = 4096;
constexpr const char* kName = "ZEROPLAN_SECRET_FILE";

}  // namespace

std::string ReadSecretFile(const std::string& path) {
  // A pipe would wait for its writer.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0) {
    ThrowUsage("{}: {} cannot be read ({}); name a file that holds the run's secret", kName, path,
               std::strerror(errno));
  }
  if (!S_ISREG(facts.st_mode)) {
    ThrowUsage("{}: {} is no regular file; name a file that holds the run's secret", kName, path);
  }
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    ThrowUsage("{}: {} belongs to another user; name a file of your own", kName, path);
  }
  if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    ThrowUsage("{}: {} is open to other users (mode {:03o}); chmod 600 it", kName, path,
               facts.st_mode & 0777);
  }
  std::string secret(kMaxSecret + 1, '\0');
  const ssize_t got = read(file.get(), secret.data(), secret.size());
  if (got < 0) ThrowUsage("{}: {} cannot be read ({})", kName, path, std::strerror(errno));
  secret.resize(static_cast<size_t>(got));
  const bool too_long = secret.size() > kMaxSecret;
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  if (secret.size() < kMinSecret || too_long) {
    ThrowUsage(
        "{}: {} holds {} bytes, and a secret has {} to {}; make one with 'openssl rand -hex 32'",
        kName, path, facts.st_size, kMinSecret, kMaxSecret);
  }
  return secret;
}

std::string RandomBytes(size_t bytes) {
  std::string random(bytes, '\0');
  for (size_t at = 0; at < bytes;) {
    const ssize_t got = getrandom(random.data() + at, bytes - at, 0);
    if (got < 0 && errno != EINTR) {
      ThrowRuntime("cannot get random bytes: {}", std::strerror(errno));
    }
    if (got > 0) at += static_cast<size_t>(got);
  }
  return random;
}

}  // namespace zeroplan
