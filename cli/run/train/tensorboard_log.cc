#include "cli/run/train/tensorboard_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

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

namespace {

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  constexpr uint32_t kReflected = 0x82f63b78;  // 0x1edc6f41, bits in reverse
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ kReflected : crc >> 1;
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  for (size_t i = 0; i < sizeof value; ++i) out->push_back(static_cast<char>(value >> 8 * i));
}

// ---- protocol buffers: a field is its number and wire type in one varint, then its value ----

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Seven bits a byte, lowest first; the top bit says that more follow.
void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendTag(uint32_t field, WireType type, std::string* out) {
  AppendVarint(field << 3 | type, out);
}

void AppendBytes(uint32_t field, std::string_view bytes, std::string* out) {
  AppendTag(field, kBytes, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

std::string EventOf(double wall_time) {
  std::string event;
  AppendTag(1, kFixed64, &event);
  AppendLittleEndian(std::bit_cast<uint64_t>(wall_time), &event);
  return event;
}

void AppendStep(int64_t step, std::string* event) {
  AppendTag(2, kVarint, event);
  AppendVarint(static_cast<uint64_t>(step), event);
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8; }

std::string TfRecord(std::string_view payload) {
  std::string record;
  AppendLittleEndian(uint64_t{payload.size()}, &record);
  AppendLittleEndian(MaskedCrc32c(record), &record);
  record += payload;
  AppendLittleEndian(MaskedCrc32c(payload), &record);
  return record;
}

std::string FileVersionEvent(double wall_time) {
  std::string event = EventOf(wall_time);
  AppendBytes(3, "brain.Event:2", &event);
  return event;
}

std::string SessionStartEvent(double wall_time, int64_t first_step) {
  constexpr uint64_t kStart = 1;
  std::string log;
  AppendTag(1, kVarint, &log);
  AppendVarint(kStart, &log);
  std::string event = EventOf(wall_time);
  AppendStep(first_step, &event);
  AppendBytes(7, log, &event);
  return event;
}

std::string ScalarsEvent(double wall_time, int64_t step,
                         std::span<const std::pair<std::string_view, double>> scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    AppendBytes(1, tag, &value);
    AppendTag(2, kFixed32, &value);
    AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(number)), &value);
    AppendBytes(1, value, &summary);
  }
  std::string event = EventOf(wall_time);
  AppendStep(step, &event);
  AppendBytes(5, summary, &event);
  return event;
}

}  // namespace zeroplan
