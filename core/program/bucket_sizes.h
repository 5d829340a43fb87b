// How many elements one collective takes, where the config leaves that to zeroplan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/config/zero_config.h"
#include "core/program/layout.h"
#include "core/program/program.h"

namespace zeroplan {

// Elements of gradients reduced together. What the config asks for; kAuto: the largest of the
// model's `layers` layers in `layout`, at least kLeastAutoBucket.
inline constexpr uint64_t kLeastAutoBucket = 8'000'000;
uint64_t ReduceBucketElements(const ZeroConfig& zero, const ParamLayout& layout, int64_t layers);

// Elements of updated parameters gathered together: allgather_bucket_elements. Its default is a
// maximum where gathers overlap the next forward pass: then `reduce_bucket`, if that is less.
uint64_t GatherBucketElements(const ZeroConfig& zero, uint64_t reduce_bucket);

// Stage 3: elements that may be gathered at once. What the config asks for; kAuto: 1e9, DeepSpeed's
// default, or if that is more, the two largest units (one in use, one gathered ahead) and what the
// prefetch bucket asks for.
inline constexpr uint64_t kLeastAutoLive = 1'000'000'000;
uint64_t LiveParameterLimit(const ZeroConfig& zero, const ParamLayout& layout);

// A line for the user where the limit forbids gathering a layer while the one before it is in use,
// as DeepSpeed's default does from two layers of 5e8 parameters each on. It names a limit that does
// not. Empty where it does not, or where nothing is gathered.
std::string LiveLimitWarning(const TrainSetup& setup, const ParamLayout& layout, int64_t layers);
std::string LiveLimitWarning(const TrainSetup& setup, const ModelSpec& model);

// Pieces that a rank's offloaded states are cut into at most. Each is some fifty instructions of
// all sections: a program of so many takes a fifth of a gigabyte and of a second, where the least
// sub-group of a large model would take all memory that there is.
inline constexpr uint64_t kMostStatePieces = 32768;
// Elements of a sub-group where nobody says: ZeroConfig's default, or as many as leave a rank's
// share of `params` half of those pieces.
uint64_t SubGroupElements(uint64_t params, int ranks);
// Throws Error(kUsage) naming `source`, the key and the least that is allowed where the setup's
// sub-groups are more.
void CheckSubGroups(const TrainSetup& setup, const ModelSpec& model, std::string_view source);

// The same of a program.
uint64_t ReduceBucketElements(const Program& program);
uint64_t GatherBucketElements(const Program& program);

}  // namespace zeroplan
