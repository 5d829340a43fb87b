#include "planner/page/choice_pictures.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/explain/explain.h"
#include "tests/planner/page/page_reading.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

// Every stage of a small model on two GPUs, the last two of which do not fit.
struct ChoiceFixture {
  ChoiceFixture() : costs(hardware, ClusterShape{2, 2}) {
    inputs.model = SmallModel();
    inputs.cluster = SmallPlan().cluster;
    TrainSetup base;
    base.batch = {.micro_batch = 2, .grad_accum = 1, .world_size = 2, .seq_len = 32};
    inputs.setups = EnumerateSetups(base, ChoiceSpace{});
    inputs.lower.backend = Backend::kCuda;
    inputs.costs = &costs;
    estimate = EstimateChoices(inputs);
    for (size_t i = 0; i < estimate.choices.size(); ++i) {
      ChoiceEstimate& choice = estimate.choices[i];
      choice.fits = i + 2 < estimate.choices.size();
      if (!choice.fits) choice.why_not = "GPU memory short";
      shown.push_back({SetupLabel(choice.setup), &choice, i == 1});
    }
  }

  HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  CostModel costs;
  EstimateInputs inputs;
  Estimate estimate;
  std::vector<ShownChoice> shown;
};

TEST_CASE("bars of memory add up to what the choices take, and each has its row") {
  const ChoiceFixture fixture;
  const Picture picture = GpuMemoryPicture(fixture.shown, fixture.inputs.cluster);
  for (const std::string* svg : {&picture.wide, &picture.narrow}) {
    const std::map<int, double> sums = BarSums(*svg);
    REQUIRE(sums.size() == fixture.shown.size());
    for (const auto& [bar, sum] : sums) {
      CHECK(sum == static_cast<double>(
                       fixture.estimate.choices[static_cast<size_t>(bar)].footprint.gpu_total()));
    }
    CHECK(Count(*svg, "may be taken") == 1);  // the capacity line's label
    CHECK(Count(*svg, "fit)</text>") == 2);
  }
  REQUIRE(picture.table.rows.size() == fixture.shown.size());
  for (const auto& row : picture.table.rows) CHECK(row.size() == picture.table.heads.size());
  CHECK(picture.table.marked == std::vector<size_t>{1});
  CHECK(picture.table.rows.back().back() == "no");
  CHECK(picture.table.note.find("GPU memory short") != std::string::npos);
  CHECK(picture.legend.size() == kGpuClasses);
}

TEST_CASE("pictures of data: every document in a bar, what is too long by itself") {
  RunGoal goal{.tokens = 64 * 20};
  goal.data.emplace();
  DataFacts& facts = *goal.data;
  facts.lengths = DocumentLengths({{3, 4}, {16, 2}, {17, 5}, {65, 2}, {66, 1}, {300, 3}});
  facts.seq_len = 64;
  facts.packing = Packing::kDocuments;
  facts.epoch = {12, 600};
  facts.packed = facts.epoch;
  facts.padded = EpochRows{17, 600};
  facts.longer = 4;
  facts.left_out = 700;
  goal.epochs = 2;
  const Picture lengths = LengthsPicture(goal);
  const std::map<int, double> sums = BarSums(lengths.wide);
  double documents = 0;
  for (const auto& [bar, sum] : sums) documents += sum;
  CHECK(documents == 17);
  REQUIRE(lengths.table.rows.size() == 8);  // to 4, 8, ..., 512
  CHECK(lengths.table.rows[0][0] == "3 to 4");
  CHECK(lengths.table.rows[2] == std::vector<std::string>{"9 to 16", "2", "11.8 %", "32", "2.6 %"});
  CHECK(lengths.table.rows[5][0] == "65 to 128");
  CHECK(
      lengths.table.note ==
      "Sequences of 64 tokens cut 24 % of the documents and 58 % of all tokens; of 384, the least "
      "multiple of 128 that cuts at most 1 % of the documents, 0 % and 0 %.");
  // A document of 65 tokens has 64 targets: it fits.
  double longer = 0;
  const std::vector<std::string> parts = Attributes(lengths.wide, "rect", "data-part"),
                                 values = Attributes(lengths.wide, "rect", "data-value");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "longer") longer += std::stod(values[i]);
  }
  CHECK(longer == 4);
  const BatchSpec batch{.micro_batch = 2, .grad_accum = 2, .world_size = 1, .seq_len = 64};
  const Picture sequences = SequencesPicture(goal, batch, 3600.0);
  CHECK(sequences.table.rows == std::vector<std::vector<std::string>>{
                                    {"documents: several a sequence", "12", "21.9 %", "6", "6.00"},
                                    {"off: one a sequence, padded", "17", "44.9 %", "9", "9.00"}});
  CHECK(sequences.table.marked == std::vector<size_t>{0});
  CHECK(SequencesPicture(goal, batch, std::nullopt).table.heads.back() == "steps of the run");
  // A stream is cut anywhere.
  facts.packing = Packing::kStream;
  facts.packed = facts.padded = std::nullopt;
  CHECK(LengthsPicture(goal).legend.empty());
  CHECK(Count(LengthsPicture(goal).wide, "longer") == 0);
  CHECK(SequencesPicture(goal, batch, 3600.0).table.rows.size() == 1);
}

TEST_CASE("bars of time add up to the step, in its own tokens or in others'") {
  const ChoiceFixture fixture;
  for (const bool others : {false, true}) {
    const double tokens = 1e6;
    const std::optional<Picture> picture =
        StepTimePicture(fixture.shown, others ? std::optional(tokens) : std::nullopt);
    REQUIRE(picture);
    REQUIRE(picture->table.rows.size() == fixture.shown.size());
    const std::map<int, double> sums = BarSums(picture->wide);
    REQUIRE(sums.size() == fixture.shown.size());
    for (const auto& [bar, sum] : sums) {
      const TimeEstimate& time = fixture.estimate.choices[static_cast<size_t>(bar)].time;
      CHECK(sum ==
            doctest::Approx(others ? tokens / *time.tokens_per_second : *time.total_seconds));
    }
  }
}

TEST_CASE("a bar much longer than most is cut, and says so") {
  ChoiceFixture fixture;
  const std::optional<Picture> whole =
      StepTimePicture({fixture.shown.begin(), fixture.shown.begin() + 2}, std::nullopt);
  CHECK(whole->wide.find("class=\"arrow\"") == std::string::npos);
  TimeEstimate& time = fixture.estimate.choices.back().time;
  for (auto* part : {&time.exposed_offload_seconds, &time.total_seconds}) **part += 1000;
  const std::optional<Picture> cut = StepTimePicture(fixture.shown, std::nullopt);
  CHECK(Count(cut->wide, "class=\"arrow\"") >= 1);
  CHECK(cut->about.find("with an arrow") != std::string::npos);
}

TEST_CASE("the front is what nothing that fits beats") {
  // By hand: 1 is beaten by 0 (less memory, faster), 3 ties 2 in speed with more memory.
  const std::vector<JudgedDot> dots = {{"a", 10, 100, true, false}, {"b", 12, 90, true, false},
                                       {"c", 20, 150, true, true},  {"d", 25, 150, true, false},
                                       {"e", 5, 500, false, false}, {"f", 30, 151, true, false},
                                       {"g", 10, 99, true, false}};
  CHECK(OnFront(dots) == std::vector<bool>{true, false, true, false, false, true, false});
  const ChoiceFixture fixture;
  const Picture picture = FrontPicture(dots, fixture.inputs.cluster);
  // A dot each, and the ring around the chosen one.
  CHECK(Count(picture.wide, "<circle") == dots.size() + 1);
  CHECK(Count(picture.wide, "class=\"hollow\"") == 1);
  CHECK(Count(picture.wide, "class=\"c0\"") == 3);
  CHECK(picture.table.rows.size() == dots.size());
  size_t on_front = 0;
  for (const auto& row : picture.table.rows) on_front += row[3] == "yes" ? 1 : 0;
  CHECK(on_front == 3);
  CHECK(picture.table.rows.front()[0] == "c");
}

TEST_CASE("what is far beyond the capacity is left out of the picture, and named") {
  const ChoiceFixture fixture;
  const uint64_t limit = *CapacityOf(fixture.inputs.cluster).gpu_bytes;
  const Picture picture =
      FrontPicture({{"a", limit / 2, 100, true, false}, {"b", 3 * limit, 120, false, false}},
                   fixture.inputs.cluster);
  CHECK(Count(picture.wide, "<circle") == 1);
  CHECK(picture.about.find("1 that take more than 1.6 times") != std::string::npos);
  CHECK(picture.table.rows.size() == 2);
}

TEST_CASE("memory over the step has the peaks that the walk found, phase by phase") {
  for (const int64_t micro_steps : {1, 2, 5}) {
    for (const int stage : {0, 2, 3}) {
      CAPTURE(micro_steps);
      CAPTURE(stage);
      const ChoiceFixture fixture;
      TrainSetup setup = fixture.inputs.setups.front();
      setup.zero.stage = stage;
      setup.batch.grad_accum = micro_steps;
      const Program program = Lower(fixture.inputs.model, setup, fixture.inputs.lower);
      const ChoiceEstimate choice =
          EstimateProgram(program, fixture.inputs.cluster, &fixture.costs);
      const StepMemory memory = MemoryOverStep(program, fixture.costs);
      uint64_t most = 0;
      for (size_t p = 0; p < kPhases; ++p) {
        CHECK(TotalOf(memory.at_phase_peak[p]) == choice.memory.phases[p].bytes);
      }
      for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kStep}) {
        uint64_t seen = 0;
        for (const MemoryMoment& moment : memory.moments) {
          if (moment.phase == phase) seen = std::max(seen, TotalOf(moment.live));
        }
        CHECK(seen == choice.memory.phases[static_cast<size_t>(phase)].bytes);
        most = std::max(most, seen);
      }
      CHECK(TotalOf(memory.moments[memory.peak].live) == most);
      // micro-steps (first, middle, last at most) and the update
      CHECK(memory.parts.size() == static_cast<size_t>(std::min<int64_t>(micro_steps, 3) + 1));
      int64_t times = 0;
      for (const StepMemory::Part& part : memory.parts) times += part.times;
      CHECK(times == micro_steps + 1);
      double last = 0;
      for (const MemoryMoment& moment : memory.moments) {
        CHECK(moment.seconds >= last);
        last = moment.seconds;
      }
      CHECK(last <= memory.seconds * (1 + 1e-9));
      const Picture picture =
          StepMemoryPicture(program, choice.footprint, choice.memory, "label", fixture.costs);
      CHECK(Count(picture.wide, "class=\"area ") == kGpuClasses);
      CHECK(picture.wide.find("most is live") != std::string::npos);
      CHECK(picture.table.marked.size() == 1);
    }
  }
}

}  // namespace
}  // namespace zeroplan
