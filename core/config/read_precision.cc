// fp16, bf16 and data_types.
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
    root.Report("fp16", "fp16 and {} are both enabled; switch one of them off", bf16_key);
    return Dtype::kBF16;
  }
  const std::optional<Dtype> wanted = state->context.dtype;
  if (fp16 == Switch::kOn || bf16 == Switch::kOn) {
    const Dtype dtype = fp16 == Switch::kOn ? Dtype::kF16 : Dtype::kBF16;
    if (wanted && *wanted != dtype) {
      root.Report(fp16 == Switch::kOn ? "fp16" : bf16_key,
                  "enabled true contradicts @@dtype {}; use @@dtype {} or change the config",
                  DtypeName(*wanted), DtypeName(dtype));
    }
    return dtype;
  }
  if (wanted) {
    if (*wanted == Dtype::kF16 && fp16 == Switch::kOff) {
      root.Report("fp16", "enabled false contradicts @@dtype fp16; enable it or drop @@dtype");
    }
    if (*wanted == Dtype::kBF16 && bf16 == Switch::kOff) {
      root.Report(bf16_key, "enabled false contradicts @@dtype bf16; enable it or drop @@dtype");
    }
    return *wanted;
  }
  if (bf16 == Switch::kAuto && state->context.has_bf16) return Dtype::kBF16;
  if (fp16 == Switch::kAuto) return Dtype::kF16;
  if (bf16 == Switch::kAuto) {
    if (fp16 == Switch::kAbsent) return Dtype::kF16;
    root.Report(bf16_key,
                "\"auto\" is not allowed: the GPU has no bf16 and fp16 is switched off; "
                "enable fp16, or switch both off for fp32");
  }
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

}  // namespace

std::optional<Dtype> ReadDtype(JsonSection* section, const char* key, const char* option,
                               std::optional<Dtype> of_option) {
  constexpr const char* kAllowed = "\"fp32\", \"fp16\" or \"bf16\"";
  const std::optional<std::string> text = section->String(key, kAllowed);
  JsonKey& known = section->Key(key);
  known.words = {"fp32", "fp16", "bf16", "float32", "float16", "bfloat16", "float", "half"};
  known.any_case = true;
  if (!text) return of_option;
  Dtype dtype;
  try {
    dtype = ParseDtype(*text, key);
  } catch (const Error&) {
    section->ReportValue(key, kAllowed);
    return std::nullopt;
  }
  if (of_option && *of_option != dtype) {
    section->Report(key, "{} contradicts {} {}; use {} {} or change the config", DtypeName(dtype),
                    option, DtypeName(*of_option), option, DtypeName(dtype));
  }
  return dtype;
}

Dtype ReadDtype(JsonSection* section, const char* key, Dtype fallback) {
  return ReadDtype(section, key, "", std::nullopt).value_or(fallback);
}

namespace {

void ReadDataTypes(ReaderState* state) {
  PrecisionConfig& out = state->result.setup.precision;
  JsonSection& types = state->Open(&state->root(), "data_types");
  out.grad_accum_dtype =
      ReadDtype(&types, "grad_accum_dtype", "@@grad_accum_dtype", state->context.grad_accum_dtype)
          .value_or(out.dtype);
  const Dtype params = ReadDtype(&types, "param_dtype", out.dtype);
  if (params != out.dtype) {
    types.Report("param_dtype",
                 "{} is not supported: parameters are kept in the compute dtype {}; "
                 "remove it",
                 DtypeName(params), DtypeName(out.dtype));
  }
  types.String("buffer_dtype");
  state->NoEffect(&types, "buffer_dtype", "zeroplan's models have no buffers");
}

}  // namespace

void ReadPrecision(ReaderState* state) {
  JsonSection& root = state->root();
  const bool old_name = root.Value("bfloat16") != nullptr;
  if (old_name && root.Value("bf16") != nullptr) {
    root.Report("bfloat16", "is the old name of bf16, which is given too; keep bf16");
  }
  const char* bf16_key = old_name ? "bfloat16" : "bf16";
  JsonSection& fp16 = state->Open(&root, "fp16");
  JsonSection& bf16 = state->Open(&root, bf16_key);
  const Switch fp16_switch = ReadSwitch(&root, &fp16);
  const Switch bf16_switch = ReadSwitch(&root, &bf16);
  for (JsonSection* section : {&fp16, &bf16}) {  // known, also where the section is absent
    section->Key("enabled").kind = JsonKey::Kind::kBool;
  }
  state->result.setup.precision.dtype = ChooseDtype(state, fp16_switch, bf16_switch, bf16_key);
  ReadLossScale(state, &fp16);
  ReadBf16(state, &bf16);
  ReadDataTypes(state);
}

}  // namespace zeroplan
