#include "core/lowering/emitter.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

TEST_CASE("slot ring: slots in turn, made when needed, as large as their largest use") {
  Program program;
  SlotRing ring(program, {"slot", Role::kStaging, Dtype::kF32, Space::kPinned, true}, 2);
  CHECK(program.buffers.empty());
  const Ref a = ring.Next(80);
  CHECK(program.buffers.size() == 1);
  const Ref b = ring.Next(20), c = ring.Next(120);
  REQUIRE(program.buffers.size() == 2);
  CHECK(a.buffer == c.buffer);
  CHECK(a.buffer != b.buffer);
  CHECK(a.bytes == 80);
  CHECK(c.bytes == 120);
  CHECK(program.buffers[a.buffer].bytes == 120);
  CHECK(program.buffers[b.buffer].bytes == 20);
  CHECK(program.buffers[b.buffer].space == Space::kPinned);
  CHECK(program.buffers[b.buffer].persistent);
}

}  // namespace
}  // namespace zeroplan
