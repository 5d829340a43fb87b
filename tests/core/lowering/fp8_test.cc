// Programs whose layers' products take eight bits: what is quantized when, and what is kept.
#include "core/base/fp8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "tests/core/lowering/fp8_programs.h"
#include "tests/core/model/with_lora.h"

namespace zeroplan {
namespace {

using testing::BothModels;
using testing::CheckSound;
using testing::CountIf;
using testing::Forward;
using testing::Fp8Setup;
using testing::In8;
using testing::kBothRecipes;
using testing::kPlainCopy;
using testing::kQuantizedFrom;
using testing::kTransposedCopy;
using testing::Launches;
using testing::OfWeight;
using testing::Seen;
using testing::WithFp8;

TEST_CASE("fp8: every pass leaves a sound program at every stage, offload and recompute") {
  LowerOptions options;
  options.logits_chunk_bytes = 400;
  options.checkpoint_chunk_elements = 700;
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    options.backend = backend;
    options.flash_attention = backend == Backend::kCuda;
    const bool cuda = backend == Backend::kCuda;
    const std::vector<testing::Cell> cells =
        testing::AllCells({2}, {cuda ? Dtype::kBF16 : Dtype::kF32}, {1, 3});
    CheckSound(testing::Fp8Gpt2(Fp8Recipe::kTensor), In8(cells, Fp8Recipe::kTensor, Dtype::kE5M2),
               options);
    CheckSound(testing::Fp8Llama(Fp8Recipe::kBlocks), In8(cells, Fp8Recipe::kBlocks, Dtype::kE4M3),
               options);
    const std::vector<testing::Cell> some = testing::SomeCells({Dtype::kF16});
    CheckSound(testing::Fp8Llama(Fp8Recipe::kTensor), In8(some, Fp8Recipe::kTensor, Dtype::kE4M3),
               options);
    CheckSound(testing::Fp8Gpt2(Fp8Recipe::kBlocks), In8(some, Fp8Recipe::kBlocks, Dtype::kE5M2),
               options);
  }
}

TEST_CASE("fp8: every pass leaves a sound program with adapters, frozen layers and documents") {
  LowerOptions options;
  for (const bool borders : {false, true}) {
    options.document_borders = borders;
    options.backend = borders ? Backend::kCuda : Backend::kCpu;
    for (const Fp8Recipe recipe : kBothRecipes) {
      const std::vector<testing::Cell> cells =
          In8(testing::SomeCells({Dtype::kBF16}), recipe, Dtype::kE4M3);
      for (const ModelSpec& model : BothModels(recipe)) {
        CheckSound(testing::WithDropout(testing::WithLora(model, "all-linear")), cells, options);
        CheckSound(testing::WithQlora(model, "all-linear"), cells, options);
      }
      ModelSpec frozen = testing::Fp8Gpt2(recipe, 3);
      frozen.frozen =
          "transformer.wte.*,transformer.wpe.*,transformer.h.0.*,transformer.h.1.attn.*";
      CheckSound(frozen, cells, options);
    }
  }
}

// ---- what is in them ----

// Labels of the activations that live when the backward pass begins, and how often.
std::map<std::string, int> KeptForBackward(const Program& program, uint64_t* bytes = nullptr) {
  std::map<std::string, int> kept;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (instruction.phase == Phase::kBackward) break;
    const auto count = [&](BufferId id, int by) {
      const Buffer& buffer = program.buffers[id];
      if (buffer.memory_class != MemoryClass::kActivations) return;
      if ((kept[buffer.label] += by) == 0) kept.erase(buffer.label);
      if (bytes != nullptr) *bytes += buffer.bytes * static_cast<uint64_t>(by);
    };
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) count(alloc->buffer, 1);
    if (const auto* free = std::get_if<Free>(&instruction.op)) count(free->buffer, -1);
  }
  return kept;
}

uint64_t BytesKeptByALayer(Fp8Recipe recipe, RecomputeConfig recompute) {
  uint64_t bytes[2] = {};
  for (const int64_t layers : {2, 3}) {
    ModelSpec model = LoadModel("gpt2");
    model.layers = layers;
    TrainSetup setup;
    setup.batch = {4, 1, 1, 1024};
    setup.recompute = recompute;
    setup.precision.fp8 = {.enabled = true, .recipe = recipe};
    KeptForBackward(Lower(model, setup, {.backend = Backend::kCuda}), &bytes[layers - 2]);
  }
  return bytes[1] - bytes[0];
}

TEST_CASE("fp8: a linear keeps the transposed copy of its input, not the input") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    const auto labels =
        KeptForBackward(Lower(testing::Fp8Gpt2(recipe, 3), Fp8Setup(recipe, kNoRecompute)));
    CHECK(labels.at("xt_fp8") == 4 * 3);
    for (const char* freed : {"ln1", "ln2", "gelu", "x_fp8", "w_fp8"}) {
      CAPTURE(freed);
      CHECK_FALSE(labels.contains(freed));
    }
    const auto of_llama =
        KeptForBackward(Lower(testing::Fp8Llama(recipe, 3), Fp8Setup(recipe, kNoRecompute)));
    CHECK(of_llama.at("xt_fp8") == 4 * 3);
    CHECK_FALSE(of_llama.contains("swiglu"));
    CHECK(of_llama.contains("rstd"));
  }
}

TEST_CASE("fp8: a layer keeps 10 times M*h elements of 16 bits and 7 of eight") {
  // gpt2's layers: hidden 768, 12 heads; 4 sequences of 1024 tokens. Of 16 times M*h the norms'
  // outputs, attention's and GELU's are the products' inputs; attention's stays for its backward.
  constexpr uint64_t kElements = uint64_t{4} * 1024 * 768, kLse = 4 * 4 * 1024 * 12;
  constexpr uint64_t kStats = uint64_t{4} * 4 * 4 * 1024;
  CHECK(BytesKeptByALayer(Fp8Recipe::kTensor, kNoRecompute) ==
        (2 * 10 + 7) * kElements + kLse + kStats);
  // A scale of four bytes for 128 elements.
  CHECK(BytesKeptByALayer(Fp8Recipe::kBlocks, kNoRecompute) ==
        (2 * 10 + 7) * kElements + 7 * kElements / 32 + kLse + kStats);
  // What is made again is quantized again, attention's output too.
  for (const Fp8Recipe recipe : kBothRecipes) {
    CHECK(BytesKeptByALayer(recipe, kSelectiveRecompute) == 2 * 10 * kElements + kLse);
    CHECK(BytesKeptByALayer(recipe, FullRecompute()) == 2 * kElements);
  }
}

TEST_CASE("fp8: the layers' products take eight bits, head and embedding do not") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const ModelSpec& model : BothModels(recipe)) {
      const Program program = Lower(model, Fp8Setup(recipe, kNoRecompute));
      const int linears = 4 * static_cast<int>(model.layers);
      CHECK(Launches(program, KernelId::kFp8Matmul).size() == static_cast<size_t>(3 * linears));
      CHECK(Launches(program, Section::kEval, KernelId::kFp8Matmul).size() ==
            static_cast<size_t>(linears));
      for (const KernelId kernel : {KernelId::kMatmulForward, KernelId::kMatmulBackwardData,
                                    KernelId::kMatmulBackwardWeight}) {
        for (const Seen& head : Launches(program, kernel)) {
          CHECK(head.instruction.layer >= model.layers);
        }
        CHECK(Launches(program, kernel).size() >= 1);
      }
      for (const Seen& product : Launches(program, KernelId::kFp8Matmul)) {
        CHECK(product.instruction.layer >= 0);
        CHECK(product.instruction.layer < model.layers);
        const bool weights = product.label(2) == "w_fp8";
        const int64_t rows = recipe == Fp8Recipe::kTensor ? 0 : 1;
        CHECK(product.launch.dims[3] == rows);
        CHECK(product.launch.dims[4] == (weights ? 128 * rows : rows));
        CHECK(DtypeBytes(product.Of(6).dtype) == 2);
      }
    }
  }
}

TEST_CASE("fp8: sums are fast by one scale, for gradients where the config says so") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const bool fast : {false, true}) {
      TrainSetup setup = Fp8Setup(recipe, FullRecompute());
      setup.precision.fp8.fast_gradients = fast;
      const Program program = Lower(testing::Fp8Gpt2(recipe), setup);
      for (const Seen& product : Launches(program, KernelId::kFp8Matmul)) {
        const bool again = !Forward(product) && product.label(0) == "x_fp8";
        const bool may = recipe == Fp8Recipe::kTensor && (fast || again || Forward(product));
        CHECK(product.launch.dims[5] == (may ? 1 : 0));
      }
    }
  }
}

TEST_CASE("fp8: gradients take the dtype that the config names, all else E4M3") {
  for (const Dtype gradients : {Dtype::kE4M3, Dtype::kE5M2}) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      TrainSetup setup = Fp8Setup(Fp8Recipe::kTensor, recompute);
      setup.precision.fp8.gradients = gradients;
      const Program program = Lower(testing::Fp8Llama(Fp8Recipe::kTensor), setup);
      int of_gradients = 0;
      for (const Seen& quantize : Launches(program, KernelId::kQuantize)) {
        for (const size_t copy : {kTransposedCopy, kPlainCopy}) {
          if (quantize.Arg(copy).null()) continue;
          const bool gradient = quantize.label(copy).starts_with("dy");
          of_gradients += gradient ? 1 : 0;
          CHECK(quantize.Of(copy).dtype == (gradient ? gradients : Dtype::kE4M3));
          // Half of what it is a copy of.
          CHECK(2 * quantize.Of(copy).bytes == quantize.Arg(kQuantizedFrom).bytes);
        }
      }
      CHECK(of_gradients == 2 * 4 * 2);
    }
  }
}

TEST_CASE("fp8: a magnitude has a kernel of its own only where its maker takes none along") {
  for (const ModelSpec& model : BothModels(Fp8Recipe::kTensor)) {
    const Program program = Lower(model, Fp8Setup(Fp8Recipe::kTensor, kNoRecompute));
    const auto layers = static_cast<int>(model.layers);
    const auto found = Launches(program, KernelId::kLargestMagnitude);
    // Of weights, attention's output, and the gradient of query, key and value.
    CHECK(CountIf(found, OfWeight) == 4 * layers);
    CHECK(found.size() == static_cast<size_t>(6 * layers));
    const auto rest = Launches(Lower(model, Fp8Setup(Fp8Recipe::kBlocks, kNoRecompute)),
                               KernelId::kLargestMagnitude);
    CHECK(rest.empty());
    std::map<std::string, int> labels;
    for (const Seen& one : found) {
      if (!OfWeight(one)) ++labels[one.label(0)];
    }
    CAPTURE(labels.begin()->first);
    CHECK(labels.size() == 2);
    for (const auto& [label, count] : labels) CHECK(count == layers);
    // Nobody else makes what is quantized without taking it along.
    int along = 0;
    for (int k = 0; k < kKernelCount; ++k) {
      const Magnitude& magnitude = KernelInfo(static_cast<KernelId>(k)).magnitude;
      if (magnitude.of < 0) continue;
      for (const Seen& maker : Launches(program, static_cast<KernelId>(k))) {
        along += maker.Arg(static_cast<size_t>(magnitude.argument)).null() ? 0 : 1;
      }
    }
    CHECK(along == 6 * layers);
  }
}

TEST_CASE("fp8: every product's scales are those of its copies, and magnitudes are found before") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const RecomputeConfig& recompute :
         {kNoRecompute, kSelectiveRecompute, FullRecompute(), FullRecompute(2)}) {
      for (const ModelSpec& model : BothModels(recipe)) {
        const Program program = Lower(model, Fp8Setup(recipe, recompute));
        for (const Section section : {Section::kMicroStep, Section::kEval}) {
          using Place = std::pair<BufferId, uint64_t>;
          std::map<BufferId, Place> scale_of;  // by copy
          std::map<Place, BufferId> raised;    // by amax: the buffer whose magnitude it is
          for (const Instruction& instruction : program.section(section)) {
            const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
            if (launch == nullptr) continue;
            const Seen seen{instruction, *launch, program};
            const auto place = [&](size_t i) {
              return Place{seen.Arg(i).buffer, seen.Arg(i).offset};
            };
            const Magnitude& magnitude = KernelInfo(launch->kernel).magnitude;
            if (launch->kernel == KernelId::kLargestMagnitude) raised[place(1)] = place(0).first;
            if (magnitude.of >= 0 && !seen.Arg(static_cast<size_t>(magnitude.argument)).null()) {
              raised[place(static_cast<size_t>(magnitude.argument))] =
                  place(static_cast<size_t>(magnitude.of)).first;
            }
            if (launch->kernel == KernelId::kQuantize) {
              if (recipe == Fp8Recipe::kTensor) {
                // A weight's is found in the forward pass, of others' copies the buffers differ.
                REQUIRE(raised.contains(place(1)));
                const Buffer& of = program.buffers[raised[place(1)]];
                CHECK(std::string(of.label) == seen.label(kQuantizedFrom));
                CHECK(of.layer == seen.Of(kQuantizedFrom).layer);
              }
              const size_t shared = seen.Arg(5).null() ? 3 : 5;
              if (!seen.Arg(2).null()) scale_of[place(2).first] = place(3);
              if (!seen.Arg(4).null()) scale_of[place(4).first] = place(shared);
              CHECK((!seen.Arg(2).null() || !seen.Arg(4).null()));
            }
            if (launch->kernel == KernelId::kFp8Matmul) {
              CHECK(scale_of.at(place(0).first) == place(1));
              CHECK(scale_of.at(place(2).first) == place(3));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("fp8: magnitudes begin at zero; those of weights are found once a step") {
  for (const int64_t accumulation : {1, 3}) {
    const Program program = Lower(testing::Fp8Gpt2(Fp8Recipe::kTensor),
                                  Fp8Setup(Fp8Recipe::kTensor, kNoRecompute, accumulation));
    for (const Section section : {Section::kMicroStep, Section::kEval}) {
      const bool trains = section == Section::kMicroStep;
      int fills = 0;
      std::vector<bool> filled(program.buffers.size(), false);
      for (const Seen& fill : Launches(program, section, KernelId::kFill)) {
        if (fill.Of(0).role != Role::kScales) continue;
        ++fills;
        CHECK(fill.Arg(0).bytes == fill.Of(0).bytes);
        CHECK(fill.instruction.when == (trains && fill.Of(0).persistent ? kWritesGrads : kEvery));
        // A slot for each of a layer's twelve parameters, as units have them; of its activations
        // four inputs and four gradients.
        const uint64_t slots = fill.Of(0).persistent ? 12 * 2 : trains ? 8 * 2 : 4 * 2;
        CHECK(fill.Of(0).bytes == slots * kFp8SlotBytes);
      }
      CHECK(fills == 2);
      for (const Seen& one : Launches(program, section, KernelId::kLargestMagnitude)) {
        CHECK(one.instruction.when == (trains && OfWeight(one) ? kWritesGrads : kEvery));
        CHECK(one.Of(1).persistent == OfWeight(one));
        CHECK(Forward(one) == (OfWeight(one) || one.label(0) == "attention"));
      }
    }
  }
}

TEST_CASE("fp8: weights that are not trained have no transposed copies of activations") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const ModelSpec& plain : BothModels(recipe)) {
      const ModelSpec model = testing::WithLora(plain, "all-linear");
      for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute}) {
        const Program program = Lower(model, Fp8Setup(recipe, recompute));
        const auto quantized = Launches(program, KernelId::kQuantize);
        for (const Seen& quantize : quantized) {
          if (!OfWeight(quantize)) CHECK(quantize.Arg(kTransposedCopy).null());
        }
        const auto linears = static_cast<size_t>(4 * model.layers);
        // The first product of all gives no gradient to its input.
        CHECK(Launches(program, KernelId::kFp8Matmul).size() == 2 * linears - 1);
        CHECK(quantized.size() == 2 * (2 * linears - 1));
        CHECK(KeptForBackward(program).count("xt_fp8") == 0);
      }
    }
  }
}

TEST_CASE("fp8: NF4 stays as it is") {
  const ModelSpec model = testing::WithQlora(testing::Fp8Gpt2(Fp8Recipe::kTensor), "all-linear");
  const Program program = Lower(model, Fp8Setup(Fp8Recipe::kTensor, kNoRecompute));
  CHECK(Launches(program, KernelId::kFp8Matmul).empty());
  CHECK(Launches(program, KernelId::kQuantize).empty());
}

TEST_CASE("fp8: selective recompute quantizes again, and only the transposed copy") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const ModelSpec& model : BothModels(recipe)) {
      const Program program = Lower(model, Fp8Setup(recipe, kSelectiveRecompute));
      const auto linears = static_cast<int>(4 * model.layers);
      CHECK(KeptForBackward(program).count("xt_fp8") == 0);
      int again = 0, forward = 0;
      for (const Seen& quantize : Launches(program, KernelId::kQuantize)) {
        if (OfWeight(quantize)) continue;
        if (Forward(quantize)) {
          ++forward;
          CHECK(quantize.Arg(kTransposedCopy).null());
        } else if (quantize.label(kTransposedCopy) == "xt_fp8") {
          ++again;
          CHECK(quantize.Arg(kPlainCopy).null());
        }
      }
      CHECK(forward == linears);
      CHECK(again == linears);
      // No magnitude is looked for again.
      CHECK(Launches(program, KernelId::kLargestMagnitude).size() ==
            static_cast<size_t>(recipe == Fp8Recipe::kTensor ? 6 * model.layers : 0));
    }
  }
}

TEST_CASE("fp8: full recompute quantizes what is read, and looks for no magnitude again") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const ModelSpec& model : BothModels(recipe)) {
      const Program program = Lower(model, Fp8Setup(recipe, FullRecompute()));
      const auto layers = static_cast<int>(model.layers);
      const auto quantized = Launches(program, KernelId::kQuantize);
      for (const Seen& quantize : quantized) {
        if (OfWeight(quantize)) continue;
        if (Forward(quantize)) CHECK(quantize.Arg(kTransposedCopy).null());
      }
      // The last product of a layer is not repeated: neither its weight nor the plain copy of its
      // input is made for it.
      CHECK(CountIf(quantized, [](const Seen& s) { return OfWeight(s) && Forward(s); }) ==
            4 * layers);
      CHECK(CountIf(quantized, [](const Seen& s) { return OfWeight(s) && !Forward(s); }) ==
            (3 + 4) * layers);
      const auto repeated = [](const Seen& s) {
        return !OfWeight(s) && !Forward(s) && !s.Arg(kTransposedCopy).null() &&
               s.label(kTransposedCopy) == "xt_fp8";
      };
      CHECK(CountIf(quantized, repeated) == 4 * layers);
      CHECK(CountIf(quantized, [&](const Seen& s) {
              return repeated(s) && !s.Arg(kPlainCopy).null();
            }) == 3 * layers);
      CHECK(Launches(program, KernelId::kFp8Matmul).size() ==
            static_cast<size_t>((3 * 4 + 3) * layers));
      CHECK(CountIf(Launches(program, KernelId::kLargestMagnitude),
                    [](const Seen& s) { return !Forward(s) && s.label(0) == "attention"; }) == 0);
    }
  }
}

// ---- what stays in 16 bits ----

std::vector<std::string> Instructions(const Program& program, Section section) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : program.section(section)) {
    lines.push_back(FormatInstruction(program, instruction));
  }
  return lines;
}

TEST_CASE("fp8: a model none of whose sides fit has the program of 16 bits") {
  for (const Fp8Recipe recipe : kBothRecipes) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      TrainSetup setup = testing::BaseSetup(3, 2, Dtype::kBF16, 3, recompute);
      const Program wide = Lower(testing::TinyModel(), setup);
      setup.precision.fp8 = {.enabled = true, .recipe = recipe};
      const Program program = Lower(testing::TinyModel(), setup);
      for (int s = 0; s < kSections; ++s) {
        CHECK(Instructions(program, static_cast<Section>(s)) ==
              Instructions(wide, static_cast<Section>(s)));
      }
      CHECK(program.arena_bytes == wide.arena_bytes);
    }
  }
}

TEST_CASE("fp8: products whose sides or rows do not fit, or are small, stay in 16 bits") {
  const auto count = [](ModelSpec model, TrainSetup setup) {
    const Program program = Lower(model, setup);
    CHECK_NOTHROW(VerifyOrThrow(program));
    return Launches(program, KernelId::kFp8Matmul).size();
  };
  const TrainSetup setup = Fp8Setup(Fp8Recipe::kTensor, kNoRecompute);
  ModelSpec model = testing::Fp8Gpt2(Fp8Recipe::kTensor, 1);
  CHECK(count(model, setup) == 12);
  ModelSpec odd = model;
  odd.ffn = 52;
  CHECK(count(odd, setup) == 6);
  TrainSetup short_rows = setup;
  short_rows.batch.micro_batch = 1;  // 8 rows
  CHECK(count(model, short_rows) == 0);
  TrainSetup larger = setup;
  larger.precision.fp8.least_side = model.hidden;
  CHECK(count(model, larger) == 12);
  larger.precision.fp8.least_side = model.hidden + 1;
  CHECK(count(model, larger) == 0);
  // Blocks want whole ones.
  CHECK(count(model, WithFp8(setup, Fp8Recipe::kBlocks)) == 0);
}

}  // namespace
}  // namespace zeroplan
