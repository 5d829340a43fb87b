// Programs whose batches say where documents start.
#include <doctest/doctest.h>

#include <string>

#include "core/lowering/lower.h"
#include "core/program/fingerprint.h"
#include "core/program/verify.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

Program LowerBorders(const ModelSpec& model, const TrainSetup& setup, bool borders,
                     bool flash_attention = true, Backend backend = Backend::kCpu) {
  LowerOptions options;
  options.document_borders = borders;
  options.flash_attention = flash_attention;
  options.backend = backend;
  return Lower(model, setup, options);
}

// Launches of kernels that know of documents, and those of them that are told.
struct Told {
  int know = 0, told = 0;
};
Told CountTold(const Program& program) {
  Told count;
  for (const auto& section : program.sections) {
    for (const Instruction& instruction : section) {
      const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
      if (launch == nullptr) continue;
      const int index = KernelInfo(launch->kernel).starts;
      if (index < 0) continue;
      ++count.know;
      count.told +=
          index < launch->arg_count && !program.args(*launch)[static_cast<size_t>(index)].null();
    }
  }
  return count;
}

TEST_CASE("borders of documents: every kernel that knows of them is told, 4 bytes a position") {
  for (const ModelSpec& model :
       {testing::TinyModel(), testing::TinyLlama(Llama()), testing::TinyLlama(Qwen3())}) {
    for (const bool flash_attention : {true, false}) {
      for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
        for (const testing::Cell& cell : testing::SomeCells({Dtype::kBF16})) {
          CAPTURE(model.family->name());
          CAPTURE(cell.name);
          const Program plain = LowerBorders(model, cell.setup, false, flash_attention, backend);
          const Program program = LowerBorders(model, cell.setup, true, flash_attention, backend);
          CHECK_NOTHROW(VerifyOrThrow(program));
          CHECK(CountTold(plain).told == 0);
          const Told told = CountTold(program);
          CHECK(told.know > 0);
          CHECK(told.told == told.know);
          const BatchSpec& batch = cell.setup.batch;
          const auto table = static_cast<uint64_t>(batch.micro_batch * batch.seq_len * 4);
          for (BufferId Program::*tokens :
               {&Program::tokens_buffer, &Program::tokens_host_buffer}) {
            CHECK(plain.buffers[plain.*tokens].bytes == 2 * table);
            CHECK(program.buffers[program.*tokens].bytes == 3 * table);
          }
          CHECK(Fingerprint(program) != Fingerprint(plain));
        }
      }
    }
  }
}

TEST_CASE("borders of documents: a kernel that is not told, or told of something else, is found") {
  const TrainSetup setup = testing::BaseSetup(2, 2, Dtype::kBF16, 2, kNoRecompute);
  const auto finds = [&](auto&& spoil, const std::string& what) {
    for (const ModelSpec& model : {testing::TinyModel(), testing::TinyLlama(Qwen3())}) {
      Program program = LowerBorders(model, setup, true);
      int spoilt = 0;
      for (auto& section : program.sections) {
        for (Instruction& instruction : section) {
          auto* launch = std::get_if<LaunchKernel>(&instruction.op);
          if (launch == nullptr || KernelInfo(launch->kernel).starts < 0 || spoilt > 0) continue;
          spoil(program, program.refs[launch->first_arg +
                                      static_cast<uint32_t>(KernelInfo(launch->kernel).starts)]);
          ++spoilt;
        }
      }
      REQUIRE(spoilt == 1);
      std::string found;
      for (const Violation& violation : Verify(program)) found += violation.message + "\n";
      CHECK(found.find(what) != std::string::npos);
    }
  };
  finds([](Program&, Ref& starts) { starts = Ref{}; }, "crosses the borders");
  finds([](Program&, Ref& starts) { starts.offset = 0; }, "does not say where documents start");
  finds([](Program& program, Ref&) { program.document_borders = false; },
        "do not say where documents start");
}

TEST_CASE("borders of documents: as text") {
  const Program program = LowerBorders(
      testing::TinyModel(1), testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute), true);
  const std::string text = FormatSection(program, Section::kMicroStep);
  CHECK(text.find("embed_forward  tokens+0:64 params.unit[0]+0:3200 params.unit[0]+3328:640 "
                  "tokens+128:64 -> residual[0]") != std::string::npos);
  CHECK(text.find("attention_forward  qkv[0] tokens+128:64 -> attention[0] lse[0]") !=
        std::string::npos);
}

}  // namespace
}  // namespace zeroplan
