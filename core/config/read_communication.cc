// How gradients travel: their dtype, and how they are scaled.
#include "core/config/reader_state.h"
#include "core/config/setup_facts.h"

namespace zeroplan {

void ReadCommunication(ReaderState* state) {
  JsonSection& root = state->root();
  const Dtype sent = FullGradDtype(state->result.setup);
  const Dtype asked = ReadDtype(&root, "communication_data_type", sent);
  const bool allreduce_fp32 = root.Bool("fp32_allreduce").value_or(false);
  const char* why = state->result.setup.zero.stage <= 1
                        ? "at stages 0 and 1 gradients travel in the dtype they are summed in"
                        : "from stage 2 on gradients travel in the compute dtype";
  if (!state->HasProblems()) {
    if (asked != sent) {
      root.Report("communication_data_type",
                  "{} is not supported yet: {}; use \"{}\" or remove the key", DtypeName(asked),
                  why, DtypeName(sent));
    }
    if (allreduce_fp32 && sent != Dtype::kF32) {
      root.Report("fp32_allreduce", "true is not supported yet: {}; remove the key", why);
    }
  }

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
  const std::string op = root.String("gradient_allreduce_op").value_or("mean");
  if (op != "avg" && op != "mean") {
    root.ReportValue("gradient_allreduce_op", "\"mean\" (a sum over ranks is not supported)");
  }
}

}  // namespace zeroplan
