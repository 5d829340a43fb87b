#include "executor/train/text_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/engine/engine.h"

namespace zeroplan {
namespace {

constexpr int32_t kLineFeed = 10;

Program LowerGenerator(const ModelSpec& model, int64_t context) {
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {1, 1, 1, context};
  LowerOptions options;
  options.purpose = Purpose::kGenerate;
  return Lower(model, setup, options);
}

EngineOptions MakeEngineOptions(int threads) {
  EngineOptions options;
  options.fresh_weights = false;
  options.threads_per_rank = threads;
  return options;
}

int32_t Draw(const std::vector<float>& logits, const SamplingOptions& sampling,
             std::mt19937_64& random) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const auto likelier = [&](int32_t a, int32_t b) {
    return at(a) != at(b) ? at(a) > at(b) : a < b;
  };
  if (sampling.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
  const size_t kept = sampling.top_k > 0
                          ? std::min(order.size(), static_cast<size_t>(sampling.top_k))
                          : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(),
                    likelier);
  std::vector<double> weights(kept);
  for (size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp(static_cast<double>(at(order[i]) - at(order[0])) / sampling.temperature);
  }
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  return order[draw(random)];
}

}  // namespace

struct TextGenerator::Impl {
  Impl(const std::filesystem::path& from, int64_t wanted_context, int threads)
      : folder(from),
        model(LoadModel(folder.string())),
        context(wanted_context > 0 ? std::min(wanted_context, model.positions) : model.positions),
        program(LowerGenerator(model, context)),
        engine(program, MakeEngineOptions(threads)) {
    engine.Init();
    engine.Load(HfWeightsSource(folder, model, *program.layout.tensors), false, nullptr);
  }
  std::filesystem::path folder;
  ModelSpec model;
  int64_t context;
  Program program;
  Engine engine;
};

TextGenerator::TextGenerator(const std::filesystem::path& folder, int64_t context, int threads)
    : impl_(std::make_unique<Impl>(folder, context, threads)) {}
TextGenerator::~TextGenerator() = default;

const ModelSpec& TextGenerator::model() const { return impl_->model; }

std::vector<float> TextGenerator::NextLogits(const std::vector<int32_t>& tokens) {
  if (tokens.empty()) ThrowUsage("the prompt is empty: give at least one token");
  const size_t used = std::min(tokens.size(), static_cast<size_t>(impl_->context));
  for (int32_t token : tokens) {
    if (token < 0 || token >= impl_->model.vocab) {
      ThrowUsage("token {} is outside the model's vocabulary of {}", token, impl_->model.vocab);
    }
  }
  const std::span<const int32_t> window(tokens.data() + tokens.size() - used, used);
  std::vector<float> logits = impl_->engine.Logits(window, static_cast<int32_t>(used) - 1);
  logits.resize(static_cast<size_t>(impl_->model.vocab));
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

void TextGenerator::Generate(std::vector<int32_t>& tokens, int64_t count,
                             const SamplingOptions& sampling,
                             const std::function<void(int32_t)>& on_token) {
  std::mt19937_64 random(sampling.seed);
  if (tokens.empty()) tokens.push_back(kLineFeed);
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(Draw(NextLogits(tokens), sampling, random));
    on_token(tokens.back());
  }
}

}  // namespace zeroplan
