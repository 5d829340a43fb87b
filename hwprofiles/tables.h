// Reads a profile's measured tables:
//   {"unit": "TFLOP/s", "source": "measured", "reference": "...",
//    "columns": ["kind", "dtype", "m", "k", "n", "rate"], "rows": [["forward", "bf16", ...], ...]}
// "unit" is that of the measured columns; sizes in bytes are plain numbers. The columns are those
// named below, in that order. A table throws Error(kUsage) "SOURCE: PATH.rows.I: ..." for a row of
// other arity, an unknown word, a number that is not positive and finite, a row given twice.
#pragma once

#include <string_view>

#include "hwprofiles/figure_reader.h"

namespace zeroplan {

// What rows call them.
std::string_view GemmKindWord(GemmKind kind);
std::string_view CollectiveOpWord(CollectiveOp op);

// kind, dtype, m, k, n, rate
std::optional<Measured<GemmRate>> ReadGemmTable(FigureReader& reader, const std::string& path);
// batch, heads, seq, head_dim, forward, backward
std::optional<Measured<AttentionRate>> ReadAttentionTable(FigureReader& reader,
                                                          const std::string& path);
// bytes, time
std::optional<Measured<MemoryKernelTime>> ReadMemoryTable(FigureReader& reader,
                                                          const std::string& path);
// bytes, to_device, from_device
std::optional<Measured<CopyTime>> ReadCopyTable(FigureReader& reader, const std::string& path);
// op, world_size, bytes, time
std::optional<Measured<CollectiveTime>> ReadCollectiveTable(FigureReader& reader,
                                                            const std::string& path);

}  // namespace zeroplan
