// The handshake with which two ranks prove that they belong to one run.
//
//   rank       kHello      its identity, and random bytes
//   rank 0     kChallenge  random bytes of its own
//   rank       kProof      HMAC-SHA256 of both under the run's key
//   rank 0     kJoined     the same from its side
//
// The key is derived from the run's secret and token (ProcessPlace), which are never sent. Without
// a secret the handshake separates runs that meet by accident, but not strangers who know the
// token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "executor/process/process_group.h"

namespace zeroplan {

inline constexpr size_t kNonceBytes = 32;

struct Hello {
  uint32_t protocol = 0;
  int32_t rank = 0, world_size = 0;
  bool has_secret = false;
  std::string nonce;
};

std::string WriteHello(const ProcessPlace& place, std::string_view nonce);
// Nothing if the payload is no hello. For another protocol, all members but the number may be
// empty.
std::optional<Hello> ReadHello(std::string_view payload);

// The reason why rank 0, `hub`, refuses it; "" if it accepts.
std::string WhyRefused(const Hello& hello, const ProcessPlace& hub);

// Makes each side's proof that it has the run's key.
class Prover {
 public:
  explicit Prover(const ProcessPlace& place);
  std::string ProofOfRank(const Hello& hello, std::string_view hub_nonce) const;
  std::string ProofOfHub(const Hello& hello, std::string_view hub_nonce) const;

 private:
  std::string Proof(std::string_view side, const Hello& hello, std::string_view hub_nonce) const;
  std::string key_;
};

// Compares in constant time.
bool SameProof(std::string_view a, std::string_view b);

// The secret in a file, without line feeds at its end. Throws Error(kUsage) naming the file if it
// cannot be read, belongs to another user, may be read by others (chmod 600 is the fix), is shorter
// than kMinSecret bytes or longer than 4096.
std::string ReadSecretFile(const std::string& path);

inline constexpr size_t kMinSecret = 16;

// `bytes` random bytes of the system. Throws Error(kRuntime).
std::string RandomBytes(size_t bytes);

}  // namespace zeroplan
