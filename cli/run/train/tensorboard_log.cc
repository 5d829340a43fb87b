#include "cli/run/train/tensorboard_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "cli/run/train/event_file.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// What TensorBoard knows its files by; ten digits of seconds follow.
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kMark = "tfevents";

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Calls visit(name) for the event files in `folder`.
template <typename Visit>
void ForEachEventFile(const fs::path& folder, Visit&& visit) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find(kMark) != std::string::npos) visit(name);
  }
}

}  // namespace

void CheckTensorboardFolder(const fs::path& folder, bool resume) {
  const std::string option = fmt::format("--tensorboard: {}", folder.string());
  std::error_code ignored;
  fs::path there = folder;
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (there.empty()) there = ".";
  if (!fs::is_directory(there, ignored)) {
    ThrowUsage("{}: {} is no folder; choose another", option, there.string());
  }
  if (access(there.c_str(), W_OK | X_OK) != 0) {
    ThrowUsage("{}: nothing may be written in {}; choose another folder", option, there.string());
  }
  if (resume) return;
  ForEachEventFile(folder, [&](const std::string& name) {
    ThrowUsage(
        "{}: the folder holds {} of an earlier run, which TensorBoard would draw as one with this "
        "one; continue that with --resume or choose another folder",
        option, name);
  });
}

std::string NextEventFileName(const fs::path& folder, int64_t now) {
  int64_t seconds = now;
  ForEachEventFile(folder, [&](const std::string& name) {
    if (!name.starts_with(kPrefix)) return;
    int64_t of_file = 0;
    const char* const begin = name.data() + kPrefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), of_file);
    if (error == std::errc() && end - begin == 10) seconds = std::max(seconds, of_file + 1);
  });
  std::array<char, 256> host = {};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return fmt::format("{}{:010}.{}.{}.0", kPrefix, seconds, host[0] != '\0' ? host.data() : "host",
                     getpid());
}

TensorboardLog::TensorboardLog(const fs::path& folder, int64_t first_step) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) ThrowRuntime("--tensorboard {}: {}", folder.string(), error.message());
  const double now = SecondsSince1970();
  path_ = folder / NextEventFileName(folder, static_cast<int64_t>(now));
  file_.reset(std::fopen(path_.c_str(), "wb"));
  if (!file_) ThrowRuntime("--tensorboard {}: {}", path_, std::strerror(errno));
  Write(FileVersionEvent(now));
  Write(SessionStartEvent(now, first_step));
}

void TensorboardLog::Add(int64_t step,
                         std::span<const std::pair<std::string_view, double>> scalars) {
  if (file_ && !scalars.empty()) Write(ScalarsEvent(SecondsSince1970(), step, scalars));
}

void TensorboardLog::Write(std::string_view event) {
  if (!file_) return;
  const std::string record = TfRecord(event);
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() &&
                       std::fflush(file_.get()) == 0;
  if (written) return;
  LogWarning("--tensorboard {}: {}; the run goes on without it", path_, std::strerror(errno));
  file_.reset();
}

}  // namespace zeroplan
