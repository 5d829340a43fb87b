#include "cli/run/train/event_file.h"

#include <array>
#include <bit>
#include <cstring>

namespace zeroplan {
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
