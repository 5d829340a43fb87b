// Batches of a run: which samples they are of, what stands in for one that cannot be read, and the
// mean of losses of which some do not count.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/data/batch_sampler.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Long documents are cut into pieces; the rest of a conversation means little without its begin and
// is left out.
SamplerOptions SamplerOptionsOf(const Program& program, const TrainOptions& options,
                                const TokenDataset& data, uint64_t seed,
                                std::optional<uint64_t> train_tokens);

// A batch that is valid, of a step or validation that is to be void: rows of `seq_len`, whose
// documents are within `limits`.
void FillWithAnything(std::span<int32_t> inputs, std::span<int32_t> targets,
                      std::span<int32_t> starts, int64_t seq_len, const DocumentLimits& limits);

// What a process has of a validation, as text: the sum of Engine::Evaluate's losses, to the bit,
// and of the targets that count.
std::string CountedSum(double sum, int64_t counted);
// Of every process's after `batches` calls: the mean loss over the targets that count, by the first
// process's sum. Empty where none counts.
std::optional<double> MeanOfCounted(const BatchSpec& batch, int64_t batches,
                                    const std::vector<std::string>& sums);

}  // namespace zeroplan
