#include "executor/process/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/files.h"

namespace zeroplan {
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
