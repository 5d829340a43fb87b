// The layout of heads in a rank's rows and in the parts that ranks exchange, with the terms of the
// kernel rows PackHeads and UnpackHeads. Plain C++, because CUDA kernels include it. Columns have
// 32 bits, which GPUs divide faster.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace zeroplan {

struct HeadExchange {
  int64_t B, T;
  int H, G, D, S;

  HeadExchange(int64_t b, int64_t t, int64_t h, int64_t g, int64_t d, int64_t s)
      : B(b),
        T(t),
        H(static_cast<int>(h)),
        G(static_cast<int>(g)),
        D(static_cast<int>(d)),
        S(static_cast<int>(s)) {}

  // Heads of queries, and of keys, in a part.
  ZEROPLAN_HOST_DEVICE int queries() const { return H / S; }
  ZEROPLAN_HOST_DEVICE int keys() const { return G == 0 ? 0 : G < S ? 1 : G / S; }
  ZEROPLAN_HOST_DEVICE int row_columns() const { return (H + 2 * G) * D; }
  ZEROPLAN_HOST_DEVICE int part_columns() const { return (queries() + 2 * keys()) * D; }
  // Elements before position t of part r of sequence b.
  ZEROPLAN_HOST_DEVICE int64_t part_row(int64_t b, int64_t r, int64_t t) const {
    return ((b * S + r) * T + t) * part_columns();
  }
  // The column of a row that is column c of part r.
  ZEROPLAN_HOST_DEVICE int RowColumn(int r, int c) const {
    const int own = queries() * D, kept = keys() * D;
    if (c < own) return r * own + c;
    const int half = (c - own) / kept;  // keys, values
    return (H + half * G + r * G / S) * D + (c - own - half * kept);
  }
  // The parts that have column c of a row, `count` from `first` on, each at `column`.
  struct Parts {
    int first, count, column;
  };
  ZEROPLAN_HOST_DEVICE Parts PartsOf(int c) const {
    const int own = queries() * D;
    if (c < H * D) return {c / own, 1, c % own};
    const int half = (c - H * D) / (G * D), at = (c - H * D) % (G * D), head = at / D;
    const int kept = keys(), first = G < S ? head * (S / G) : head / kept;
    return {first, G < S ? S / G : 1, own + (half * kept + (G < S ? 0 : head % kept)) * D + at % D};
  }
};

struct KernelCall;
// The layout of a call of PackHeads or UnpackHeads. Checks that heads divide over ranks, columns
// fit 32 bits, and both arguments have one dtype.
HeadExchange ExchangeOf(const KernelCall& call);

}  // namespace zeroplan
