// A byte pattern that training data does not produce, to read off an arena how far up it was
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace zeroplan {

// The pattern at a position of an arena. Bytes are 0x60..0x7b with either sign bit: as the top byte
// of a float of any width that is a huge but finite number, as the top byte of an index it is out
// of any range, so a buffer's last byte hardly ever equals the pattern by chance.
std::byte PatternByte(uint64_t position);

// Fills bytes that begin at `first_position` of their arena.
void FillPattern(std::span<std::byte> bytes, uint64_t first_position);

// Index past the last byte that differs from the pattern; 0: none does. Reads poisoned bytes too.
uint64_t PatternEnd(std::span<const std::byte> bytes, uint64_t first_position);

}  // namespace zeroplan
