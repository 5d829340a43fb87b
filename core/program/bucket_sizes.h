// Elements of one collective, if the config leaves the size to zeroplan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/program/layout.h"
#include "core/program/program.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// Elements of gradients reduced together: the config's value; kAuto: the largest of the model's
// `layers` layers in `layout`, at least kLeastAutoBucket.
inline constexpr uint64_t kLeastAutoBucket = 8'000'000;
uint64_t ReduceBucketElements(const ZeroConfig& zero, const ParamLayout& layout, int64_t layers);

// Elements of updated parameters gathered together: allgather_bucket_elements. If gathers overlap
// the next forward pass, its default is a maximum: then `reduce_bucket`, if that is less.
uint64_t GatherBucketElements(const ZeroConfig& zero, uint64_t reduce_bucket);

// Stage 3: elements that may be gathered at once: the config's value; kAuto: 1e9, DeepSpeed's
// default, or if that is more, the two largest units (one in use, one gathered ahead) plus the
// prefetch bucket, if the config sets one.
inline constexpr uint64_t kLeastAutoLive = 1'000'000'000;
uint64_t LiveParameterLimit(const ZeroConfig& zero, const ParamLayout& layout);

// Warns that the limit forbids gathering a layer while the one before it is in use, as DeepSpeed's
// default does from two layers of 5e8 parameters each on. The line names a limit that does not.
// Empty if the limit does not forbid it, or nothing is gathered.
std::string LiveLimitWarning(const TrainSetup& setup, const ParamLayout& layout, int64_t layers);
std::string LiveLimitWarning(const TrainSetup& setup, const ModelSpec& model);

// Pieces of a rank's offloaded states at most. Each adds some fifty instructions over all sections:
// a program of this many needs a fifth of a gigabyte and of a second, while the least sub-group of
// a large model would need all memory there is.
inline constexpr uint64_t kMostStatePieces = 32768;
// Elements of a sub-group by default: ZeroConfig's default, or as many as cut a rank's share of
// `params` into half of kMostStatePieces.
uint64_t SubGroupElements(uint64_t params, int ranks);
// Throws Error(kUsage) naming `source`, the key and the least allowed value, if the setup has more
// sub-groups.
void CheckSubGroups(const TrainSetup& setup, const ModelSpec& model, std::string_view source);

// The same for a program.
uint64_t ReduceBucketElements(const Program& program);
uint64_t GatherBucketElements(const Program& program);

}  // namespace zeroplan
