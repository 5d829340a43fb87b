#include "executor/train/run_batches.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"

namespace zeroplan {

SamplerOptions SamplerOptionsOf(const Program& program, const TrainOptions& options,
                                const TokenDataset& data, uint64_t seed,
                                std::optional<uint64_t> train_tokens) {
  const BatchSpec& batch = program.setup.batch;
  SamplerOptions sampler;
  sampler.seq_len = batch.seq_len;
  sampler.micro_batch = batch.micro_batch;
  sampler.grad_accum = batch.grad_accum;
  sampler.world_size = batch.world_size;
  sampler.shuffle = options.shuffle;
  sampler.seed = seed;
  sampler.train_tokens = train_tokens;
  if (!options.validation_data.empty()) sampler.validation_fraction = 0;
  sampler.packing = options.packing;
  sampler.cut_long = !data.has_mask();
  return sampler;
}

void FillWithAnything(std::span<int32_t> inputs, std::span<int32_t> targets,
                      std::span<int32_t> starts, int64_t seq_len, const DocumentLimits& limits) {
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), 0);
  const auto row = static_cast<size_t>(seq_len);
  for (size_t at = 0; at < starts.size(); at += row) {
    FillPaddingStarts(starts.subspan(at, row), 0, limits.longest);
  }
}

std::string CountedSum(double sum, int64_t counted) { return fmt::format("{:a} {}", sum, counted); }

std::optional<double> MeanOfCounted(const BatchSpec& batch, int64_t batches,
                                    const std::vector<std::string>& sums) {
  double sum = 0;
  int64_t counted = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    char* rest = nullptr;
    const double own = std::strtod(sums[i].c_str(), &rest);
    if (i == 0) sum = own;
    counted += std::strtoll(rest, nullptr, 10);
  }
  if (counted == 0) return std::nullopt;
  const int64_t positions = batches * batch.micro_batch * batch.seq_len * batch.world_size;
  const double mean = sum / static_cast<double>(batches);
  return counted == positions
             ? mean
             : mean * static_cast<double>(positions) / static_cast<double>(counted);
}

}  // namespace zeroplan
