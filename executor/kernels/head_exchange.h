// How heads lie in a rank's rows and in the parts that ranks exchange: the words of the kernel rows
// PackHeads and UnpackHeads. Plain: CUDA kernels include it.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace zeroplan {

struct HeadExchange {
  int64_t B, T, H, G, D, S;

  // Heads of queries, and of keys, that a part has.
  ZEROPLAN_HOST_DEVICE int64_t queries() const { return H / S; }
  ZEROPLAN_HOST_DEVICE int64_t keys() const { return G == 0 ? 0 : G < S ? 1 : G / S; }
  ZEROPLAN_HOST_DEVICE int64_t row_columns() const { return (H + 2 * G) * D; }
  ZEROPLAN_HOST_DEVICE int64_t part_columns() const { return (queries() + 2 * keys()) * D; }
  // Elements before position t of part r of sequence b.
  ZEROPLAN_HOST_DEVICE int64_t part_row(int64_t b, int64_t r, int64_t t) const {
    return ((b * S + r) * T + t) * part_columns();
  }
  // The column of a row that column c of part r holds.
  ZEROPLAN_HOST_DEVICE int64_t RowColumn(int64_t r, int64_t c) const {
    const int64_t own = queries() * D, kept = keys() * D;
    if (c < own) return r * own + c;
    const int64_t half = (c - own) / kept;  // keys, values
    return (H + half * G + r * G / S) * D + (c - own - half * kept);
  }
  // The parts that have column c of a row, `count` from `first` on, each at `column`.
  struct Parts {
    int64_t first, count, column;
  };
  ZEROPLAN_HOST_DEVICE Parts PartsOf(int64_t c) const {
    const int64_t own = queries() * D;
    if (c < H * D) return {c / own, 1, c % own};
    const int64_t half = (c - H * D) / (G * D), at = (c - H * D) % (G * D), head = at / D;
    const int64_t kept = keys(), first = G < S ? head * (S / G) : head / kept;
    return {first, G < S ? S / G : 1, own + (half * kept + (G < S ? 0 : head % kept)) * D + at % D};
  }
};

}  // namespace zeroplan
