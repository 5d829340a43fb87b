// What generation's plan holds for the keys and values of tokens: so many bytes, all the time, and
// nothing where they are not kept. By hand.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/program/replay.h"
#include "core/program/verify.h"

namespace zeroplan {
namespace {

Program Generator(const ModelSpec& model, bool keep, Dtype dtype = Dtype::kF32,
                  Backend backend = Backend::kCpu) {
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
  setup.batch = {1, 1, 1, 48};
  LowerOptions options;
  options.purpose = Purpose::kGenerate;
  options.keep_keys_values = keep;
  options.backend = backend;
  Program program = Lower(model, setup, options);
  VerifyOrThrow(program);
  return program;
}

ModelSpec GroupedModel() {
  ModelSpec model = LoadModel("llama3.2-1b");
  model.layers = 3;
  model.hidden = 64;
  model.ffn = 96;
  model.heads = 8;
  model.kv_heads = 2;
  model.head_size = 8;
  model.vocab = model.padded_vocab = 128;
  model.positions = 64;
  return model;
}

TEST_CASE("key-value cache: 2*G*D elements a token and layer, in the plan from init on") {
  const Program kept = Generator(GroupedModel(), true), plain = Generator(GroupedModel(), false);
  uint64_t bytes = 0;
  int caches = 0;
  for (const Buffer& buffer : kept.buffers) {
    if (buffer.role != Role::kKeysValues) continue;
    CHECK(buffer.persistent);
    CHECK(buffer.layer == caches);
    bytes += buffer.bytes;
    ++caches;
  }
  CHECK(caches == 3);
  CHECK(bytes == 3 * 48 * 2 * 2 * 8 * 4);  // layers, tokens, keys and values, heads, size, fp32
  const auto device = static_cast<size_t>(Space::kDevice);
  // Beside it a token takes no more than a prompt does.
  CHECK(kept.arena_bytes[device] == plain.arena_bytes[device] + bytes);
  CHECK(plain.section(Section::kDecode).empty());
  CHECK(std::none_of(plain.buffers.begin(), plain.buffers.end(),
                     [](const Buffer& b) { return b.role == Role::kKeysValues; }));
}

TEST_CASE("generation in 16 bit: 2 bytes a parameter and kept element, no masters, fp32 logits") {
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    const Program program = Generator(GroupedModel(), true, Dtype::kBF16, backend);
    uint64_t parameters = 0, params = 0, cache = 0;
    for (const Unit& unit : program.layout.units) parameters += unit.padded_elements;
    for (const Buffer& buffer : program.buffers) {
      CHECK(buffer.role != Role::kOptimizerState);
      if (buffer.role == Role::kParamFull) params += buffer.bytes;
      if (buffer.role == Role::kKeysValues) cache += buffer.bytes;
    }
    CHECK(params == 2 * parameters);
    CHECK(cache == 3 * 48 * 2 * 2 * 8 * 2);
    const Buffer& logits = program.buffers[program.logits_host_buffer];
    CHECK(logits.dtype == Dtype::kF32);
    CHECK(logits.bytes == 4 * 128);
    // Loading rounds every element once.
    uint64_t loaded = 0, converted = 0;
    for (const Instruction& instruction : program.section(Section::kLoad)) {
      if (const auto* io = std::get_if<FileIo>(&instruction.op)) loaded += io->count;
      const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
      if (launch != nullptr && launch->kernel == KernelId::kConvert) {
        converted += static_cast<uint64_t>(launch->dims[0]);
      }
    }
    CHECK(loaded == parameters);
    CHECK(converted == parameters);
  }
}

TEST_CASE("key-value cache: a token on a GPU is one graph, which plans count") {
  const Program program = Generator(GroupedModel(), true, Dtype::kBF16, Backend::kCuda);
  CHECK(!FindReplayObstacle(program, Section::kDecode));
  const ReplayCount count = CountReplayed(program);
  CHECK(count.graphs == 1);
  int64_t nodes = 0;
  for (const Instruction& instruction : program.section(Section::kDecode)) {
    nodes += std::holds_alternative<LaunchKernel>(instruction.op) ||
             std::holds_alternative<Copy>(instruction.op);
  }
  CHECK(count.nodes == nodes);
  CHECK(CountReplayed(Generator(GroupedModel(), false)).graphs == 0);
}

TEST_CASE("key-value cache: a token's products have one row") {
  const Program program = Generator(GroupedModel(), true);
  int products = 0, attentions = 0;
  for (const Instruction& instruction : program.section(Section::kDecode)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr) continue;
    if (launch->kernel == KernelId::kMatmulForward) {
      CHECK(launch->dims[0] == 1);
      ++products;
    }
    attentions += launch->kernel == KernelId::kAttendToken ? 1 : 0;
    CHECK(launch->kernel != KernelId::kAttentionForward);
  }
  CHECK(products == 3 * 4 + 1);
  CHECK(attentions == 3);
}

}  // namespace
}  // namespace zeroplan
