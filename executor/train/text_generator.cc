#include "executor/train/text_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/model/lora.h"
#include "executor/checkpoint/adapter_weights.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/engine/engine.h"

namespace zeroplan {
namespace {

constexpr int32_t kLineFeed = 10;

// Elements that are loaded at a time, 16 MiB in fp32: plans hold two such slots in pinned memory,
// and in 16 bit two more where weights are rounded.
constexpr uint64_t kLoadedAtOnce = 1u << 22;

// A pass over a whole context costs about as much as so many-th of its tokens one by one: rows that
// share a product's matrix are that much cheaper than single ones. On a GPU in bf16 a row's 2 FLOPs
// a weight take 2 / (dense peak), and a single token's 2 bytes a weight 2 / (memory bandwidth): of
// an H200, with 989 TFLOP/s and 4.8 TB/s, 206 times as long.
size_t RowsOfAToken(Backend backend) { return backend == Backend::kCpu ? 16 : 200; }

EngineOptions MakeEngineOptions(const GeneratorOptions& options) {
  EngineOptions engine;
  engine.backend = options.backend;
  engine.fresh_weights = false;
  engine.threads_per_rank = options.threads;
  return engine;
}

}  // namespace

ModelSpec GeneratedModel(const std::filesystem::path& folder,
                         const std::filesystem::path& adapter) {
  ModelSpec model = LoadModel(folder.string());
  return adapter.empty() ? model
                         : BaseModel(WithAdapter(std::move(model), adapter, AdapterUse::kMerge));
}

Program LowerGenerator(const ModelSpec& model, const GeneratorOptions& options) {
  const int64_t context =
      options.context > 0 ? std::min(options.context, model.positions) : model.positions;
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = options.dtype;
  setup.batch = {1, 1, 1, context};
  LowerOptions lower;
  lower.purpose = Purpose::kGenerate;
  lower.backend = options.backend;
  lower.flash_attention = options.flash_attention;
  lower.keep_keys_values = options.keep_keys_values;
  lower.checkpoint_chunk_elements = kLoadedAtOnce;
  return Lower(model, setup, lower);
}

struct TextGenerator::Impl {
  Impl(const std::filesystem::path& from, Program what, const GeneratorOptions& options)
      : folder(from),
        rows_of_a_token(RowsOfAToken(options.backend)),
        program(std::move(what)),
        engine(program, MakeEngineOptions(options)) {
    engine.Init();
    if (options.adapter.empty()) {
      engine.Load(HfWeightsSource(folder, program.model, *program.layout.tensors), false, nullptr);
      return;
    }
    const ModelSpec adapted =
        WithAdapter(FindModel(folder.string()).spec, options.adapter, AdapterUse::kMerge);
    engine.Load(MergedWeights(folder, options.adapter, adapted), false, nullptr);
  }

  int64_t context() const { return program.setup.batch.seq_len; }
  bool keeps() const { return !program.section(Section::kDecode).empty(); }

  // Logits of the token after `tokens`, which are all in the vocabulary.
  std::vector<float> Logits(const std::vector<int32_t>& tokens) {
    const size_t used = std::min(tokens.size(), static_cast<size_t>(context()));
    const std::span<const int32_t> window(tokens.data() + tokens.size() - used, used);
    const auto differs = std::mismatch(kept.begin(), kept.end(), window.begin(), window.end());
    // The last token's own row is what is asked for.
    const size_t same =
        keeps() ? std::min(static_cast<size_t>(differs.first - kept.begin()), used - 1) : 0;
    kept.assign(window.begin(), window.end());
    const size_t most = std::max<size_t>(static_cast<size_t>(context()) / rows_of_a_token, 1);
    if (!keeps() || used - same > most) {
      return engine.Logits(window, static_cast<int32_t>(used) - 1);
    }
    std::vector<float> logits;
    for (size_t i = same; i < used; ++i) {
      logits = engine.Decode(window[i], static_cast<int32_t>(i));
    }
    return logits;
  }

  const std::filesystem::path folder;
  const size_t rows_of_a_token;
  const Program program;
  Engine engine;
  std::vector<int32_t> kept;  // whose keys and values are in memory, by position
};

TextGenerator::TextGenerator(const std::filesystem::path& folder, const GeneratorOptions& options)
    : TextGenerator(folder, LowerGenerator(GeneratedModel(folder, options.adapter), options),
                    options) {}
TextGenerator::TextGenerator(const std::filesystem::path& folder, Program program,
                             const GeneratorOptions& options)
    : impl_(std::make_unique<Impl>(folder, std::move(program), options)) {}
TextGenerator::~TextGenerator() = default;

const ModelSpec& TextGenerator::model() const { return impl_->program.model; }

int64_t TextGenerator::context() const { return impl_->context(); }

const Program& TextGenerator::program() const { return impl_->program; }

std::array<uint64_t, kSpaces> TextGenerator::used_bytes() const {
  return impl_->engine.high_water().touched_bytes;
}

uint64_t TextGenerator::planned_bytes() const {
  uint64_t bytes = 0;
  for (const uint64_t of_space : impl_->program.arena_bytes) bytes += of_space;
  return bytes;
}

uint64_t TextGenerator::key_value_bytes() const {
  uint64_t bytes = 0;
  for (const Buffer& buffer : impl_->program.buffers) {
    if (buffer.role == Role::kKeysValues) bytes += buffer.bytes;
  }
  return bytes;
}

std::vector<float> TextGenerator::NextLogits(const std::vector<int32_t>& tokens) {
  if (tokens.empty()) ThrowUsage("the prompt is empty: give at least one token");
  for (int32_t token : tokens) {
    if (token < 0 || token >= model().vocab) {
      ThrowUsage("token {} is outside the model's vocabulary of {}", token, model().vocab);
    }
  }
  std::vector<float> logits = impl_->Logits(tokens);
  logits.resize(static_cast<size_t>(model().vocab));
  const auto finite =
      std::count_if(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
  if (finite < static_cast<std::ptrdiff_t>(logits.size())) {
    ThrowUsage(
        "{}: {} of {} tokens have no finite score: the weights hold NaN or infinities, or "
        "overflow; train again from a checkpoint before they did",
        impl_->folder.string(), static_cast<std::ptrdiff_t>(logits.size()) - finite, logits.size());
  }
  return logits;
}

TextGenerator::Ended TextGenerator::Generate(std::vector<int32_t>& tokens, int64_t count,
                                             const SamplingOptions& sampling,
                                             const std::vector<int32_t>& stop_tokens,
                                             const std::function<bool(int32_t)>& on_token) {
  std::mt19937_64 random(sampling.seed);
  if (tokens.empty()) tokens.push_back(kLineFeed);
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(DrawToken(NextLogits(tokens), sampling, random));
    if (std::find(stop_tokens.begin(), stop_tokens.end(), tokens.back()) != stop_tokens.end()) {
      return Ended::kStopToken;
    }
    if (!on_token(tokens.back())) return Ended::kByCaller;
  }
  return Ended::kCount;
}

namespace {

// How many of a vocabulary are sorted first where the nucleus may be of any size: most are smaller.
constexpr size_t kFirstSorted = 1024;

// Logits that are looked at together: whether one is above what was found is asked of all at once.
constexpr size_t kBlock = 1024;

// The likeliest `count`, likeliest first; of equals the first.
std::vector<int32_t> Likeliest(std::span<const float> logits, size_t count) {
  const auto at = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const auto likelier = [&](int32_t a, int32_t b) {
    return at(a) != at(b) ? at(a) > at(b) : a < b;
  };
  count = std::min(count, logits.size());
  std::vector<int32_t> found;  // a heap, the unlikeliest in front
  found.reserve(count);
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    if (found.size() == count) {
      const float least = at(found.front());
      if (std::count_if(block.begin(), block.end(), [=](float x) { return x > least; }) == 0) {
        continue;
      }
    }
    for (size_t i = 0; i < block.size(); ++i) {
      if (found.size() == count) {
        if (!(block[i] > at(found.front()))) continue;
        std::pop_heap(found.begin(), found.end(), likelier);
        found.pop_back();
      }
      found.push_back(static_cast<int32_t>(begin + i));
      std::push_heap(found.begin(), found.end(), likelier);
    }
  }
  std::sort_heap(found.begin(), found.end(), likelier);
  return found;
}

// Leaves the fewest of the first weights that come to `mass`; false if all of them do not.
bool CutNucleus(std::vector<double>& weights, double mass) {
  double before = weights[0];
  size_t kept = 1;
  for (; kept < weights.size() && before < mass; ++kept) before += weights[kept];
  weights.resize(kept);
  return before >= mass;
}

}  // namespace

int32_t DrawToken(std::span<const float> logits, const SamplingOptions& sampling,
                  std::mt19937_64& random) {
  if (sampling.temperature <= 0) return Likeliest(logits, 1).front();
  std::vector<int32_t> order;
  std::vector<double> weights;
  // Takes `tokens`, whose weights are those beside the likeliest of all; returns their sum.
  const auto weigh = [&](std::vector<int32_t> tokens, int32_t likeliest) {
    order = std::move(tokens);
    weights.resize(order.size());
    std::transform(order.begin(), order.end(), weights.begin(), [&](int32_t token) {
      const float below =
          logits[static_cast<size_t>(token)] - logits[static_cast<size_t>(likeliest)];
      return std::exp(static_cast<double>(below) / sampling.temperature);
    });
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  };
  const auto top_k = static_cast<size_t>(std::max(sampling.top_k, 0));
  if (top_k > 0 && top_k < logits.size()) {
    std::vector<int32_t> tokens = Likeliest(logits, top_k);
    const int32_t likeliest = tokens.front();
    const double all = weigh(std::move(tokens), likeliest);
    if (sampling.top_p < 1) CutNucleus(weights, sampling.top_p * all);
  } else {
    std::vector<int32_t> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    const int32_t likeliest = Likeliest(logits, 1).front();
    const double all = weigh(std::move(tokens), likeliest);
    for (size_t count = kFirstSorted; sampling.top_p < 1; count *= 8) {
      weigh(Likeliest(logits, count), likeliest);
      if (CutNucleus(weights, sampling.top_p * all) || count >= logits.size()) break;
    }
  }
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  return order[draw(random)];
}

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopText::Push(std::string_view text) {
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }
  // The longest end of the text that a stop text begins with.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (stop.compare(0, n, held_, held_.size() - n, n) == 0) keep = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopText::Finish() { return found_ ? std::string() : std::exchange(held_, {}); }

}  // namespace zeroplan
