// fp16, bf16, data_types and the dtype of communication.
#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

// What a config says about one 16-bit format.
enum class Switch { kAbsent, kAuto, kOff, kOn };

Switch ReadSwitch(JsonSection* root, JsonSection* section) {
  if (!section->present()) return root->IsAuto(section->path()) ? Switch::kAuto : Switch::kAbsent;
  if (section->IsAuto("enabled")) return Switch::kAuto;
  return section->Bool("enabled").value_or(false) ? Switch::kOn : Switch::kOff;
}

// The dtype that the switches name or leave open, and the command line's.
Dtype ChooseDtype(ReaderState* state, Switch fp16, Switch bf16, const char* bf16_key) {
  JsonSection& root = state->root();
  if (fp16 == Switch::kOn && bf16 == Switch::kOn) {
    root.Fail("fp16", "fp16 and {} are both enabled; switch one of them off", bf16_key);
  }
  const std::optional<Dtype> wanted = state->context.dtype;
  if (fp16 == Switch::kOn || bf16 == Switch::kOn) {
    const Dtype dtype = fp16 == Switch::kOn ? Dtype::kF16 : Dtype::kBF16;
    if (wanted && *wanted != dtype) {
      root.Fail(fp16 == Switch::kOn ? "fp16" : bf16_key,
                "enabled true contradicts --dtype {}; use --dtype {} or change the config",
                DtypeName(*wanted), DtypeName(dtype));
    }
    return dtype;
  }
  if (wanted) {
    if (*wanted == Dtype::kF16 && fp16 == Switch::kOff) {
      root.Fail("fp16", "enabled false contradicts --dtype fp16; enable it or drop --dtype");
    }
    if (*wanted == Dtype::kBF16 && bf16 == Switch::kOff) {
      root.Fail(bf16_key, "enabled false contradicts --dtype bf16; enable it or drop --dtype");
    }
    return *wanted;
  }
  if (bf16 == Switch::kAuto) return Dtype::kBF16;
  if (fp16 == Switch::kAuto) return Dtype::kF16;
  if (fp16 == Switch::kAbsent && bf16 == Switch::kAbsent) {
    state->result.notes.push_back(
        "no fp16 or bf16 section: training in fp32, as DeepSpeed does; add \"bf16\": {\"enabled\": "
        "true} for 16 bit");
  }
  return Dtype::kF32;
}

void ReadLossScale(ReaderState* state, JsonSection* fp16) {
  constexpr double kMax = std::numeric_limits<float>::max();
  PrecisionConfig& out = state->result.setup.precision;
  out.loss_scale =
      fp16->Number("loss_scale", 0, kMax, "0 (dynamic) or a positive number").value_or(0);
  out.initial_scale_power = static_cast<int>(fp16->Int("initial_scale_power", 0, 126).value_or(16));
  out.loss_scale_window = static_cast<int>(
      fp16->Int("loss_scale_window", 1, std::numeric_limits<int>::max()).value_or(1000));
  out.hysteresis =
      static_cast<int>(fp16->Int("hysteresis", 1, std::numeric_limits<int>::max()).value_or(2));
  out.consecutive_hysteresis = fp16->Bool("consecutive_hysteresis").value_or(false);
  out.min_loss_scale = fp16->Number("min_loss_scale", 0, kMax).value_or(1);
  state->Reject(fp16, "auto_cast", "parameters are kept in fp16 throughout", "remove it");
  state->Reject(fp16, "fp16_master_weights_and_grads", "master weights are fp32", "remove it");
}

void ReadBf16(ReaderState* state, JsonSection* bf16) {
  if (!bf16->Bool("check_grad_overflow").value_or(true)) {
    state->Note(*bf16, "check_grad_overflow",
                "has no effect: zeroplan always skips a step whose gradients are not finite");
  }
  bf16->Bool("immediate_grad_update");
  state->NoEffect(bf16, "immediate_grad_update", "zeroplan decides when gradients are summed");
  state->Reject(bf16, "bf16_master_weights_and_grads", "master weights are fp32", "remove it");
  state->Reject(bf16, "bf16_optimizer_states", "optimizer states are fp32", "remove it");
  state->NoEffect(bf16, "fp32_optimizer_states", "optimizer states are fp32 anyway");
}

// An open key is the fallback.
Dtype ReadDtype(JsonSection* section, const char* key, Dtype fallback) {
  constexpr const char* kAllowed = "\"fp32\", \"fp16\" or \"bf16\"";
  const std::optional<std::string> text = section->String(key, kAllowed);
  if (!text) return fallback;
  try {
    return ParseDtype(*text, key);
  } catch (const Error&) {
    section->FailValue(key, kAllowed);
  }
}

void ReadDataTypes(ReaderState* state) {
  PrecisionConfig& out = state->result.setup.precision;
  JsonSection& types = state->Open(&state->root(), "data_types");
  out.grad_accum_dtype = ReadDtype(&types, "grad_accum_dtype", out.dtype);
  const Dtype params = ReadDtype(&types, "param_dtype", out.dtype);
  if (params != out.dtype) {
    types.Fail("param_dtype",
               "{} is not supported: parameters are kept in the compute dtype {}; "
               "remove it",
               DtypeName(params), DtypeName(out.dtype));
  }
}

void ReadCommunication(ReaderState* state) {
  JsonSection& root = state->root();
  const Dtype dtype = state->result.setup.precision.dtype;
  const Dtype sent = ReadDtype(&root, "communication_data_type", dtype);
  if (sent != dtype) {
    root.Fail("communication_data_type",
              "{} is not supported yet with {} training; use \"{}\" or remove the key",
              DtypeName(sent), DtypeName(dtype), DtypeName(dtype));
  }
  if (root.Bool("fp32_allreduce").value_or(false) && dtype != Dtype::kF32) {
    root.Fail("fp32_allreduce", "true is not supported yet with {} training; remove the key",
              DtypeName(dtype));
  }
  state->OnlyDefault(&root, "prescale_gradients", false);
  constexpr double kMax = std::numeric_limits<double>::max();
  const double predivide = root.Number("gradient_predivide_factor", -kMax, kMax).value_or(1.0);
  if (predivide != 1.0) {
    root.Fail("gradient_predivide_factor", "{} is not supported yet; use 1.0 or remove the key",
              predivide);
  }
}

}  // namespace

void ReadPrecision(ReaderState* state) {
  JsonSection& root = state->root();
  const bool old_name = root.Value("bfloat16") != nullptr;
  if (old_name && root.Value("bf16") != nullptr) {
    root.Fail("bfloat16", "is the old name of bf16, which is given too; keep bf16");
  }
  const char* bf16_key = old_name ? "bfloat16" : "bf16";
  JsonSection& fp16 = state->Open(&root, "fp16");
  JsonSection& bf16 = state->Open(&root, bf16_key);
  const Switch fp16_switch = ReadSwitch(&root, &fp16);
  const Switch bf16_switch = ReadSwitch(&root, &bf16);
  fp16.Raw("enabled");  // known, also where the section is absent
  bf16.Raw("enabled");
  state->result.setup.precision.dtype = ChooseDtype(state, fp16_switch, bf16_switch, bf16_key);
  ReadLossScale(state, &fp16);
  ReadBf16(state, &bf16);
  ReadDataTypes(state);
  ReadCommunication(state);
}

}  // namespace zeroplan
