// Reads fp16, bf16, data_types, the states' formats, the dtype of sent gradients and the batch
// sizes.
#include <limits>

#include "core/base/error.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

namespace {

// The setting of a config for one 16-bit format.
enum class Switch { kAbsent, kAuto, kOff, kOn };

Switch ReadSwitch(JsonSection* root, JsonSection* section) {
  if (!section->present()) return root->IsAuto(section->path()) ? Switch::kAuto : Switch::kAbsent;
  if (section->IsAuto("enabled")) return Switch::kAuto;
  return section->Bool("enabled").value_or(false) ? Switch::kOn : Switch::kOff;
}

// Chooses the dtype by the two switches and the command line.
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

// Reads a key for the formats of states. Returns nothing if the section is not that of the run's
// dtype.
std::optional<bool> ReadStatesKey(ReaderState* state, JsonSection* section, const char* key) {
  const std::optional<bool> said = section->Bool(key);
  const Dtype dtype = state->result.setup.precision.dtype;
  const bool of_run = section->path() == "fp16" ? dtype == Dtype::kF16 : dtype == Dtype::kBF16;
  if (of_run) return said;
  if (said == true) {
    state->Note(*section, key, fmt::format("has no effect: the run is in {}", DtypeName(dtype)));
  }
  return std::nullopt;
}

// Notes that zeroplan rounds the states of `key` in another way than DeepSpeed.
void NoteRounding(ReaderState* state, const JsonSection& section, const char* key,
                  std::string_view text) {
  if (state->context.of_deepspeed || state->context.reads_for == ConfigFor::kDeepSpeed) return;
  state->Note(section, key, text);
}

void ReadLightMasters(ReaderState* state, JsonSection* section, const char* key) {
  const std::optional<bool> light = ReadStatesKey(state, section, key);
  if (!light) return;
  state->masters.OfDeepSpeed(fmt::format("{}.{}", section->path(), key), *light,
                             *light ? MasterWeights::kParam : MasterWeights::kFp32);
  if (!*light) return;
  NoteRounding(state, *section, key,
               "zeroplan rounds master weights in 16 bit stochastically, where DeepSpeed rounds to "
               "nearest");
}

void ReadLossScale(ReaderState* state, JsonSection* fp16) {
  constexpr double kMax = std::numeric_limits<float>::max();
  PrecisionConfig& out = state->result.setup.precision;
  ReadKeyRows(state, fp16, "fp16");
  // DeepSpeed divides by it once the scale is dynamic.
  if (out.loss_scale_window == 0 && out.dtype == Dtype::kF16 && out.loss_scale == 0) {
    fp16->ReportValue("loss_scale_window", "a whole number of at least 1");
  }
  if (out.loss_scale_window == 0) out.loss_scale_window = PrecisionConfig().loss_scale_window;
  out.min_loss_scale = fp16->Number("min_loss_scale", 0, kMax).value_or(1);
  state->Reject(fp16, "auto_cast", "parameters are kept in fp16 throughout", "remove it");
  ReadLightMasters(state, fp16, "fp16_master_weights_and_grads");
}

void ReadBf16(ReaderState* state, JsonSection* bf16) {
  if (!bf16->Bool("check_grad_overflow").value_or(true)) {
    state->Note(*bf16, "check_grad_overflow",
                "has no effect: zeroplan always skips a step whose gradients are not finite");
  }
  bf16->Bool("immediate_grad_update");
  state->NoEffect(bf16, "immediate_grad_update", "zeroplan decides when gradients are summed");
  ReadLightMasters(state, bf16, "bf16_master_weights_and_grads");
  constexpr const char* kLight = "bf16_optimizer_states";
  constexpr const char* kFp32 = "fp32_optimizer_states";
  const std::optional<bool> light = ReadStatesKey(state, bf16, kLight);
  const bool fp32 = ReadStatesKey(state, bf16, kFp32).value_or(false);
  const auto of_deepspeed = [&](const char* key, bool value, Dtype says) {
    state->moments.OfDeepSpeed(fmt::format("{}.{}", bf16->path(), key), value, says);
  };
  if (fp32) of_deepspeed(kFp32, true, Dtype::kF32);
  if (light) of_deepspeed(kLight, *light, *light ? Dtype::kBF16 : Dtype::kF32);
  if (!light.value_or(false)) return;
  NoteRounding(
      state, *bf16, kLight,
      "zeroplan rounds second moments in bf16 stochastically and first moments to nearest, "
      "where DeepSpeed rounds both to nearest");
  if (fp32) {
    bf16->Report(kFp32, "true contradicts bf16_optimizer_states true; remove one of the two");
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

// Reads one size of the batch: the config's, else the command line's. Two that differ are a
// problem.
std::optional<int64_t> BatchSize(JsonSection* root, const char* key, const char* option,
                                 const std::optional<int64_t>& given) {
  // Far above any real batch, and low enough that the sums in DivideBatch cannot overflow.
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

// Reports a problem with the dtype in which gradients are sent, at the key or, where only the
// option sets the dtype, at the option.
template <typename... Args>
void ReportSentDtype(ReaderState* state, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  if (state->root().Value(kSentKey) != nullptr) {
    state->root().Report(kSentKey, "{}, or remove the key", text);
  } else {
    state->AddProblem(0, fmt::format("{}: {}, or leave it out", kSentOption, text));
  }
}

// Reads the dtype in which gradients are sent: fp32, or the dtype that they have anyway.
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
  // A config for several GPUs may be read for one GPU, which sends nothing.
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

// The value that the sources set, else `otherwise`. Two that differ are a problem.
template <typename T>
T MergeStates(const StatesSaid<T>& said, JsonSection* own, ReaderState* state, T otherwise) {
  const std::optional<T> of_config = said.of_own ? said.of_own : said.of_deepspeed;
  if (said.of_own && said.of_deepspeed && *said.of_own != *said.of_deepspeed) {
    own->Report(said.own_key, "{} contradicts {} {}; remove one of the two", said.Value(),
                said.deepspeed_key, said.deepspeed_value);
  } else if (of_config && said.of_option && *of_config != *said.of_option) {
    state->ReportAt(
        said.Source(),
        fmt::format("{} contradicts {} {}; use {} {} or change the config", said.Value(),
                    said.option, said.name(*said.of_option), said.option, said.name(*of_config)));
  }
  return of_config.value_or(said.of_option.value_or(otherwise));
}

constexpr int64_t kTooLarge = std::numeric_limits<int64_t>::max();

// a * b, or kTooLarge if it overflows. kTooLarge equals and divides no batch size.
int64_t SaturatedMul(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? kTooLarge : out;
}

// total / part; throws if the quotient is not whole.
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
  StatesSaid<MasterWeights>& masters = state->masters;
  StatesSaid<Dtype>& moments = state->moments;
  masters.of_option = state->context.master_weights;
  moments.of_option = state->context.moment_dtype;
  const char* allowed = out.dtype == Dtype::kBF16  ? R"("fp32", "split" or "16bit")"
                        : out.dtype == Dtype::kF16 ? R"("fp32" or "16bit")"
                                                   : R"("fp32")";
  const std::optional<std::string> of_masters =
      own->Word(masters.own_key, WordsOf(kWords<MasterWeights>), allowed);
  if (of_masters) {
    masters.of_own = ParseMasterWeights(*of_masters, out.dtype);
    if (!masters.of_own) own->ReportValue(masters.own_key, allowed);
  }
  moments.of_own = own->Word(moments.own_key, kMomentWords);
  // The two halves form an fp32 master, so they do not contradict a DeepSpeed key that is false.
  const bool halves =
      (masters.of_own ? masters.of_own : masters.of_option) == MasterWeights::kSplit;
  if (halves && masters.of_deepspeed == MasterWeights::kFp32) masters.of_deepspeed.reset();
  out.master_weights = MergeStates(masters, own, state, MasterWeights::kFp32);
  out.moment_dtype = MergeStates(moments, own, state, Dtype::kF32);
  state->result.says_states = masters.by_config() || moments.by_config();
}

void ReportDeepSpeedStates(ReaderState* state) {
  const TrainSetup& setup = state->result.setup;
  if (DeepSpeedStatesCannot(setup).empty()) return;
  const StatesSaid<MasterWeights>& masters = state->masters;
  const StatesSaid<Dtype>& moments = state->moments;
  const auto report = [state](const auto& said, const std::string& text) {
    state->ReportSource(said.Source(), fmt::format("{} {}", said.Value(), text));
  };
  const Dtype dtype = setup.precision.dtype;
  const Dtype moment_dtype = setup.precision.moment_dtype;
  const bool bf16 = dtype == Dtype::kBF16;
  const bool of_param = setup.precision.master_weights == MasterWeights::kParam;
  const bool sharded = setup.zero.stage > 0;
  const char* remove = masters.by_config() ? "remove it" : "leave it out";
  if (setup.precision.master_weights == MasterWeights::kSplit) {
    report(masters, "is not allowed: DeepSpeed has no master weights in two halves; use fp32");
  }
  if (of_param && !sharded) {
    report(masters, fmt::format("is not allowed at stage 0; use stage 1, 2 or 3, or {}", remove));
  }
  if (moment_dtype == Dtype::kDynamic8) {
    report(moments,
           fmt::format("is not allowed: DeepSpeed has no optimizer states in 8 bit; use fp32{}",
                       bf16 && sharded ? ", or bf16 with ⟦master_weights⟧ 16bit" : ""));
  } else if (moment_dtype == Dtype::kBF16 && !bf16) {
    report(moments, fmt::format("is not allowed in {}: DeepSpeed has optimizer states in bf16 in "
                                "runs of bf16 alone; use fp32",
                                DtypeName(dtype)));
  } else if (moment_dtype == Dtype::kBF16 && !of_param) {
    const bool by_key = moments.by_deepspeed_key();
    report(moments,
           fmt::format("needs {}{}; {}",
                       by_key ? "bf16_master_weights_and_grads true" : "⟦master_weights⟧ 16bit",
                       sharded ? "" : " and stage 1, 2 or 3",
                       by_key ? "add that, or remove it" : "use that, or fp32"));
  } else if (of_param && sharded && !StateKeysOf(setup).masters) {
    constexpr const char* kOffload = "zero_optimization.offload_optimizer.device cpu";
    const char* moments_too =
        masters.by_deepspeed_key() ? "bf16_optimizer_states true" : "⟦optimizer_states⟧ bf16";
    report(masters,
           fmt::format("is not allowed with {} on the GPU; set {}, or {}",
                       bf16 ? "fp32 states" : "the optimizer",
                       bf16 ? fmt::format("{} or {}", moments_too, kOffload) : kOffload, remove));
  }
}

namespace {

// Reads the number of ranks that share each sequence.
int ReadSequenceRanks(ReaderState* state) {
  constexpr const char* kKey = "sequence_parallel_size";
  JsonSection& root = state->root();
  const int ranks = state->context.world_size;
  const int64_t shared =
      root.Int(kKey, 1, std::numeric_limits<int32_t>::max(), "the GPUs that share each sequence")
          .value_or(1);
  if (ranks >= 1 && ranks % shared != 0) {
    root.Report(kKey, "{} is not allowed with {} GPUs; use a divisor of these", shared, ranks);
  }
  return static_cast<int>(shared);
}

}  // namespace

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
  const int shared = ReadSequenceRanks(state);
  if (state->HasProblems()) return;
  // zeroplan may choose an "auto" size, so accumulation alone is enough.
  if (sizes.grad_accum && !sizes.micro_batch && !sizes.global_batch &&
      (root.IsAuto(kMicro) || root.IsAuto(kGlobal))) {
    sizes.micro_batch = 1;
  }
  const char* line_of = root.Value(kGlobal) != nullptr  ? kGlobal
                        : root.Value(kMicro) != nullptr ? kMicro
                                                        : kAccum;
  const JsonNode* node = root.Value(line_of);
  // The message names its key itself, so only "SOURCE:LINE: " of the place is kept.
  std::string where = root.Where(line_of);
  where.resize(where.size() - std::string_view(line_of).size() - 2);
  BatchSpec& batch = state->result.setup.batch;
  try {
    batch = ResolveBatch(sizes, context.world_size, context.seq_len, where, shared);
  } catch (const Error& error) {
    state->AddProblem(node == nullptr ? 1 : node->line, error.what());
  }
}

void ReadCommunication(ReaderState* state) {
  JsonSection& root = state->root();
  ReadSentDtype(state);

  // The gradient of the loss is divided by all tokens of the step before the backward pass, so the
  // sum over ranks is already the mean.
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
                       const std::string& where, int sequence_ranks) {
  BatchSpec out;
  out.world_size = world_size;
  out.sequence_ranks = sequence_ranks;
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
  const int64_t groups = out.data_ranks();
  const std::string ranks = sequence_ranks == 1
                                ? fmt::format("{} GPUs", world_size)
                                : fmt::format("{} groups of {} GPUs", groups, sequence_ranks);
  if (micro && accum) {
    const int64_t product = SaturatedMul(SaturatedMul(*micro, *accum), groups);
    if (product == kTooLarge || product != *global) {
      ThrowUsage(
          "{}train_batch_size: {} is not train_micro_batch_size_per_gpu {} x "
          "gradient_accumulation_steps {} x {} = {}; change one of them, or leave one out",
          where, *global, *micro, *accum, ranks, product);
    }
  } else if (micro) {
    out.grad_accum =
        DivideBatch(*global, SaturatedMul(*micro, groups),
                    fmt::format("train_micro_batch_size_per_gpu {} x {}", *micro, ranks), where);
  } else if (accum) {
    out.micro_batch =
        DivideBatch(*global, SaturatedMul(*accum, groups),
                    fmt::format("gradient_accumulation_steps {} x {}", *accum, ranks), where);
  } else {
    out.micro_batch = DivideBatch(*global, groups, ranks, where);
  }
  return out;
}

}  // namespace zeroplan
