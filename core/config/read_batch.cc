// train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps.
#include "core/config/batch_arithmetic.h"
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

// One size of the batch: the config's, else the command line's; two that differ are a problem.
std::optional<int64_t> BatchSize(JsonSection* root, const char* key, const char* option,
                                 const std::optional<int64_t>& given) {
  // Far above any real batch, and low enough that sums of two products cannot overflow.
  constexpr int64_t kMax = int64_t{1} << 40;
  const std::optional<int64_t> configured = root->Int(key, 1, kMax);
  if (given && (*given < 1 || *given > kMax)) {
    ThrowUsage("{}: {} is not allowed; use a whole number from 1 to {}", option, *given, kMax);
  }
  if (configured && given && *configured != *given) {
    root->Report(key, "{} contradicts {} {}; drop the option, or write \"auto\" in the config",
                 *configured, option, *given);
  }
  return configured ? configured : given;
}

}  // namespace

void ReadBatch(ReaderState* state) {
  JsonSection& root = state->root();
  const ReadContext& context = state->context;
  constexpr const char* kGlobal = "train_batch_size";
  constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  constexpr const char* kAccum = "gradient_accumulation_steps";
  BatchSizes sizes;
  sizes.global_batch = BatchSize(&root, kGlobal, "@@global_batch", context.global_batch);
  sizes.micro_batch = BatchSize(&root, kMicro, "@@micro_batch", context.micro_batch);
  sizes.grad_accum = BatchSize(&root, kAccum, "@@grad_accum", context.grad_accum);
  if (state->HasProblems()) return;
  // "auto" asks zeroplan to choose, so that accumulation alone is enough.
  if (sizes.grad_accum && !sizes.micro_batch && !sizes.global_batch &&
      (root.IsAuto(kMicro) || root.IsAuto(kGlobal))) {
    sizes.micro_batch = 1;
  }
  const char* line_of = root.Value(kGlobal) != nullptr  ? kGlobal
                        : root.Value(kMicro) != nullptr ? kMicro
                                                        : kAccum;
  const JsonNode* node = root.Value(line_of);
  // The message names its key itself: keep "SOURCE:LINE: " of the place.
  std::string where = root.Where(line_of);
  where.resize(where.size() - std::string_view(line_of).size() - 2);
  BatchSpec& batch = state->result.setup.batch;
  try {
    batch = ResolveBatch(sizes, context.world_size, context.seq_len, where);
  } catch (const Error& error) {
    state->AddProblem(node == nullptr ? 1 : node->line, error.what());
  }
}

}  // namespace zeroplan
