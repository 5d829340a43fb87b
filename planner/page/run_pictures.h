// Pictures of a run, of what its steps reported.
#pragma once

#include <optional>

#include "planner/page/html.h"
#include "planner/page/run_page.h"

namespace zeroplan {

// Loss of training and validation over steps. Nothing without a finite loss.
std::optional<Picture> LossPicture(const RunRecord& record);
// Tokens a second over steps, beside the prediction. Nothing without steps.
std::optional<Picture> SpeedPicture(const RunRecord& record);
// Median seconds of a step by cause, predicted and measured. Nothing where no cause is measured.
std::optional<Picture> MeasuredTimePicture(const RunRecord& record);
// Bytes of each arena, planned and touched.
Picture ArenaPicture(const RunRecord& record);
// What the GPU has in use over steps, beside the prediction. Nothing where that is not known.
std::optional<Picture> UsedMemoryPicture(const RunRecord& record);
// What the GPU draws over steps, below its limit. Nothing where that is not known.
std::optional<Picture> PowerPicture(const RunRecord& record);

}  // namespace zeroplan
