// torchao's products in 8 bits: rows beside counts, tensors, gathers, runs, what is refused.
#include "planner/runtimes/torch_float8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/torch_based.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/runtimes/published_rows.h"
#include "tests/planner/runtimes/runtime_rows.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

// Of each element: what `words` move, `times`.
void AddMoves(std::string_view words, int times, std::map<std::string, int>* moves) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    (*moves)[std::string(1, word.back())] += times * std::stoi(std::string(word));
  }
}

struct CountedPass {
  std::map<std::string, int> moves;
  int launches = 0;
};

// What the rows say that a layer has beyond one of 16 bits.
CountedPass RowsMove(TorchFloat8 recipe, Float8Weights weights, bool backward) {
  CountedPass pass;
  for (const auto& [op, times] : {std::pair{TorchOp::kQkv, 1},
                                  {TorchOp::kKey, 2},
                                  {TorchOp::kOutProj, 1},
                                  {TorchOp::kUp, 1},
                                  {TorchOp::kGate, 1},
                                  {TorchOp::kDown, 1}}) {
    for (const Float8Moves& moves :
         {Float8InputMoves(recipe, op), Float8WeightMoves(recipe, weights)}) {
      AddMoves(backward ? moves.backward : moves.forward, times, &pass.moves);
      pass.launches += times * (backward ? moves.backward_launches : moves.forward_launches);
    }
  }
  return pass;
}

nlohmann::json CountedLayer(const std::string& recipe, const std::string& weights) {
  std::ifstream in(SourcePath("tests/data/runtimes/float8_counts.jsonl"));
  for (std::string line; std::getline(in, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    if (row.at("recipe") == recipe && row.at("weights") == weights) return row;
  }
  FAIL("no count of ", recipe);
  return {};
}

TEST_CASE("Float8Moves are what inductor's kernels of a layer were counted to move") {
  for (const TorchFloat8 recipe : {TorchFloat8::kTensorwise, TorchFloat8::kRowwise}) {
    for (const bool fp32 : {false, true}) {
      CAPTURE(TorchFloat8Name(recipe));
      CAPTURE(fp32);
      const std::string weights = fp32 ? "fp32" : "16 bit";
      const nlohmann::json count = CountedLayer(std::string(TorchFloat8Name(recipe)), weights);
      const nlohmann::json plain = CountedLayer("none", "16 bit");
      for (const bool backward : {false, true}) {
        const std::string pass = backward ? "backward" : "forward";
        const auto more = [&](const char* element) {
          return count[pass].value(element, 0) - plain[pass].value(element, 0);
        };
        const CountedPass rows =
            RowsMove(recipe, fp32 ? Float8Weights::kFp32 : Float8Weights::k16Bit, backward);
        const auto moves = [&](const char* element) {
          const auto found = rows.moves.find(element);
          return found == rows.moves.end() ? 0 : found->second;
        };
        // A norm and SwiGLU that make 8 bits by rows write a byte less; rows leave that out.
        const bool rowwise_forward = recipe == TorchFloat8::kRowwise && !backward;
        CHECK(moves("e") - more("e") == (rowwise_forward ? 1 : 0));
        CHECK(moves("f") - more("f") == (rowwise_forward ? 1 : 0));
        CHECK(moves("q") == more("q"));
        CHECK(moves("k") == more("k"));
        // Gradients of fp32 weights are cast with autocast's own 16-bit products too, by kernels
        // that Ddp counts. Two weights of each kind, of the MLP three.
        const int casts = fp32 && backward ? 6 : 0;
        CHECK(moves("w") / 7 == more("Wq") / 2 - casts);
        CHECK(moves("w") / 7 == more("Wk") / 2 - casts);
        // Of the last weight tensorwise finds the scale twice.
        const int again = recipe == TorchFloat8::kTensorwise && backward ? (fp32 ? 4 : 2) : 0;
        CHECK(3 * (moves("w") / 7 + casts) + again == more("Wf"));
        const int launches = count[pass + "_launches"].get<int>();
        CHECK(rows.launches + (casts > 0 && recipe == TorchFloat8::kTensorwise ? 7 : 0) ==
              launches - plain[pass + "_launches"].get<int>());
      }
      // Backward makes the inputs of products again: only what was there before them is kept.
      CHECK(count["kept"] == nlohmann::json{{"e", 4}, {"f", 4}, {"k", 4}, {"q", 4}});
    }
  }
}

TorchPlay Float8Play(int gpus, TorchFloat8 recipe = TorchFloat8::kTensorwise) {
  TorchPlay play;
  play.model = LoadModel("llama3.2-1b");
  play.setup.zero = ReaderZeroDefaults(3);
  play.setup.batch.world_size = gpus;
  play.setup.batch.micro_batch = 8;
  play.setup.batch.seq_len = 2048;
  play.setup.precision.fp8.enabled = true;
  play.recipe.float8 = recipe;
  play.recipe.compile.layers = true;
  return play;
}

TorchPlay In16Bits(TorchPlay play) {
  play.setup.precision.fp8.enabled = false;
  play.recipe.float8.reset();
  return play;
}

struct PlayedFloat8 {
  TorchFootprint footprint;
  RuntimeTime time;
  double gathered = 0;
};
PlayedFloat8 PlayedIn(const TorchPlay& play) {
  const TorchMachine machine(LoadProfile("hgx-h200"), {play.setup.batch.world_size, 8});
  TorchTimer timer(&machine, {});
  PlayedFloat8 played;
  played.footprint = Fsdp2Footprint(play, &timer);
  played.time = *timer.Time(1);
  played.gathered = timer.full_bytes(RankGroups::kShard);
  return played;
}

TEST_CASE("FSDP2 in 8 bits keeps no inputs of products, and is faster; by rows less so") {
  const TorchPlay play = Float8Play(2);
  const PlayedFloat8 tensor = PlayedIn(play), plain = PlayedIn(In16Bits(play)),
                     rows = PlayedIn(Float8Play(2, TorchFloat8::kRowwise));
  const double tokens = 8 * 2048;
  // 4 bytes of a hidden column and 2 of the MLP, which is four times as wide.
  const double kept = 16 * tokens * (4 + 2 * 4) * 2048;
  const double less = static_cast<double>(plain.footprint.StepAllocatedBytes()) -
                      static_cast<double>(tensor.footprint.StepAllocatedBytes());
  CHECK(less == doctest::Approx(kept).epsilon(0.03));
  CHECK(rows.footprint.StepAllocatedBytes() == tensor.footprint.StepAllocatedBytes());
  CHECK(tensor.time.step_seconds < rows.time.step_seconds);
  CHECK(rows.time.step_seconds < plain.time.step_seconds);
  CHECK(tensor.gathered == plain.gathered);
}

TEST_CASE("FSDP2 gathers the weights of products in a byte, where there are several to a shard") {
  const PlayedFloat8 wide = PlayedIn(Float8Play(2)),
                     narrow = PlayedIn(Float8Play(2, TorchFloat8::kTensorwiseGathers));
  // Gathered forward and backward; the last layer is not gathered twice, but counted so.
  const ModelSpec& model = Float8Play(2).model;
  const double products =
      static_cast<double>(model.layers * (2 * model.hidden * model.hidden + 2 * model.hidden * 512 +
                                          3 * model.hidden * model.ffn));
  CHECK(wide.gathered - narrow.gathered == doctest::Approx(2 * products).epsilon(1e-3));
  CHECK(narrow.footprint.StepAllocatedBytes() < wide.footprint.StepAllocatedBytes());
  const TorchPlay one = Float8Play(1, TorchFloat8::kTensorwiseGathers);
  CHECK(Fsdp2Footprint(one).StepAllocatedBytes() ==
        Fsdp2Footprint(Float8Play(1)).StepAllocatedBytes());
}

TEST_CASE("Linears with a side that 16 does not divide stay in 16 bits, and so does the head") {
  TorchPlay play = Float8Play(1);
  TorchModel model(play.model);
  const TorchRun run = TorchRunOf(play.setup, play.recipe);
  CHECK(IsFloat8(model, run, model.first_layer_module + model.down_module()));
  CHECK(!IsFloat8(model, run, model.first_layer_module));
  CHECK(!IsFloat8(model, run, model.head()));
  CHECK(!IsFloat8(model, TorchRunOf(In16Bits(play).setup, play.recipe),
                  model.first_layer_module + model.down_module()));
  CHECK(!run.TakesFloat8(2048, 8200));
  CHECK(run.TakesFloat8(2048, 8208));
}

TEST_CASE("What of products in 8 bits no program has, or is not modelled, is refused by name") {
  const auto error = [](const Runtime& runtime, TorchPlay play) {
    if (runtime.key() == "ddp") play.setup.zero = ReaderZeroDefaults(0);
    return ErrorOf(ExitCode::kUsage, [&] { dynamic_cast<const TorchBased&>(runtime).Play(play); });
  };
  TorchPlay play = Float8Play(2);
  CHECK(Has(error(DeepSpeedRuntime(), play), wording::kItHasNoTrainingIn));
  play.recipe.compile.layers = false;
  CHECK(Has(error(Fsdp2Runtime(), play), wording::kGiveLayersOrAll));
  play = Float8Play(2);
  play.recipe.code = CodeStyle::kLiger;
  CHECK(Has(error(Fsdp2Runtime(), play), wording::kNotModelledWithLiger));
  play = Float8Play(2);
  play.setup.batch.seq_len = 2047;
  play.setup.batch.micro_batch = 1;
  CHECK(Has(error(Fsdp2Runtime(), play), wording::kTokensAreNoMultipleOf));
  play = Float8Play(2);
  play.model = LoadModel("gpt2");
  CHECK(Has(error(Fsdp2Runtime(), play), wording::kLayersWithSwigluAndRotary));
  play = Float8Play(2, TorchFloat8::kTensorwiseGathers);
  CHECK(Has(error(DdpRuntime(), play), wording::kFsdpAloneGathersInBits));
  play.setup.precision.fp8.enabled = false;
  CHECK(Has(error(Fsdp2Runtime(), play), wording::kHasNoEffectWithoutFp));

  AskedOfRuntime asked;
  asked.matmul_dtype = "fp8";
  CHECK_NOTHROW(Fsdp2Runtime().Refuse(asked));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { DeepSpeedRuntime().Refuse(asked); }),
            wording::kGiveFsdpOrDdpTorchao));
  asked.own_fp8 = "fp8_recipe";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Fsdp2Runtime().Refuse(asked); }),
            wording::kIsOfZeroplanOwnProducts));
}

// By how much runs took more than predicted, as docs/runtimes.md has it: per cents of the
// prediction.
struct Float8Errors {
  double time, memory;  // memory 0: not published
};

TEST_CASE("Runs with torchao's float8 are as far off as docs/runtimes.md says") {
  const std::map<std::string, Float8Errors> documented = {
      {"llama3.2-1b-bf16", {-3.4, 11.7}},
      {"llama3.2-1b-tensorwise", {3.3, 12.3}},
      {"llama3.2-1b-rowwise", {16.4, 0}},
      {"llama3.2-3b-bf16", {-5.3, 1.3}},
      {"llama3.2-3b-tensorwise", {-0.2, 1.5}},
      {"torchtitan-8b-8xH100-bf16", {15.3, -0.5}},
      {"torchtitan-8b-8xH100-tensorwise-gathers", {18.5, 0}},
      {"torchtitan-8b-128xH100-bf16", {16.1, -0.6}},
      {"torchtitan-8b-128xH100-tensorwise-gathers", {19.3, -0.3}},
      {"torchtitan-8b-32xH200-tensorwise-gathers", {26.3, 0}},
      {"torchtitan-8b-64xH200-tensorwise-gathers", {26.2, 0}},
      {"torchao-8b-8xH100-bf16", {9.6, -3.5}},
      {"torchao-8b-8xH100-tensorwise-gathers", {19.8, -1.2}},
      {"torchao-8b-8xH100-rowwise", {23.3, -2.6}},
      {"thunder-llama2-7b-8xH100-tensorwise-gathers", {8.8, 0}}};
  double worst = 0;
  for (const PublishedRow& row : LoadPublishedRuns("tests/data/runtimes/float8_runs.jsonl")) {
    CAPTURE(row.id);
    std::string why;
    const std::optional<ChoiceEstimate> choice = Predict(row, &why);
    REQUIRE_MESSAGE(choice.has_value(), why);
    CHECK(choice->fits);
    const double time = 100 * ShareOff(*choice->time.total_seconds, *row.step_seconds);
    if (choice->setup.precision.fp8.enabled) worst = std::max(worst, std::abs(time) / 100);
    const TorchFootprint& torch = *choice->footprint.torch;
    const double memory =
        row.reserved_gib ? 100 * ShareOff(Gib(torch.ReservedBytes()), *row.reserved_gib)
        : row.device_gib ? 100 * ShareOff(Gib(torch.DeviceBytes()), *row.device_gib)
                         : 0;
    const auto found = documented.find(row.id);
    CAPTURE(time);
    CAPTURE(memory);
    CHECK(found != documented.end());
    if (found == documented.end()) continue;
    CHECK(std::abs(time - found->second.time) < 0.6);
    CHECK(std::abs(memory - found->second.memory) < 0.6);
  }
  CHECK(worst == doctest::Approx(kFloat8TimeWorst).epsilon(0.01));
}

}  // namespace
}  // namespace zeroplan
