// Whatever an executor could do differently shows in a program's fingerprint.
#include "core/program/fingerprint.h"

#include <doctest/doctest.h>

#include <functional>
#include <set>

#include "core/lowering/lower.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

ModelSpec SmallModel() {
  return testing::TinyModel({.name = "small",
                             .hidden = 64,
                             .heads = 4,
                             .ffn = 256,
                             .vocab = 256,
                             .padded_vocab = 256,
                             .positions = 32});
}

TrainSetup SmallSetup() {
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.zero.offload_optimizer.device = OffloadDevice::kNvme;
  setup.batch = {2, 3, 2, 32};
  return setup;
}

TEST_CASE(
    "Fingerprint: the same program, lowered twice, has the same one; its name does not count") {
  ModelSpec model = SmallModel();
  const uint64_t first = Fingerprint(Lower(model, SmallSetup()));
  model.name = "another";
  CHECK(Fingerprint(Lower(model, SmallSetup())) == first);
}

TEST_CASE("Fingerprint: what the engine hands in at run time does not count") {
  TrainSetup setup = SmallSetup();
  const uint64_t first = Fingerprint(Lower(SmallModel(), setup));
  setup.optimizer.lr = 0.5;
  setup.optimizer.schedule.total_steps = 7;
  setup.zero.offload_optimizer.nvme_path = "/somewhere";
  CHECK(Fingerprint(Lower(SmallModel(), setup)) == first);
}

TEST_CASE("Fingerprint: every single change shows, and no two are alike") {
  const Program original = Lower(SmallModel(), SmallSetup());
  std::set<uint64_t> seen = {Fingerprint(original)};
  size_t changes = 0;
  auto change = [&](const std::function<void(Program&)>& edit) {
    Program program = original;
    edit(program);
    seen.insert(Fingerprint(program));
    ++changes;
  };
  change([](Program& p) { ++p.model.heads; });
  change([](Program& p) { p.model.layer_norm_eps *= 2; });
  change([](Program& p) { ++p.setup.batch.grad_accum; });
  change([](Program& p) { p.backend = Backend::kCuda; });
  change([](Program& p) { ++p.arena_bytes[2]; });
  change([](Program& p) { ++p.event_count; });
  change([](Program& p) { ++p.layout.units[1].shard_elements; });
  for (size_t i = 0; i < original.buffers.size(); i += 7) {
    change([i](Program& p) { p.buffers[i].offset += 128; });
    change([i](Program& p) { p.buffers[i].bytes ^= uint64_t{1} << 63; });
    change([i](Program& p) { p.buffers[i].dtype = Dtype::kF64; });
  }
  for (size_t i = 0; i < original.refs.size(); i += 11) {
    change([i](Program& p) { ++p.refs[i].offset; });
    change([i](Program& p) { ++p.refs[i].shard_stride; });
  }
  for (size_t i = 0; i < original.segments.size(); ++i) {
    change([i](Program& p) { ++p.segments[i].dst.bytes; });
  }
  for (size_t s = 0; s < kSections; ++s) {
    const size_t size = original.sections[s].size();
    for (size_t i = 0; i < size; i += 13) {
      change([s, i](Program& p) { p.sections[s][i].when ^= 1; });
      if (std::holds_alternative<LaunchKernel>(original.sections[s][i].op)) {
        change([s, i](Program& p) { std::get<LaunchKernel>(p.sections[s][i].op).scalars[1] += 1; });
      }
      change([s, i](Program& p) { p.sections[s].erase(p.sections[s].begin() + long(i)); });
      change([s, i](Program& p) {
        std::visit(
            Overload{[](LaunchKernel& k) { ++k.dims.back(); }, [](Collective& c) { c.scalar ^= 1; },
                     [](Copy& c) { std::swap(c.src, c.dst); }, [](FileIo& f) { f.write ^= 1; },
                     [](Alloc& a) { ++a.buffer; }, [](Free& f) { ++f.buffer; },
                     [](RecordEvent& r) { ++r.event; }, [](WaitEvent& w) { ++w.event; }},
            p.sections[s][i].op);
      });
    }
  }
  CHECK(changes > 300);
  // Erasing either of two equal neighbours gives the same list: few are.
  CHECK(seen.size() >= changes - 3);
}

TEST_CASE("Fingerprint: plan files keep it, so the roles of buffers keep their numbers") {
  Program program;
  const auto add = [&](Role role, Space space, StateKind state) {
    Buffer& buffer = program.buffers.emplace_back();
    buffer.role = role;
    buffer.space = space;
    buffer.state = state;
  };
  for (const Space space : {Space::kDevice, Space::kPageable, Space::kFile}) {
    for (const StateKind kind : kStateKinds) add(Role::kOptimizerState, space, kind);
  }
  for (const Role role : {Role::kGradShard, Role::kGradHost, Role::kStateSlot, Role::kScales}) {
    add(role, Space::kDevice, StateKind::kMaster);
  }
  CHECK(FormatFingerprint(Fingerprint(program)) == "9a292ef2795439f7");
}

TEST_CASE("FormatFingerprint") { CHECK(FormatFingerprint(0xabc) == "0000000000000abc"); }

}  // namespace
}  // namespace zeroplan
