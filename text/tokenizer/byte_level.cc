#include "text/tokenizer/byte_level.h"

#include <array>

#include "core/base/strings.h"

namespace zeroplan {
namespace {

constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> character{};
  std::array<int16_t, 512> byte{};  // by character, -1: none
};

constexpr Tables MakeTables() {
  Tables tables;
  tables.byte.fill(-1);
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = IsPrintable(b) ? static_cast<char32_t>(b) : next++;
    tables.character[static_cast<size_t>(b)] = c;
    tables.byte[c] = static_cast<int16_t>(b);
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

}  // namespace

char32_t CharacterOfByte(uint8_t byte) { return kTables.character[byte]; }

std::optional<uint8_t> ByteOfCharacter(char32_t character) {
  if (character >= kTables.byte.size() || kTables.byte[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kTables.byte[character]);
}

std::string SpellBytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) AppendUtf8(CharacterOfByte(static_cast<uint8_t>(byte)), &out);
  return out;
}

std::optional<std::string> BytesOfSpelling(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::optional<uint8_t> byte = ByteOfCharacter(NextCodePoint(text, &at));
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
  }
  return out;
}

}  // namespace zeroplan
