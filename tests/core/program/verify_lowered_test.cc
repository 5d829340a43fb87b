// Verify on programs that Lower() makes: right ones pass, and faults put into them are found.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <string>

#include "core/lowering/lower.h"
#include "core/program/step_order.h"
#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/program/program_faults.h"

namespace zeroplan {
namespace {

using testing::Offload;

struct Case {
  int stage;
  Offload offload;
};
// Every stage, and every place that states can be in.
constexpr Case kCases[] = {
    {0, Offload::kNone}, {1, Offload::kNone}, {1, Offload::kRatio},
    {2, Offload::kNone}, {2, Offload::kNvme}, {3, Offload::kNone},
    {3, Offload::kBoth}, {3, Offload::kNvme}, {3, Offload::kParam},
};

Program LowerCase(const Case& c, int ranks = 3, int64_t grad_accum = 3,
                  RecomputeConfig recompute = kNoRecompute, bool async_save = false) {
  TrainSetup setup = testing::BaseSetup(c.stage, ranks, Dtype::kBF16, grad_accum, recompute);
  testing::SetOffload(setup, c.offload);
  LowerOptions options;
  options.backend = Backend::kCuda;
  options.logits_chunk_bytes = 400;
  options.checkpoint_chunk_elements = 700;
  options.async_save = async_save;
  return Lower(testing::TinyModel(2), setup, options);
}

// Calls test(program) for each case.
template <typename Test>
void ForEachCase(Test&& test) {
  for (const Case& c : kCases) {
    CAPTURE(c.stage);
    CAPTURE(std::string(testing::OffloadLabel(c.offload)));
    test(LowerCase(c));
  }
}

bool IsReduction(const Program& program, const Collective& collective) {
  return !collective.scalar && collective.kind != CollectiveKind::kAllGather &&
         collective.kind != CollectiveKind::kBroadcast &&
         program.buffers[program.segs(collective)[0].src.buffer].role == Role::kGradFull;
}

bool Touches(const Program& program, const Instruction& instruction, BufferId id) {
  bool touches = false;
  ForEachAccess(program, instruction,
                [&](const Ref& ref, ArgMode) { touches |= ref.buffer == id; });
  return touches;
}

TEST_CASE("verify: lowered programs pass") {
  for (const Case& c : kCases) {
    for (const int ranks : {1, 3}) {
      for (const int64_t grad_accum : {1, 2, 5}) {
        CAPTURE(c.stage);
        CAPTURE(std::string(testing::OffloadLabel(c.offload)));
        CAPTURE(ranks);
        CAPTURE(grad_accum);
        ExpectClean(
            LowerCase(c, ranks, grad_accum, grad_accum == 2 ? FullRecompute() : kNoRecompute));
      }
    }
  }
}

TEST_CASE("verify: lowered programs of shard groups pass, and miss the sum over the groups") {
  for (const auto& cell : testing::HybridCells({{4, 2}, {6, 2}, {6, 3}}, Dtype::kBF16, {1, 2, 5})) {
    CAPTURE(cell.name);
    Program program = Lower(testing::TinyModel(), cell.setup);
    ExpectClean(program);
    std::vector<Instruction>& micro_step = program.section(Section::kMicroStep);
    const size_t across = Find<Collective>(program, Section::kMicroStep, [](const Collective& c) {
      return c.axis == RankAxis::kReplica;
    });
    REQUIRE(across < micro_step.size());
    micro_step[across].when = 0;
    micro_step.erase(micro_step.begin() + static_cast<std::ptrdiff_t>(across));
    CHECK(Expect(program, "shard_cover").message.find("over the replicas") != std::string::npos);
  }
}

TEST_CASE("verify: lowered programs that send blocks of integers pass, and miss an all-to-all") {
  using testing::QuantizedCells;
  std::vector<testing::Cell> cells =
      QuantizedCells(testing::AllCells({3}, {Dtype::kBF16}, {1, 2, 5}));
  for (testing::Cell& cell :
       QuantizedCells(testing::HybridCells({{4, 2}, {6, 3}}, Dtype::kBF16, {1, 2, 5}))) {
    cells.push_back(std::move(cell));
  }
  for (const testing::Cell& cell : cells) {
    CAPTURE(cell.name);
    Program program = Lower(testing::TinyModel(), cell.setup);
    ExpectClean(program);
    const std::vector<Unit>& units = program.layout.units;
    const bool any_sent =
        std::any_of(units.begin(), units.end(), [](const Unit& u) { return !u.persistent; });
    if (!cell.setup.zero.quantized_gradients || !any_sent) continue;
    std::vector<Instruction>& micro_step = program.section(Section::kMicroStep);
    const size_t all_to_all =
        Find<Collective>(program, Section::kMicroStep,
                         [](const Collective& c) { return c.kind == CollectiveKind::kAllToAll; });
    REQUIRE(all_to_all < micro_step.size());
    micro_step.erase(micro_step.begin() + static_cast<std::ptrdiff_t>(all_to_all));
    Expect(program, "shard_cover");
  }
}

TEST_CASE("verify: saves from a copy pass, whatever the states' home, and steps may not touch it") {
  for (const Case& c : kCases) {
    for (const int ranks : {1, 3}) {
      CAPTURE(c.stage);
      CAPTURE(std::string(testing::OffloadLabel(c.offload)));
      Program program = LowerCase(c, ranks, 2, kNoRecompute, /*async_save=*/true);
      CHECK(SavesFromCopy(program));
      CHECK_FALSE(SavesFromCopy(LowerCase(c, ranks, 2)));
      uint64_t elements = 0;
      for (const Unit& unit : program.layout.units) elements += unit.shard_elements;
      CHECK(SaveCopyBytes(program) == 12 * elements);
      ExpectClean(program);
      // An update that writes there while files are written from it.
      const std::vector<Instruction>& save = program.section(Section::kSave);
      const size_t copy = Find<Copy>(program, Section::kSave, [&](const Copy& one) {
        return IsSaveCopy(program.buffers[one.dst.buffer]);
      });
      REQUIRE(copy < save.size());
      program.section(Section::kOptimizerStep).push_back(save[copy]);
      Expect(program, "save_copy");
    }
  }
}

TEST_CASE("verify: a dropped record, in any section") {
  ForEachCase([](const Program& program) {
    for (int s = 0; s < kSections; ++s) {
      const auto section = static_cast<Section>(s);
      size_t tried = 0;
      for (size_t i = 0; i < program.section(section).size() && tried < 3; ++i) {
        if (!std::holds_alternative<RecordEvent>(program.section(section)[i].op)) continue;
        Program broken = program;
        Erase(broken, section, i);
        Expect(broken, "wait_without_record");
        ++tried;
      }
    }
  });
}

TEST_CASE("verify: a dropped wait for a gather or a reduction") {
  ForEachCase([](const Program& program) {
    const std::vector<Instruction>& list = program.section(Section::kMicroStep);
    size_t waits = 0, found = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const WaitEvent* wait = std::get_if<WaitEvent>(&list[i].op);
      if (wait == nullptr || i % 3 != 0) continue;
      Program broken = program;
      Erase(broken, Section::kMicroStep, i);
      const std::vector<Violation> violations = Verify(broken, 1);
      ++waits;
      if (violations.empty()) continue;
      ++found;
      const std::string& rule = violations[0].rule;
      CHECK((rule == "race" || rule == "use_after_free" || rule == "use_before_alloc" ||
             rule == "overlap"));
    }
    // Some waits of a section's begin and end only repeat what other waits order.
    CHECK(waits > 0);
    CHECK(2 * found >= waits);
  });
}

TEST_CASE("verify: a dropped wait of the disk's streams") {
  for (const int stage : {2, 3}) {
    for (const int64_t grad_accum : {1, 3}) {
      const Program program = LowerCase({stage, Offload::kNvme}, 2, grad_accum);
      std::array<size_t, kStreams> needed{};
      size_t carried = 0;
      for (const Section section : {Section::kInit, Section::kMicroStep, Section::kOptimizerStep,
                                    Section::kSave, Section::kLoad}) {
        const std::vector<Instruction>& list = program.section(section);
        const auto* begin = std::get_if<RecordEvent>(&list.front().op);
        for (size_t i = 0; i < list.size(); ++i) {
          const WaitEvent* wait = std::get_if<WaitEvent>(&list[i].op);
          const bool disk =
              list[i].stream == Stream::kStorage || list[i].stream == Stream::kStorageWrite;
          // Other waits order what the section's begin does.
          const bool at_begin = wait != nullptr && begin != nullptr && wait->event == begin->event;
          if (wait == nullptr || !disk || at_begin) continue;
          CAPTURE(stage);
          CAPTURE(grad_accum);
          CAPTURE(FormatSection(program, section, static_cast<int64_t>(i)));
          Program broken = program;
          Erase(broken, section, i);
          const std::vector<Violation> violations = Verify(broken, 1);
          // What the update writes, its later reads may have waited for where they take its slots.
          const bool of_step = section == Section::kMicroStep;
          if (of_step && violations.empty()) continue;
          REQUIRE_FALSE(violations.empty());
          // In init a slot's first use waits for its alloc, too.
          const std::string& rule = violations[0].rule;
          CHECK((rule == "race" || (section == Section::kInit && rule == "use_before_alloc")));
          ++needed[static_cast<size_t>(list[i].stream)];
          carried += of_step;
        }
      }
      CHECK(needed[static_cast<size_t>(Stream::kStorage)] > 0);
      CHECK(needed[static_cast<size_t>(Stream::kStorageWrite)] > 0);
      // Parameters are read after the update wrote them.
      CHECK((carried > 0) == (stage == 3));
    }
  }
}

TEST_CASE("verify: a free before the last use") {
  ForEachCase([](const Program& program) {
    const std::vector<Instruction>& list = program.section(Section::kMicroStep);
    size_t frees = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const Free* free = std::get_if<Free>(&list[i].op);
      // Of what the micro-step before left, the last use is there.
      if (free == nullptr || list[i].when == kTakesFromMicroStep || ++frees % 8 != 0) continue;
      size_t use = i;
      while (use-- > 0 && !Touches(program, list[use], free->buffer)) {
      }
      REQUIRE(use < i);
      Program broken = program;
      Erase(broken, Section::kMicroStep, i);
      auto& changed = broken.section(Section::kMicroStep);
      changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(use), list[i]);
      Expect(broken, "use_after_free");
    }
    CHECK(frees > 0);
  });
}

TEST_CASE("verify: two frees exchanged") {
  ForEachCase([](Program program) {
    auto& list = program.section(Section::kMicroStep);
    const size_t first = Find<Free>(program, Section::kMicroStep);
    size_t last = list.size();
    while (!std::holds_alternative<Free>(list[--last].op)) {
    }
    REQUIRE(first < last);
    std::swap(std::get<Free>(list[first].op), std::get<Free>(list[last].op));
    // The buffer freed too early is used again, or not even allocated yet; or the one freed too
    // late is in the way before.
    const std::vector<Violation> found = Verify(program);
    REQUIRE_FALSE(found.empty());
    const std::string& rule = found[0].rule;
    CAPTURE(found[0].message);
    CHECK((rule == "use_after_free" || rule == "use_before_alloc" || rule == "overlap"));
  });
}

TEST_CASE("verify: an alloc or free missing or twice") {
  ForEachCase([](const Program& program) {
    for (const Section section : {Section::kMicroStep, Section::kEval}) {
      const size_t alloc = Find<Alloc>(program, section), free = Find<Free>(program, section);
      Program broken = program;
      Erase(broken, section, alloc);
      Expect(broken, "use_before_alloc");
      broken = program;
      Duplicate(broken, section, alloc);
      Expect(broken, "double_alloc");
      broken = program;
      Erase(broken, section, free);
      Expect(broken, "leak");
      broken = program;
      Duplicate(broken, section, free);
      Expect(broken, "double_free");
    }
    Program broken = program;
    const size_t persistent = Find<Alloc>(program, Section::kInit);
    const BufferId id = std::get<Alloc>(program.section(Section::kInit)[persistent].op).buffer;
    broken.section(Section::kOptimizerStep).push_back({Free{id}});
    Expect(broken, "persistent_freed");
  });
}

TEST_CASE("verify: offsets shifted") {
  ForEachCase([](const Program& program) {
    // A transient buffer onto one that is live at its alloc: a persistent one of the same space.
    const size_t at = Find<Alloc>(program, Section::kMicroStep, [&](const Alloc& alloc) {
      return program.buffers[alloc.buffer].space == Space::kDevice;
    });
    const BufferId id = std::get<Alloc>(program.section(Section::kMicroStep)[at].op).buffer;
    Program broken = program;
    broken.buffers[id].offset = 0;
    Expect(broken, "overlap");
    broken = program;
    broken.buffers[id].offset += 64;
    Expect(broken, "misaligned");
    broken = program;
    broken.buffers[id].offset = program.arena_bytes[static_cast<size_t>(Space::kDevice)];
    Expect(broken, "out_of_bounds");
    for (size_t space = 0; space < kSpaces; ++space) {
      if (program.persistent_bytes[space] == 0) continue;
      broken = program;
      broken.persistent_bytes[space] = 0;
      Expect(broken, "out_of_bounds");
    }
  });
}

TEST_CASE("verify: shards that do not cover") {
  ForEachCase([](const Program& program) {
    Program broken = program;
    broken.layout.units[1].shard_elements -= 64;
    Expect(broken, "shard_cover");
    broken = program;
    broken.layout.units[0].slots[1].offset -= 64;
    Expect(broken, "shard_cover");
    for (const Section section : {Section::kMicroStep, Section::kOptimizerStep, Section::kInit}) {
      const size_t at = Find<Collective>(
          program, section, [](const Collective& collective) { return !collective.scalar; });
      if (at == program.section(section).size()) continue;
      broken = program;
      const auto& collective = std::get<Collective>(broken.section(section)[at].op);
      broken.segments[collective.first_segment].dst.bytes -= 128;
      Expect(broken, "shard_cover");
    }
  });
}

TEST_CASE("verify: gradients reduced less or more than once") {
  ForEachCase([](const Program& program) {
    const std::vector<Instruction>& list = program.section(Section::kMicroStep);
    size_t reductions = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const Collective* collective = std::get_if<Collective>(&list[i].op);
      if (collective == nullptr || !IsReduction(program, *collective)) continue;
      ++reductions;
      Program broken = program;
      Erase(broken, Section::kMicroStep, i);
      Expect(broken, "shard_cover");
      broken = program;
      Duplicate(broken, Section::kMicroStep, i);
      Expect(broken, "shard_cover");
    }
    CHECK(reductions > 0);
  });
}

TEST_CASE("verify: a gradient written after its reduction") {
  ForEachCase([](const Program& program) {
    // The first reduction moves to before what wrote its gradients last.
    const std::vector<Instruction>& list = program.section(Section::kMicroStep);
    const size_t at = Find<Collective>(
        program, Section::kMicroStep, [&](const Collective& c) { return IsReduction(program, c); });
    REQUIRE(at < list.size());
    const BufferId grads = program.segs(std::get<Collective>(list[at].op))[0].src.buffer;
    size_t writer = at;
    while (writer-- > 0 && !(std::holds_alternative<LaunchKernel>(list[writer].op) &&
                             Touches(program, list[writer], grads))) {
    }
    REQUIRE(writer < at);
    Program broken = program;
    Erase(broken, Section::kMicroStep, at);
    auto& changed = broken.section(Section::kMicroStep);
    changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(writer), list[at]);
    Expect(broken, "late_gradient");
  });
}

TEST_CASE("verify: a gradient written after it was converted to be reduced") {
  for (const int stage : {0, 1}) {
    CAPTURE(stage);
    TrainSetup setup = testing::BaseSetup(stage, 3, Dtype::kBF16, 3, kNoRecompute);
    setup.precision.fp32_reduction = true;
    const Program program = Lower(testing::TinyModel(2), setup);
    ExpectClean(program);
    const size_t at =
        Find<LaunchKernel>(program, Section::kMicroStep, [&](const LaunchKernel& launch) {
          return launch.kernel == KernelId::kConvert &&
                 program.buffers[program.args(launch)[0].buffer].role == Role::kGradFull;
        });
    const std::vector<Instruction>& list = program.section(Section::kMicroStep);
    REQUIRE(at < list.size());
    const BufferId grads = program.args(std::get<LaunchKernel>(list[at].op))[0].buffer;
    size_t writer = at;
    while (writer-- > 0 && !Touches(program, list[writer], grads)) {
    }
    REQUIRE(writer < at);
    // As if the conversion came before what wrote the gradients last.
    Program broken = program;
    auto& changed = broken.section(Section::kMicroStep);
    changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(at) + 1, list[writer]);
    Expect(broken, "late_gradient");
  }
}

TEST_CASE("verify: streams and spaces that do not fit") {
  ForEachCase([](const Program& program) {
    for (int s = 0; s < kSections; ++s) {
      const auto section = static_cast<Section>(s);
      const std::vector<Instruction>& list = program.section(section);
      auto moved = [&](size_t at, Stream stream) {
        Program broken = program;
        broken.section(section)[at].stream = stream;
        return broken;
      };
      auto any = [](const auto&) { return true; };
      if (const size_t at = Find<Collective>(program, section, any); at < list.size()) {
        Expect(moved(at, Stream::kCompute), "collective_order");
      }
      if (const size_t at = Find<FileIo>(program, section, any); at < list.size()) {
        Expect(moved(at, Stream::kHost), "stream_mismatch");
      }
      if (const size_t at = Find<Copy>(program, section, any); at < list.size()) {
        Expect(moved(at, Stream::kStorage), "stream_mismatch");
      }
      if (const size_t at = Find<LaunchKernel>(program, section, any); at < list.size()) {
        const bool host = list[at].stream == Stream::kHost;
        Expect(moved(at, host ? Stream::kCompute : Stream::kHost), "wrong_space");
      }
    }
  });
}

TEST_CASE("verify: what nothing initialises") {
  ForEachCase([](const Program& program) {
    // Any fill of init: Adam states, gradients whose alignment no kernel writes.
    const std::vector<Instruction>& list = program.section(Section::kInit);
    size_t fills = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const LaunchKernel* launch = std::get_if<LaunchKernel>(&list[i].op);
      if (launch == nullptr || launch->kernel != KernelId::kFill) continue;
      ++fills;
      Program broken = program;
      Erase(broken, Section::kInit, i);
      Expect(broken, "uninitialised_read");
    }
    CHECK(fills > 0);
  });
}

TEST_CASE("verify: a 12-layer program takes milliseconds" * doctest::test_suite("timing")) {
  TrainSetup setup = testing::BaseSetup(3, 8, Dtype::kBF16, 3, kNoRecompute);
  setup.zero.reduce_bucket_elements = kAuto;
  const Program program = Lower(testing::TinyModel(12), setup);
  const auto begin = std::chrono::steady_clock::now();
  ExpectClean(program);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  MESSAGE("verified in " << took.count() << " ms");
  // 2 ms in a release build.
  CHECK(took.count() < 1000);
}

}  // namespace
}  // namespace zeroplan
