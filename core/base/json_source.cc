#include "core/base/json_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "core/base/durable_file.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/unique_fd.h"

namespace zeroplan {
namespace {

constexpr uintmax_t kMaxFileBytes = 16u << 20;

// What pipes held, by path: they can be read but once, and a command may ask again.
struct PipeTexts {
  std::mutex mutex;
  std::map<std::string, std::string> texts;  // under mutex
};
PipeTexts& Pipes() {
  static PipeTexts pipes;
  return pipes;
}

}  // namespace

const JsonNode* JsonNode::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string JsonNode::Quote() const {
  switch (kind) {
    case Kind::kObject:
      return "{...}";
    case Kind::kArray:
      return "[...]";
    case Kind::kScalar:
      break;
  }
  return PrintableText(scalar.Dump(), 60);
}

std::string ReadTextFile(const std::filesystem::path& file) {
  if (file == "-") return ReadTextFile("/dev/stdin");
  const std::string name = file.string();
  const auto fail = [&](int error) {
    const std::string text =
        fmt::format("{}: cannot be read ({}); name a readable file", name, std::strerror(error));
    const bool ours = error == EMFILE || error == ENFILE || error == ENOMEM;
    throw Error(ours ? ExitCode::kRuntime : ExitCode::kUsage, text);
  };
  UniqueFd fd;
  const int unopened = WithIoRetries("open", file, [&] {
    fd = UniqueFd(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return fd ? 0 : errno;
  });
  if (unopened != 0) fail(unopened);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail(errno);
  if (S_ISDIR(info.st_mode)) ThrowUsage("{}: is a folder; name a file", name);
  const bool once = !S_ISREG(info.st_mode);
  PipeTexts& pipes = Pipes();
  if (once) {
    const std::lock_guard lock(pipes.mutex);
    if (const auto read = pipes.texts.find(name); read != pipes.texts.end()) return read->second;
    if (!name.starts_with("/dev/fd/") && !name.starts_with("/proc/self/fd/") &&
        name != "/dev/stdin") {
      ThrowUsage("{}: is a pipe or a device; name a regular file", name);
    }
    if (::fcntl(fd.get(), F_SETFL, 0) != 0) fail(errno);  // wait for who writes to it
  }
  std::string text;
  char chunk[1 << 16];
  for (;;) {
    ssize_t got = 0;
    const int error = WithIoRetries("read", file, [&] {
      got = ::read(fd.get(), chunk, sizeof chunk);
      return got < 0 ? errno : 0;
    });
    if (error == EINTR) continue;
    if (error != 0) fail(error);
    if (got == 0) break;
    text.append(chunk, static_cast<size_t>(got));
    if (text.size() > kMaxFileBytes) {
      ThrowUsage("{}: is larger than 16 MiB; this is no config file", name);
    }
  }
  if (once) {
    const std::lock_guard lock(pipes.mutex);
    pipes.texts[name] = text;
  }
  return text;
}

}  // namespace zeroplan
