// Whole runs over documents of which some tokens do not count.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/error_of.h"
#include "tests/executor/train/train_fixture.h"
#include "text/files/token_file.h"
#include "text/sequences/packed_sequences.h"

namespace zeroplan {
namespace {

constexpr int64_t kT = 16;

class Conversations {
 public:
  Conversations() {
    std::mt19937 random(1);
    TokenFileWriter writer(path(), nullptr, TokenFileOrigin{{}, 256});
    for (int d = 0; d < 150; ++d) {
      std::vector<int32_t> tokens;
      std::vector<uint8_t> counted;
      const size_t length = 1 + random() % 24, prompt = random() % length;
      for (size_t i = 0; i < length; ++i) {
        tokens.push_back(
            static_cast<int32_t>((random() % 7 == 0 ? random() : i * 3 + length) % 256));
        counted.push_back(i > prompt);
      }
      writer.Append(tokens, counted);
      writer.EndDocument();
    }
    writer.Finish();
  }
  std::string path() const { return fixture.path("chats.bin"); }

  Program Lowered(Packing packing, int stage, int ranks, int64_t micro_batch) const {
    TrainSetup setup;
    setup.zero.stage = stage;
    setup.zero.param_persistence_threshold = 100;
    setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
    setup.batch = {micro_batch, 4 / (ranks * micro_batch), ranks, kT};
    setup.optimizer.lr = 1e-2;
    LowerOptions lower;
    lower.document_borders = packing == Packing::kDocuments;
    return Lower(LoadModel(fixture.path("config.json")), setup, lower);
  }

  TrainOptions Options(Packing packing, int64_t steps, const std::string& save) const {
    TrainOptions options = fixture.Options(path(), steps, save);
    options.packing = packing;
    options.shuffle = true;
    return options;
  }

  TrainFixture fixture;
};

TEST_CASE("a run over documents goes on where it was left, and cut otherwise comes to the same") {
  const Conversations chats;
  for (const Packing packing : {Packing::kStream, Packing::kDocuments, Packing::kOff}) {
    CAPTURE(PackingName(packing));
    const std::string name(PackingName(packing));
    Recorder whole, rest, cut, nobody;
    const Program program = chats.Lowered(packing, 0, 2, 1);
    const RunReport report = Train(program, chats.Options(packing, 30, name), whole);
    REQUIRE(report.validation_loss);
    CHECK(std::isfinite(*report.validation_loss));

    Train(program, chats.Options(packing, 13, name + "-resumed"), nobody);
    TrainOptions resume = chats.Options(packing, 30, name + "-resumed");
    resume.resume = true;
    const RunReport resumed = Train(program, resume, rest);
    REQUIRE(rest.steps.size() == 17);
    for (size_t i = 0; i < 17; ++i) {
      CHECK(rest.steps[i].state.loss_sum == whole.steps[13 + i].state.loss_sum);
    }
    CHECK(*resumed.validation_loss == *report.validation_loss);

    const RunReport other =
        Train(chats.Lowered(packing, 3, 1, 2), chats.Options(packing, 30, ""), cut);
    for (size_t i = 0; i < 30; ++i) {
      const double want = whole.steps[i].state.loss_sum;
      // A batch of nothing but the begins of long prompts has no loss, however it is cut.
      CHECK(cut.steps[i].state.skip == whole.steps[i].state.skip);
      CHECK(std::abs(cut.steps[i].state.loss_sum - want) <= 1e-3 * want);
    }
    CHECK(*other.validation_loss == doctest::Approx(*report.validation_loss).epsilon(1e-3));
    CHECK(whole.steps.back().state.loss_sum < whole.steps.front().state.loss_sum);

    // Packed otherwise the samples are others.
    resume.packing = packing == Packing::kOff ? Packing::kStream : Packing::kOff;
    resume.steps = 40;
    CHECK(ErrorOf(ExitCode::kUsage, [&] {
            Train(chats.Lowered(Packing::kOff, 0, 2, 1), resume, nobody);
          }).find("order: shuffled") != std::string::npos);
  }
}

// Its loss is over the targets that count, however its documents lie in rows: learning rate 0
// leaves the model as it is.
TEST_CASE("a validation file is packed as the data is, and its loss is the same however it is") {
  const Conversations chats;
  std::vector<double> losses;
  for (const Packing packing : {Packing::kDocuments, Packing::kOff}) {
    for (const int ranks : {1, 2}) {
      Program program = chats.Lowered(packing, 0, ranks, 4 / ranks);
      program.setup.optimizer.lr = 0;
      TrainOptions options = chats.Options(packing, 1, "");
      options.validation_data = {chats.path()};
      Recorder nobody;
      losses.push_back(Train(program, options, nobody).validation_loss.value());
    }
  }
  // The last rows, fewer than a batch, are left out: other documents of some 90 rows.
  CHECK(losses[0] == doctest::Approx(losses[2]).epsilon(2e-3));
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(1e-6));
  CHECK(losses[2] == doctest::Approx(losses[3]).epsilon(1e-6));
}

// Each step takes all of 40 conversations, in fewer rows where they are packed.
TEST_CASE("the same conversations a step have the same losses, packed and padded") {
  const TrainFixture fixture;
  std::mt19937 random(5);
  TokenFileWriter writer(fixture.path("chats.bin"), nullptr, TokenFileOrigin{{}, 256});
  for (int d = 0; d < 40; ++d) {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> counted;
    const size_t length = 2 + random() % (kT - 1), prompt = random() % (length - 1);
    for (size_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % 256));
      counted.push_back(i > prompt);
    }
    writer.Append(tokens, counted);
    writer.EndDocument();
  }
  writer.Finish();
  const std::vector<std::string> data = {fixture.path("chats.bin")};
  std::vector<Recorder> runs(2);
  std::vector<int64_t> rows;
  for (const Packing packing : {Packing::kDocuments, Packing::kOff}) {
    const TokenDataset tokens = TokenDataset::Open(data);
    const PackedSequences sequences(tokens, 0, tokens.size(), {.seq_len = kT, .packing = packing});
    rows.push_back(static_cast<int64_t>(sequences.size()));
    TrainSetup setup;
    setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
    setup.batch = {rows.back(), 1, 1, kT};
    setup.optimizer.lr = 1e-3;
    LowerOptions lower;
    lower.document_borders = packing == Packing::kDocuments;
    TrainOptions options = fixture.Options(data.front(), 8, "");
    options.packing = packing;
    options.shuffle = options.holds_back = false;
    Train(Lower(LoadModel(fixture.path("config.json")), setup, lower), options,
          runs[rows.size() - 1]);
  }
  CHECK(rows[1] == 40);
  CHECK(rows[0] < 30);
  for (size_t i = 0; i < 8; ++i) {
    const StepState &packed = runs[0].steps[i].state, &padded = runs[1].steps[i].state;
    CHECK(packed.loss_sum == doctest::Approx(padded.loss_sum).epsilon(1e-6));
  }
  CHECK(runs[0].steps.back().state.loss_sum < runs[0].steps.front().state.loss_sum);
}

}  // namespace
}  // namespace zeroplan
