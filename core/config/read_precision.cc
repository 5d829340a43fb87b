// fp16, bf16 and data_types.
#include <limits>

#include "core/base/error.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/config/setup_facts.h"

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
                  "enabled true contradicts ⟦dtype⟧ {}; use ⟦dtype⟧ {} or change the config",
                  DtypeName(*wanted), DtypeName(dtype));
    }
    return dtype;
  }
  if (wanted) {
    if (*wanted == Dtype::kF16 && fp16 == Switch::kOff) {
      root.Report("fp16", "enabled false contradicts ⟦dtype⟧ fp16; enable it or drop ⟦dtype⟧");
    }
    if (*wanted == Dtype::kBF16 && bf16 == Switch::kOff) {
      root.Report(bf16_key, "enabled false contradicts ⟦dtype⟧ bf16; enable it or drop ⟦dtype⟧");
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

// Whether a key of DeepSpeed's light states is on, and its section is the run's.
bool ReadLight(ReaderState* state, JsonSection* section, const char* key) {
  const bool on = section->Bool(key).value_or(false);
  const Dtype dtype = state->result.setup.precision.dtype;
  const bool enabled = section->path() == "fp16" ? dtype == Dtype::kF16 : dtype == Dtype::kBF16;
  if (on && !enabled) {
    state->Note(*section, key, fmt::format("has no effect: the run is in {}", DtypeName(dtype)));
  }
  if (on && enabled && !state->context.of_deepspeed &&
      state->context.reads_for != ConfigFor::kDeepSpeed) {
    state->Note(*section, key,
                "zeroplan rounds what it keeps in 16 bit stochastically, where DeepSpeed rounds to "
                "nearest");
  }
  return on && enabled;
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
  if (ReadLight(state, fp16, "fp16_master_weights_and_grads")) {
    out.master_weights = MasterWeights::kParam;
  }
}

void ReadBf16(ReaderState* state, JsonSection* bf16) {
  if (!bf16->Bool("check_grad_overflow").value_or(true)) {
    state->Note(*bf16, "check_grad_overflow",
                "has no effect: zeroplan always skips a step whose gradients are not finite");
  }
  bf16->Bool("immediate_grad_update");
  state->NoEffect(bf16, "immediate_grad_update", "zeroplan decides when gradients are summed");
  PrecisionConfig& out = state->result.setup.precision;
  if (ReadLight(state, bf16, "bf16_master_weights_and_grads")) {
    out.master_weights = MasterWeights::kParam;
  }
  if (ReadLight(state, bf16, "bf16_optimizer_states")) out.moment_dtype = Dtype::kBF16;
  const bool fp32 = bf16->Bool("fp32_optimizer_states").value_or(false);
  state->NoEffect(bf16, "fp32_optimizer_states",
                  "optimizer states are fp32 unless others are said");
  if (fp32 && out.moment_dtype == Dtype::kBF16) {
    bf16->Report("fp32_optimizer_states",
                 "true contradicts bf16_optimizer_states true; remove one of the two");
  }
}

void ReadDataTypes(ReaderState* state) {
  PrecisionConfig& out = state->result.setup.precision;
  JsonSection& types = state->Open(&state->root(), "data_types");
  out.grad_accum_dtype =
      ReadDtype(&types, "grad_accum_dtype", "⟦grad_accum_dtype⟧", state->context.grad_accum_dtype)
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

constexpr const char* kSentKey = "communication_data_type";
constexpr const char* kSentOption = "⟦communication_dtype⟧";

// A problem with the dtype to send, at the key or, where the option says it, at that.
template <typename... Args>
void ReportSentDtype(ReaderState* state, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  if (state->root().Value(kSentKey) != nullptr) {
    state->root().Report(kSentKey, "{}, or remove the key", text);
  } else {
    state->AddProblem(0, fmt::format("{}: {}, or leave it out", kSentOption, text));
  }
}

// The dtype that gradients are to be sent in: fp32, or the one they have anyway.
void ReadSentDtype(ReaderState* state) {
  JsonSection& root = state->root();
  TrainSetup& setup = state->result.setup;
  std::optional<Dtype> asked =
      ReadDtype(&root, kSentKey, kSentOption, state->context.communication_dtype);
  const bool allreduce_fp32 = root.Bool("fp32_allreduce").value_or(false);
  if (allreduce_fp32 && asked && *asked != Dtype::kF32) {
    root.Report("fp32_allreduce", "true contradicts {} {}; remove one of the two",
                root.Value(kSentKey) != nullptr ? kSentKey : kSentOption, DtypeName(*asked));
  }
  if (allreduce_fp32) asked = Dtype::kF32;
  if (!asked || state->HasProblems()) return;
  const Dtype compute = setup.precision.dtype;
  setup.precision.fp32_reduction = *asked == Dtype::kF32 && compute != Dtype::kF32;
  // A config for several GPUs may be looked at with one, which sends nothing.
  if (setup.batch.world_size == 1 && (*asked == Dtype::kF32 || *asked == compute)) {
    if (setup.precision.fp32_reduction) {
      state->Note(root, allreduce_fp32 ? "fp32_allreduce" : kSentKey,
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

// What sources say of masters or moments.
template <typename T>
struct StatesSaid {
  const char* key;  // of "_zeroplan"
  const char* option;
  std::string deepspeed_key;
  std::string_view (*name)(T);
  std::optional<T> of_own, of_deepspeed, of_option;
};

// What they come to; two that differ are a problem.
template <typename T>
T MergeStates(const StatesSaid<T>& said, JsonSection* own, ReaderState* state, T otherwise) {
  const std::optional<T> of_config = said.of_own ? said.of_own : said.of_deepspeed;
  if (said.of_own && said.of_deepspeed && *said.of_own != *said.of_deepspeed) {
    own->Report(said.key, "{} contradicts {}; remove one of the two", said.name(*said.of_own),
                said.deepspeed_key);
  } else if (of_config && said.of_option && *of_config != *said.of_option) {
    const std::string text =
        fmt::format("{} contradicts {} {}; use {} {} or change the config", said.name(*of_config),
                    said.option, said.name(*said.of_option), said.option, said.name(*of_config));
    if (said.of_own) {
      own->Report(said.key, "{}", text);
    } else {
      state->ReportAt(said.deepspeed_key, text);
    }
  }
  return of_config.value_or(said.of_option.value_or(otherwise));
}

constexpr int64_t kTooLarge = std::numeric_limits<int64_t>::max();

// a * b, or kTooLarge, which equals and divides no batch size.
int64_t SaturatedMul(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? kTooLarge : out;
}

// total / part, which must come out whole.
int64_t DivideBatch(int64_t total, int64_t part, const std::string& part_text,
                    const std::string& where) {
  if (part != kTooLarge && total % part == 0) return total / part;
  const int64_t below = total / part * part;
  ThrowUsage(
      "{}train_batch_size: {} is not a multiple of {} = {}; use {}{}, or change the other sizes",
      where, total, part_text, part, below > 0 ? fmt::format("{} or ", below) : std::string(),
      static_cast<uint64_t>(below) + static_cast<uint64_t>(part));
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

void ReadOwnStates(ReaderState* state, JsonSection* own) {
  PrecisionConfig& out = state->result.setup.precision;
  const bool fp16 = out.dtype == Dtype::kF16;
  StatesSaid<MasterWeights> masters = {
      "master_weights", "⟦master_weights⟧",
      fp16 ? "fp16.fp16_master_weights_and_grads" : "bf16.bf16_master_weights_and_grads",
      &MasterWeightsName};
  StatesSaid<Dtype> moments = {"optimizer_states", "⟦optimizer_states⟧", "", &MomentsName};
  masters.of_option = state->context.master_weights;
  moments.of_option = state->context.moment_dtype;
  constexpr const char* kMasters = R"("fp32", "split" or "16bit")";
  const std::optional<std::string> of_masters =
      own->Word(masters.key, {"fp32", "split", "16bit", "bf16", "fp16"}, kMasters);
  if (of_masters) {
    masters.of_own = ParseMasterWeights(*of_masters, out.dtype);
    if (!masters.of_own) own->ReportValue(masters.key, kMasters);
  }
  const std::optional<std::string> of_moments =
      own->Word(moments.key, {"fp32", "bf16", "8bit"}, R"("fp32", "bf16" or "8bit")");
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
    if (of_moments == MomentsName(dtype)) moments.of_own = dtype;
  }
  // What DeepSpeed's keys say, as ReadPrecision left it.
  if (out.master_weights != MasterWeights::kFp32) masters.of_deepspeed = out.master_weights;
  if (out.moment_dtype != Dtype::kF32) {
    moments.deepspeed_key = "bf16.bf16_optimizer_states";
    moments.of_deepspeed = out.moment_dtype;
  }
  out.master_weights = MergeStates(masters, own, state, MasterWeights::kFp32);
  out.moment_dtype = MergeStates(moments, own, state, Dtype::kF32);
}

std::optional<SetupProblem> DeepSpeedStatesProblem(const TrainSetup& setup) {
  const std::string cannot = DeepSpeedStatesCannot(setup);
  if (cannot.empty()) return std::nullopt;
  const PrecisionConfig& precision = setup.precision;
  const bool fp16 = precision.dtype == Dtype::kF16;
  const bool of_masters = precision.master_weights == MasterWeights::kParam;
  if (precision.dtype == Dtype::kBF16 && precision.moment_dtype == Dtype::kBF16 &&
      precision.master_weights == MasterWeights::kFp32) {
    return SetupProblem{"bf16.bf16_optimizer_states",
                        "true needs bf16_master_weights_and_grads true; add that, or remove it"};
  }
  if (!of_masters || precision.moment_dtype == Dtype::kDynamic8) {
    const bool split = precision.master_weights == MasterWeights::kSplit;
    return SetupProblem{split ? "⟦master_weights⟧" : "⟦optimizer_states⟧",
                        fmt::format("DeepSpeed has no {}; use fp32", cannot)};
  }
  const char* key =
      fp16 ? "fp16.fp16_master_weights_and_grads" : "bf16.bf16_master_weights_and_grads";
  if (setup.zero.stage == 0) {
    return SetupProblem{key, "true is not allowed at stage 0; use stage 1, 2 or 3, or remove it"};
  }
  return SetupProblem{
      key, fmt::format("true is not allowed with {} on the GPU; set {}, or remove it",
                       fp16 ? "the optimizer" : "fp32 states",
                       fp16 ? "zero_optimization.offload_optimizer.device cpu"
                            : "bf16_optimizer_states true or offload_optimizer.device cpu")};
}

void ReadBatch(ReaderState* state) {
  JsonSection& root = state->root();
  const ReadContext& context = state->context;
  constexpr const char* kGlobal = "train_batch_size";
  constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  constexpr const char* kAccum = "gradient_accumulation_steps";
  BatchSizes sizes;
  sizes.global_batch = BatchSize(&root, kGlobal, "⟦global_batch⟧", context.global_batch);
  sizes.micro_batch = BatchSize(&root, kMicro, "⟦micro_batch⟧", context.micro_batch);
  sizes.grad_accum = BatchSize(&root, kAccum, "⟦grad_accum⟧", context.grad_accum);
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

BatchSpec ResolveBatch(const BatchSizes& sizes, int world_size, int64_t seq_len,
                       const std::string& where) {
  BatchSpec out;
  out.world_size = world_size;
  out.seq_len = seq_len;
  if (world_size < 1) {
    ThrowUsage("⟦gpus⟧: {} is not allowed; use a whole number of at least 1", world_size);
  }
  const auto& [global, micro, accum] = sizes;
  if (micro) out.micro_batch = *micro;
  if (accum) out.grad_accum = *accum;
  if (!global) {
    if (accum && !micro) {
      ThrowUsage(
          "{}gradient_accumulation_steps: {} alone gives no batch size; add "
          "train_micro_batch_size_per_gpu or train_batch_size",
          where, *accum);
    }
    return out;
  }
  const std::string ranks = fmt::format("{} GPUs", world_size);
  if (micro && accum) {
    const int64_t product = SaturatedMul(SaturatedMul(*micro, *accum), world_size);
    if (product == kTooLarge || product != *global) {
      ThrowUsage(
          "{}train_batch_size: {} is not train_micro_batch_size_per_gpu {} x "
          "gradient_accumulation_steps {} x {} = {}; change one of them, or leave one out",
          where, *global, *micro, *accum, ranks, product);
    }
  } else if (micro) {
    out.grad_accum =
        DivideBatch(*global, SaturatedMul(*micro, world_size),
                    fmt::format("train_micro_batch_size_per_gpu {} x {}", *micro, ranks), where);
  } else if (accum) {
    out.micro_batch =
        DivideBatch(*global, SaturatedMul(*accum, world_size),
                    fmt::format("gradient_accumulation_steps {} x {}", *accum, ranks), where);
  } else {
    out.micro_batch = DivideBatch(*global, world_size, ranks, where);
  }
  return out;
}

}  // namespace zeroplan
