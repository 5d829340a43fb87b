// Reads the fields of fields.h out of a profile's JSON.
//
// A measured table is
//   {"unit": "TFLOP/s", "source": "measured", "reference": "...",
//    "columns": ["kind", "dtype", "m", "k", "n", "rate"], "rows": [["forward", "bf16", ...], ...]}
// "unit" is that of the measured columns; sizes in bytes are plain numbers. The columns are those
// of fields.h, in that order.
#pragma once

#include "hwprofiles/figure_reader.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// All fields of `profile`, but for its source. Throws Error(kUsage) "SOURCE: PATH: ..." for a field
// that is missing or not what fields.h asks for, and "SOURCE: PATH.rows.I: ..." for a row of
// another length, an unknown word, a number that is not positive and finite, and a row given twice.
void ReadFields(FigureReader& reader, HardwareProfile& profile);
// A network alone.
void ReadFields(FigureReader& reader, NetworkProfile& network);

}  // namespace zeroplan
