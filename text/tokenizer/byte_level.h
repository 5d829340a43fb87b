// Byte-level tokenizers spell each byte as a character that can be printed (openai/gpt-2,
// src/encoder.py, bytes_to_unicode).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zeroplan {

// The character of a byte: itself if it is printable Latin-1, else one from U+0100 on.
char32_t CharacterOfByte(uint8_t byte);
// The byte that a character stands for.
std::optional<uint8_t> ByteOfCharacter(char32_t character);

// Each byte of `bytes` as its character, in UTF-8.
std::string SpellBytes(std::string_view bytes);
// The bytes that a text of such characters stands for; nullopt if another character is in it.
// REQUIRES: well-formed UTF-8.
std::optional<std::string> BytesOfSpelling(std::string_view text);

}  // namespace zeroplan
