#include "planner/runtimes/torch_model.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/lowering/passes.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/param_table.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {
namespace {

std::string ModuleName(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// Whether a module before the layers, of a tower that sees or of its projection, is a
// torch.nn.Linear; the others are convolutions, tables, norms, and parameters of their own.
bool IsTowerLinear(std::string_view module) {
  constexpr std::string_view kLinears[] = {
      "q_proj",    "k_proj",  "v_proj",    "out_proj", "fc1",   "fc2",      "attn.qkv", "attn.proj",
      "gate_proj", "up_proj", "down_proj", "mlp.0",    "mlp.2", "linear_1", "linear_2"};
  return std::any_of(std::begin(kLinears), std::end(kLinears),
                     [module](std::string_view name) { return module.ends_with(name); });
}

// A launch of a layer's forward pass, as far as PyTorch's code has a part like it.
struct Launch {
  char part;  // n norm, p product, r rotary, a attention, g GELU, s SwiGLU, ? another
  const LaunchKernel* kernel;
};

char PartOf(KernelId kernel) {
  switch (kernel) {
    case KernelId::kLayerNormForward:
    case KernelId::kRmsNormForward:
      return 'n';
    case KernelId::kMatmulForward:
      return 'p';
    case KernelId::kRotaryForward:
    case KernelId::kQkNormRotaryForward:
      return 'r';
    case KernelId::kAttentionForward:
      return 'a';
    case KernelId::kGeluForward:
      return 'g';
    case KernelId::kSwiGluForward:
      return 's';
    default:
      return '?';
  }
}

// What the graph launches forward before the first layer (-1) or in it (0).
std::vector<Launch> ForwardOf(const Program& program, int layer) {
  std::vector<Launch> launches;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (instruction.phase != Phase::kForward || instruction.layer != layer) continue;
    if (const auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
      launches.push_back({PartOf(launch->kernel), launch});
    }
  }
  return launches;
}

// Whether the second norm is of what the attention's half of a layer made.
bool InARow(const Program& program, const std::vector<Launch>& layer) {
  size_t norm2 = 1;
  while (layer[norm2].part != 'n') ++norm2;
  const BufferId read = program.args(*layer[norm2].kernel).front().buffer;
  const std::span<const Ref> before = program.args(*layer[norm2 - 1].kernel);
  return std::any_of(before.begin() + 1, before.end(),
                     [read](const Ref& arg) { return arg.buffer == read; });
}

}  // namespace

TorchModel::TorchModel(const ModelSpec& model, ExpertModules of_experts)
    : spec(model), experts(of_experts) {
  AddModules();
  ReadCode();
  AddAdapters();
}

void TorchModel::AddModules() {
  int layer = kEmbeddingLayer;
  std::ptrdiff_t layer_begin = 0;
  for (const ParamTensor& tensor : BuildParamTable(BaseModel(spec))) {
    for (const PublishedTensor& part : PublishedTensors(tensor)) {
      const std::string module = ModuleName(part.name);
      if (tensor.layer != std::exchange(layer, tensor.layer)) layer_begin = std::ssize(modules);
      auto at = std::find_if(modules.begin() + layer_begin, modules.end(),
                             [&](const TorchModule& known) { return known.name == module; });
      if (at == modules.end()) {
        if (tensor.layer < 0) ++first_layer_module;
        if (tensor.layer == 0 && spec.layers > 0) ++layer_modules;
        at = modules.insert(at, {module, {}});
      }
      TorchModule& to = *at;
      to.product = to.product || tensor.use == ParamUse::kProduct;
      to.biased = to.biased || (to.product && tensor.is_vector);
      to.params.push_back(static_cast<int>(params.size()));
      const int64_t rows = part.end - part.begin;
      // A published tensor is without padding; PyTorch's model here has the padded rows.
      const bool whole = tensor.parts.empty();
      params.push_back(
          {part.name, whole ? tensor.elements() : static_cast<uint64_t>(rows * tensor.shape[1]),
           tensor.is_vector, tensor.is_vector ? 0 : static_cast<uint64_t>(tensor.shape[1])});
    }
  }
  if (spec.tied_head) modules.push_back({"head", {0}, true});
  trained_params = params.size();
}

// What adapters train comes first of all parameters. Linears that are one matrix here have an
// adapter each.
void TorchModel::AddAdapters() {
  if (!has_adapters()) return;
  std::vector<TorchParam> trained;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    if (!IsAdapter(tensor)) continue;
    for (const PublishedTensor& part : PublishedTensors(tensor)) {
      const std::string half = ModuleName(part.name);
      const std::string linear = ModuleName(half);
      const auto at = std::find_if(modules.begin(), modules.end(),
                                   [&](const TorchModule& known) { return known.name == linear; });
      ZEROPLAN_CHECK(at != modules.end(), "no linear {}", linear);
      const auto adapts = static_cast<int>(at - modules.begin());
      const bool down = half.ends_with("lora_A");
      (down ? at->down : at->up) = static_cast<int>(modules.size());
      const auto rows = static_cast<uint64_t>(part.end - part.begin);
      const auto columns = static_cast<uint64_t>(tensor.shape[1]);
      TorchModule module{half, {static_cast<int>(trained.size())}, /*product=*/true};
      module.adapts = adapts;
      modules.push_back(std::move(module));
      trained.push_back({part.name, rows * columns, /*vector=*/false, columns});
    }
  }
  const size_t first = trained.size();
  for (TorchModule& module : modules) {
    for (int& param : module.params) {
      if (module.adapts < 0) param += static_cast<int>(first);
    }
  }
  for (int i = 1; spec.lora_quantized && i < final_norm(); ++i) {
    Quantize(modules[static_cast<size_t>(i)], first);
  }
  for (TorchParam& param : params) param.trained = false;
  params.insert(params.begin(), trained.begin(), trained.end());
  trained_params = first;
}

// bitsandbytes takes each torch.nn.Linear but the head: those of a tower too, but not a router or
// experts that are one parameter.
void TorchModel::Quantize(const TorchModule& module, size_t adapters) {
  const bool in_layer = module.product;
  const std::string_view name = module.name;
  const bool linear =
      in_layer ? !(name.ends_with(".experts") || (!separate_experts() && name.ends_with(".gate")) ||
                   name.ends_with("mlp.router"))
               : IsTowerLinear(name);
  for (const int param : module.params) {
    TorchParam& weight = params[static_cast<size_t>(param) - adapters];
    if (!linear || weight.vector) continue;
    weight.quantized = weight.elements;
    weight.elements = (weight.elements + 3) / 4;
  }
}

// transformers 4 has a linear module for each matrix of each expert, in the order of a pass.
void TorchModel::SeparateExperts() {
  const int64_t count = code.planned->experts;
  std::vector<TorchParam> split;
  std::vector<TorchModule> all;
  std::vector<int> place(params.size(), -1);
  const auto keep = [&](int param) {
    int& at = place[static_cast<size_t>(param)];
    if (at < 0) {
      at = static_cast<int>(split.size());
      split.push_back(std::move(params[static_cast<size_t>(param)]));
    }
    return at;
  };
  const int block = up_module() + 1;
  for (int i = 0; i < static_cast<int>(modules.size()); ++i) {
    TorchModule& module = modules[static_cast<size_t>(i)];
    const int offset = i - first_layer_module;
    if (offset < 0 || i >= final_norm() || offset % layer_modules != block) {
      for (int& param : module.params) param = keep(param);
      all.push_back(std::move(module));
      continue;
    }
    const TorchParam first = params[static_cast<size_t>(module.params.front())];
    const TorchParam second = params[static_cast<size_t>(module.params.back())];
    for (int64_t expert = 0; expert < count; ++expert) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = part[0] == 'd';
        const TorchParam& whole = down ? second : first;
        TorchModule one{fmt::format("{}.{}.{}", module.name, expert, part),
                        {static_cast<int>(split.size())},
                        /*product=*/true};
        split.push_back({one.name + ".weight",
                         whole.elements / static_cast<uint64_t>(down ? count : 2 * count),
                         /*vector=*/false, whole.columns, whole.trained});
        all.push_back(std::move(one));
      }
    }
  }
  params = std::move(split);
  modules = std::move(all);
  layer_modules += static_cast<int>(3 * count) - 1;
  trained_params = static_cast<size_t>(std::count_if(
      params.begin(), params.end(), [](const TorchParam& param) { return param.trained; }));
}

// What is trained comes first.
void TorchModel::SortByTrained() {
  const std::vector<ParamTensor> table = BuildParamTable(spec);
  std::vector<TorchParam> sorted;
  std::vector<int> place(params.size());
  for (const bool trained : {true, false}) {
    for (size_t i = 0; i < params.size(); ++i) {
      if (table[i].trainable != trained) continue;
      place[i] = static_cast<int>(sorted.size());
      params[i].trained = trained;
      sorted.push_back(std::move(params[i]));
    }
    if (trained) trained_params = sorted.size();
  }
  params = std::move(sorted);
  for (TorchModule& module : modules) {
    for (int& param : module.params) param = place[static_cast<size_t>(param)];
  }
}

// What has no known part in a layer goes with its first module: gathered and reduced with it.
void TorchModel::ReadPlannedCode(const PlannedCode& planned) {
  code.planned = &planned;
  code.one_qkv = planned.one_qkv;
  code.gated = true;
  int known = down_module() + 1;
  if (planned.experts > 0)
    known = up_module() + 2 + (planned.shared_ffn > 0 ? 3 + planned.shared_gate : 0);
  if (planned.post_norms) ++known;
  ZEROPLAN_CHECK(known <= layer_modules, "a layer has {} modules, {} are known", layer_modules,
                 known);
  std::vector<TorchModule> kept;
  for (int i = 0; i < static_cast<int>(modules.size()); ++i) {
    const int place = i - first_layer_module;
    const bool in_layer = place >= 0 && i < final_norm();
    if (in_layer && place % layer_modules >= known) {
      TorchModule& first = *(kept.end() - known);
      const std::vector<int>& more = modules[static_cast<size_t>(i)].params;
      first.params.insert(first.params.end(), more.begin(), more.end());
      continue;
    }
    kept.push_back(std::move(modules[static_cast<size_t>(i)]));
  }
  modules = std::move(kept);
  layer_modules = known;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    if (!planned.vision.present() || !tensor.trainable || tensor.layer >= 0) continue;
    if (tensor.name.ends_with("embed_tokens.weight")) continue;
    projector_trained = true;
    vision_trained = vision_trained || VisionTower::Owns(tensor.name);
  }
  if (!has_adapters()) SortByTrained();
  trained_params = has_adapters() ? params.size() : trained_params;
  if (planned.experts > 0 && separate_experts()) SeparateExperts();
  code.none_biased = std::none_of(modules.begin() + first_layer_module,
                                  modules.begin() + first_layer_module + layer_modules,
                                  [](const TorchModule& module) { return module.biased; });
  ZEROPLAN_CHECK(head() + 1 == static_cast<int>(modules.size()), "modules of {}", spec.name);
}

void TorchModel::ReadCode() {
  if (const PlannedCode* planned = spec.family->planned()) return ReadPlannedCode(*planned);
  const auto require = [this](bool modelled, const char* why) {
    if (modelled) return;
    ThrowUsage(
        "⟦runtime⟧: PyTorch code of the model family {} is not modelled: {}; plan it for "
        "zeroplan's "
        "own executor",
        spec.family->name(), why);
  };
  ModelSpec one_layer = BaseModel(spec);
  one_layer.layers = 1;
  TrainSetup setup;
  setup.batch.seq_len = 1;
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(one_layer));
  const Program program = BuildCompute(EmptyProgram(one_layer, tensors, setup, {}), {});
  const std::vector<Launch> layer = ForwardOf(program, 0);
  std::string parts;
  for (const Launch& launch : layer) parts += launch.part;
  code.one_qkv = parts.find('r') == std::string::npos;
  code.gated = parts.find('s') != std::string::npos;
  const std::string known =
      std::string(code.one_qkv ? "npap" : "nprap") + (code.gated ? "npsp" : "npgp");
  require(parts == known && InARow(program, layer),
          "a layer is not norm, attention, norm and MLP in a row");
  code.mean_norms = layer.front().kernel->kernel == KernelId::kLayerNormForward;
  code.learned_positions = first_layer_module == 2;
  const auto first = modules.begin() + first_layer_module;
  const auto end = first + layer_modules;
  const auto products =
      std::count_if(first, end, [](const TorchModule& module) { return module.product; });
  const auto biased =
      std::count_if(first, end, [](const TorchModule& module) { return module.biased; });
  code.all_biased = biased == products;
  code.none_biased = biased == 0;
  require(first_layer_module == 1 || code.learned_positions,
          "its embedding is not of tokens, or of tokens and positions");
  require(down_module() + 1 == layer_modules,
          code.one_qkv ? "without rotary positions, queries, keys and values are not one weight"
                       : "its weights are not one for each of queries, keys, values, gate and up");
  require(head() + 1 == static_cast<int>(modules.size()),
          "what follows its layers is not a norm and a head");
}

uint64_t TorchModel::elements() const {
  uint64_t sum = 0;
  for (const TorchParam& param : params) sum += param.elements;
  return sum;
}

uint64_t TorchModel::trained_elements() const {
  uint64_t sum = 0;
  for (const TorchParam& param : trained()) sum += param.elements;
  return sum;
}

void TorchRuntime::MakeFrozen(uint64_t bytes_of_element) {
  for (const TorchParam& param : model_.params) {
    if (param.trained) continue;
    const uint64_t bytes = param.quantized > 0 ? 2 : bytes_of_element;
    frozen_.push_back(New(TorchClass::kParams, bytes * param.elements));
  }
  MakeQuantTensors();
}

// torch/amp/grad_scaler.py, _unscale_grads_; accelerate/optimizer.py, step: get_scale.
void TorchRuntime::UnscaleGradients(double bytes, int params) const {
  timer_->Memory(2 * bytes, 1 + params / 100);
  timer_->HostWaits(TorchClock::kComputeStream);
  timer_->Host(timer_->constants().read_back);
}

void TorchRuntime::MakeQuantTensors() {
  for (const TorchParam& param : model_.params) {
    for (int i = 0; param.quantized > 0 && i < kQuantTensors; ++i) {
      frozen_.push_back(New(TorchClass::kParams, QuantTensorBytes(param.quantized, i)));
    }
  }
}

}  // namespace zeroplan
