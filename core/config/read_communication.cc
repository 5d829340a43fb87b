// How gradients travel: their dtype, and how they are scaled.
#include "core/config/reader_state.h"
#include "core/config/setup_facts.h"

namespace zeroplan {

namespace {

constexpr const char* kKey = "communication_data_type";
constexpr const char* kOption = "@@communication_dtype";

// A problem with the dtype to send, at the key or, where the option says it, at that.
template <typename... Args>
void ReportSentDtype(ReaderState* state, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  if (state->root().Value(kKey) != nullptr) {
    state->root().Report(kKey, "{}, or remove the key", text);
  } else {
    state->AddProblem(0, fmt::format("{}: {}, or leave it out", kOption, text));
  }
}

// The dtype that gradients are to be sent in: fp32, or the one they have anyway.
void ReadSentDtype(ReaderState* state) {
  JsonSection& root = state->root();
  TrainSetup& setup = state->result.setup;
  std::optional<Dtype> asked = ReadDtype(&root, kKey, kOption, state->context.communication_dtype);
  const bool allreduce_fp32 = root.Bool("fp32_allreduce").value_or(false);
  if (allreduce_fp32 && asked && *asked != Dtype::kF32) {
    root.Report("fp32_allreduce", "true contradicts {} {}; remove one of the two",
                root.Value(kKey) != nullptr ? kKey : kOption, DtypeName(*asked));
  }
  if (allreduce_fp32) asked = Dtype::kF32;
  if (!asked || state->HasProblems()) return;
  const Dtype compute = setup.precision.dtype;
  setup.precision.fp32_reduction = *asked == Dtype::kF32 && compute != Dtype::kF32;
  // A config for several GPUs may be looked at with one, which sends nothing.
  if (setup.batch.world_size == 1 && (*asked == Dtype::kF32 || *asked == compute)) {
    if (setup.precision.fp32_reduction) {
      state->Note(root, allreduce_fp32 ? "fp32_allreduce" : kKey,
                  "has no effect on one GPU, which sends no gradients");
    }
    return;
  }
  const Dtype sent = SentGradDtype(setup);
  if (*asked == sent) return;
  if (sent != Dtype::kF32) {
    ReportSentDtype(state,
                    "{} is not supported: gradients of {} travel in that or in fp32; use {} or "
                    "fp32",
                    DtypeName(*asked), DtypeName(compute), DtypeName(compute));
  } else if (compute == Dtype::kF32) {
    ReportSentDtype(state, "{} is not supported: gradients of fp32 are sent as they are; use fp32",
                    DtypeName(*asked));
  } else {
    ReportSentDtype(state,
                    "{} is not supported: at stages 0 and 1 gradients travel in fp32, in which "
                    "they are summed; use fp32",
                    DtypeName(*asked));
  }
}

}  // namespace

void ReadCommunication(ReaderState* state) {
  JsonSection& root = state->root();
  ReadSentDtype(state);

  // The gradient of the loss is divided by all tokens of the step before the backward pass, so a
  // sum over ranks is the mean already.
  constexpr const char* kScaled =
      "the result is the same; zeroplan always divides before it sums, so that only the range "
      "in which a 16-bit sum overflows differs";
  const bool prescale = root.Bool("prescale_gradients").value_or(false);
  state->NoEffect(&root, "prescale_gradients", kScaled);
  constexpr const char* kFactor = "a positive number such as 1.0";
  const double factor =
      root.Number("gradient_predivide_factor", 1e-30, std::numeric_limits<float>::max(), kFactor)
          .value_or(1.0);
  if (factor != 1.0) {
    state->Note(root, "gradient_predivide_factor", fmt::format("has no effect: {}", kScaled));
  }
  const ZeroConfig& zero = state->result.setup.zero;
  if (zero.stage == 2 && zero.reduce_scatter) {
    constexpr const char* kRefused = "DeepSpeed refuses this at stage 2 with reduce_scatter true";
    if (prescale) state->Warn(root, "prescale_gradients", kRefused);
    if (factor != 1.0) state->Warn(root, "gradient_predivide_factor", kRefused);
  }
  root.Word("gradient_allreduce_op", {"mean", "avg"},
            "\"mean\" (a sum over ranks is not supported)");
}

}  // namespace zeroplan
