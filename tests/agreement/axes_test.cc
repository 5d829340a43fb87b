// Two axes: four ranks, of which two hold a unit's shards between them, and two each the same
// shard. Whoever reads a program agrees on which ranks a collective runs over.
#include <doctest/doctest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "core/program/collectives.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "cost_models/collective_cost.h"
#include "cost_models/cost_model.h"
#include "cost_models/traffic.h"
#include "executor/engine/engine.h"
#include "tests/core/program/program_builder.h"
#include "tests/core/program/program_faults.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/executor/engine/tiny_program.h"

namespace zeroplan {
namespace {

constexpr int kRanks = 4;

// A micro-step takes each rank's gradient from its batch, sums the shards of it over the shard axis
// and these over the replicas, adds them to the rank's shard of the parameter, and gathers that
// over the shard axis. A copy of the rank's part of what was gathered is where its coordinate says.
struct TwoAxes {
  explicit TwoAxes(int64_t elements) : b(kRanks) {
    Program& p = b.program;
    ZeroConfig zero;
    zero.stage = p.setup.zero.stage = 3;
    zero.param_persistence_threshold = 0;
    p.setup.batch.seq_len = elements;
    p.layout = BuildParamLayout(
        std::make_shared<const std::vector<ParamTensor>>(std::vector<ParamTensor>{
            {{.name = "w", .shape = {elements, 1}, .unpadded_rows = elements}, "w", 0}}),
        zero, 2);
    const auto bytes = static_cast<uint64_t>(elements) * 4, half = bytes / 2;
    const auto of_unit = [&](BufferId id, Role role) {
      p.buffers[id].role = role;
      p.buffers[id].unit = 0;
      return id;
    };
    p.state_buffer = b.Add("state", sizeof(StepState), true, Space::kDevice, Dtype::kU8);
    p.state_host_buffer = b.Add("state", sizeof(StepState), true, Space::kPinned, Dtype::kU8);
    p.tokens_host_buffer = b.Add("tokens", 2 * bytes, true, Space::kPinned, Dtype::kI32);
    shard = of_unit(b.Add("shard", half, true), Role::kParamShard);
    sum = of_unit(b.Add("sum", half, true), Role::kGradShard);
    own = b.Add("own", half, true);
    grad = of_unit(b.Add("grad", bytes, false), Role::kGradFull);
    whole = of_unit(b.Add("whole", bytes, false), Role::kParamFull);
    slot = b.Add("slot", half, false, Space::kPinned);
    const EventId filled = b.Event(), summed = b.Event(), added = b.Event(), gathered = b.Event(),
                  copied = b.Event(), written = b.Event();

    b.In(Section::kInit).On(Stream::kCompute);
    for (const BufferId id :
         {p.state_buffer, p.state_host_buffer, p.tokens_host_buffer, shard, sum, own}) {
      b.Make(id);
    }
    b.Fill(shard);

    b.In(Section::kMicroStep).Make(grad).Make(whole);
    b.Move({p.tokens_host_buffer, 0, bytes, 0}, b.All(grad)).Record(filled);
    b.On(Stream::kReduce).Wait(filled);
    b.Collect(CollectiveKind::kReduceScatter, {b.All(grad), b.All(sum)}, RankAxis::kShard);
    b.Collect(CollectiveKind::kAllReduce, {b.All(sum), b.All(sum)}, RankAxis::kReplica)
        .Record(summed);
    b.On(Stream::kCompute).Wait(summed);
    b.Launch(KernelId::kConvert, {elements / 2}, {b.All(sum), b.All(shard)}, kAccumulate);
    b.Record(added).On(Stream::kGather).Wait(added);
    b.Collect(CollectiveKind::kAllGather, {b.All(shard), b.All(whole)}, RankAxis::kShard);
    b.Record(gathered).On(Stream::kCompute).Wait(gathered);
    b.Move({whole, 0, half, half}, b.All(own)).Drop(grad).Drop(whole);

    b.In(Section::kSave).Make(slot).Record(filled).On(Stream::kDeviceToHost).Wait(filled);
    b.Move(b.All(shard), b.All(slot)).Record(copied).On(Stream::kStorage).Wait(copied);
    b.WriteMaster(b.All(slot), 0).Record(written).On(Stream::kCompute).Wait(written).Drop(slot);
  }

  ProgramBuilder b;
  BufferId shard, sum, own, grad, whole, slot;
};

TEST_CASE("two axes: Verify follows each, and misses the one that is left out") {
  TwoAxes two(256);
  ExpectClean(two.b.program);
  std::vector<Instruction>& micro_step = two.b.program.section(Section::kMicroStep);
  const auto all_reduce = [](const Collective& c) { return c.kind == CollectiveKind::kAllReduce; };
  const size_t at = Find<Collective>(two.b.program, Section::kMicroStep, all_reduce);
  const Instruction over_replicas = micro_step.at(at);
  Erase(two.b.program, Section::kMicroStep, at);
  CHECK(Expect(two.b.program, "shard_cover").message.find("over the replicas") !=
        std::string::npos);
  micro_step.insert(micro_step.begin() + static_cast<std::ptrdiff_t>(at), over_replicas);
  ExpectClean(two.b.program);
  // Two parts do not make four ranks' whole.
  std::get<Collective>(micro_step.at(at - 1).op).axis = RankAxis::kAll;
  Expect(two.b.program, "shard_cover");
  two.b.program.layout.shards = 3;
  CHECK(Verify(two.b.program).at(0).rule == "malformed");
}

TEST_CASE("two axes: texts say which, communicators belong to them") {
  const TwoAxes two(256);
  const std::string text = FormatSection(two.b.program, Section::kMicroStep);
  CHECK(text.find("reduce_scatter fp32 over shard ") != std::string::npos);
  CHECK(text.find("all_reduce fp32 over replica ") != std::string::npos);
  CHECK(text.find("+0:512@shard*512") != std::string::npos);
  const std::vector<CommunicatorKey> wanted = {{RankAxis::kShard, Stream::kGather},
                                               {RankAxis::kShard, Stream::kReduce},
                                               {RankAxis::kReplica, Stream::kReduce}};
  CHECK(CommunicatorsOf(two.b.program) == wanted);
}

// What was written of each element, by how many ranks.
class CountingSink : public StateSink {
 public:
  explicit CountingSink(size_t elements) : values(elements), times(elements) {}
  void Write(const TensorRange& range, std::span<const float> written) override {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < written.size(); ++i) {
      values[range.begin + i] = written[i];
      ++times[range.begin + i];
    }
  }
  std::vector<float> values;
  std::vector<int> times;

 private:
  std::mutex mutex_;
};

TEST_CASE("two axes: the engine sums over the ranks of each, and saves one replica") {
  constexpr size_t kElements = 256;
  const TwoAxes two(kElements);
  Engine engine(two.b.program, {.threads_per_rank = 1});
  engine.Init();
  engine.TakeTraffic();
  engine.Step([](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets,
                 std::span<int32_t>) { FillCounting(rank, m, inputs, targets); });
  // Over all four ranks.
  const auto wanted = [](size_t i) { return static_cast<float>(4 * (i + 1) + 100 * (1 + 2 + 3)); };
  for (int rank = 0; rank < kRanks; ++rank) {
    CAPTURE(rank);
    const auto first = static_cast<size_t>(rank % 2) * kElements / 2;
    const std::vector<float> shard = PeekFloats(engine, rank, two.shard);
    bool right = true;
    for (size_t i = 0; i < shard.size(); ++i) right = right && shard[i] == wanted(first + i);
    CHECK(right);
    CHECK(PeekFloats(engine, rank, two.own) == shard);
  }
  // A reduce-scatter and an all-gather of 1024 bytes and an all-reduce of 512, each over two ranks.
  CHECK(engine.TakeTraffic().collective_bytes == 512 + 512 + 512);
  CHECK(WalkTraffic(two.b.program).collective_bytes == 512 + 512 + 512);

  CountingSink sink(kElements);
  engine.Save(std::vector<StateSink*>(kRanks, &sink));
  for (size_t i = 0; i < kElements; ++i) {
    REQUIRE(sink.times[i] == 1);
    REQUIRE(sink.values[i] == wanted(i));
  }
}

TEST_CASE("two axes: a rank that fails lets go the other groups") {
  const TwoAxes two(256);
  Engine engine(two.b.program, {.threads_per_rank = 1});
  engine.Init();
  CHECK_THROWS_WITH_AS(engine.Step([](int rank, int64_t m, std::span<int32_t> inputs,
                                      std::span<int32_t> targets, std::span<int32_t>) {
    if (rank == 3) throw std::runtime_error("no batch");
    FillCounting(rank, m, inputs, targets);
  }),
                       "no batch", std::runtime_error);
}

TEST_CASE("two axes: a collective costs what one over its group does") {
  constexpr int64_t kElements = 1 << 26;
  const TwoAxes two(kElements);
  HardwareProfile profile = PlainProfile();
  profile.network = NetworkProfile{};
  profile.network->bandwidth_per_node = Number(50e9);
  profile.network->latency = Number(5e-6);
  const auto seconds = [&](const ClusterShape& cluster, CollectiveKind kind) {
    const CostModel costs(profile, cluster);
    const Program& p = two.b.program;
    const size_t at = Find<Collective>(p, Section::kMicroStep,
                                       [&](const Collective& c) { return c.kind == kind; });
    return costs.Seconds(p, p.section(Section::kMicroStep).at(at));
  };
  constexpr double kBytes = 4.0 * kElements;
  // One node: two ranks beside two others, each with its own links.
  const ClusterShape one_node{kRanks, 8};
  const CollectiveCost pair(profile, {2, 8});
  CHECK(seconds(one_node, CollectiveKind::kAllGather) ==
        pair.Seconds(CollectiveOp::kAllGather, kBytes));
  // Two nodes: shards stay within a node, replicas are on both and share the adapters.
  const ClusterShape two_nodes{kRanks, 2};
  CHECK(seconds(two_nodes, CollectiveKind::kReduceScatter) ==
        CollectiveCost(profile, {2, 2}).Seconds(CollectiveOp::kReduceScatter, kBytes));
  profile.network->bandwidth_per_node = Number(25e9);
  const double shared =
      CollectiveCost(profile, {2, 1}).Seconds(CollectiveOp::kAllReduce, kBytes / 2);
  profile.network->bandwidth_per_node = Number(50e9);
  CHECK(seconds(two_nodes, CollectiveKind::kAllReduce) == doctest::Approx(shared));
}

}  // namespace
}  // namespace zeroplan
