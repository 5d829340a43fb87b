#include "core/config/deepspeed_reader.h"

#include "core/config/batch_arithmetic.h"
#include "core/config/reader_state.h"
#include "core/config/setup_check.h"

namespace zeroplan {
namespace {

// One size of the batch: the config's, else the command line's; two that differ are an error.
std::optional<int64_t> BatchSize(JsonSection* root, const char* key, const char* option,
                                 const std::optional<int64_t>& given) {
  // Far above any real batch, and low enough that sums of two products cannot overflow.
  constexpr int64_t kMax = int64_t{1} << 40;
  const std::optional<int64_t> configured = root->Int(key, 1, kMax);
  if (given && (*given < 1 || *given > kMax)) {
    ThrowUsage("{}: {} is not allowed; use a whole number from 1 to {}", option, *given, kMax);
  }
  if (configured && given && *configured != *given) {
    root->Fail(key, "{} contradicts {} {}; drop the option, or write \"auto\" in the config",
               *configured, option, *given);
  }
  return configured ? configured : given;
}

void ReadBatch(ReaderState* state) {
  JsonSection& root = state->root();
  const ReadContext& context = state->context;
  constexpr const char* kGlobal = "train_batch_size";
  constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  constexpr const char* kAccum = "gradient_accumulation_steps";
  BatchSizes sizes;
  sizes.global_batch = BatchSize(&root, kGlobal, "--global-batch", context.global_batch);
  sizes.micro_batch = BatchSize(&root, kMicro, "--micro-batch", context.micro_batch);
  sizes.grad_accum = BatchSize(&root, kAccum, "--grad-accum", context.grad_accum);
  const char* line_of = root.Value(kGlobal) != nullptr  ? kGlobal
                        : root.Value(kMicro) != nullptr ? kMicro
                                                        : kAccum;
  // The message names its key itself: keep "SOURCE:LINE: " of the place.
  std::string where = root.Where(line_of);
  where.resize(where.size() - std::string_view(line_of).size() - 2);
  state->result.setup.batch = ResolveBatch(sizes, context.world_size, context.seq_len, where);
}

}  // namespace

ReadResult ReadDeepSpeedConfig(std::string_view text, std::string_view source,
                               const ReadContext& context) {
  const JsonNode root = ParseJsonText(text, source);
  ReaderState state(root, source, context);
  ReadBatch(&state);
  ReadPrecision(&state);
  ReadZero(&state);
  ReadOptimizer(&state);
  ReadRecompute(&state);
  ReadOtherKeys(&state);
  state.CheckUnknownKeys();
  if (const std::optional<SetupProblem> problem = FindSetupProblem(state.result.setup)) {
    state.FailAt(problem->key, problem->message);
  }
  return std::move(state.result);
}

ReadResult ReadDeepSpeedConfigFile(const std::filesystem::path& file, const ReadContext& context) {
  return ReadDeepSpeedConfig(ReadTextFile(file), file.string(), context);
}

}  // namespace zeroplan
