// The program's text form.
#include "core/program/program.h"

#include <doctest/doctest.h>

#include "tests/core/program/program_builder.h"

namespace zeroplan {
namespace {

Buffer Named(const char* label, int layer, int unit) {
  Buffer buffer;
  buffer.label = label;
  buffer.layer = layer;
  buffer.unit = unit;
  return buffer;
}

TEST_CASE("format: buffer names") {
  CHECK(BufferName(Named("state", -2, -1)) == "state");
  CHECK(BufferName(Named("qkv", 3, -1)) == "qkv[3]");
  CHECK(BufferName(Named("x", kEmbeddingLayer, -1)) == "x[embed]");
  CHECK(BufferName(Named("params", 3, 0)) == "params.unit[0]");
}

TEST_CASE("format: step kinds") {
  CHECK(FormatWhen(kEvery).empty());
  CHECK(FormatWhen(kFirst) == "[first]");
  CHECK(FormatWhen(kReduces) == "[only|last]");
  CHECK(FormatWhen(kAddsGrads) == "[middle|last]");
  CHECK(FormatWhen(0) == "[never]");
}

TEST_CASE("format: a section, line by line") {
  ProgramBuilder b(2);
  const BufferId x = b.Add("x", 2048, true), params = b.Add("params", 6144, true);
  const BufferId y = b.Add("y", 6144, false), scratch = b.Add("workspace", 256, false);
  const BufferId host = b.Add("host", 1024, true, Space::kPinned);
  const BufferId file = b.Add("file", 4096, true, Space::kFile);
  b.program.buffers[params].unit = 1;
  b.program.buffers[x].layer = 0;
  const EventId event = b.Event();
  b.In(Section::kMicroStep).Make(y);
  b.Launch(KernelId::kMatmulForward, {64, 16, 48},
           {b.All(x), {params, 0, 1536, 1536}, {}, {}, b.All(y), b.All(scratch)}, kTransposed);
  b.When(kAddsGrads).Launch(KernelId::kConvert, {16}, {{x, 64, 64, 0}, {y, 0, 64, 0}}, kAccumulate);
  b.When(kEvery).Launch(KernelId::kStepScalars, {}, {b.All(x)});
  b.Record(event).On(Stream::kGather).Wait(event);
  b.Collect(CollectiveKind::kAllGather, {{params, 0, 3072, 3072}, b.All(params)});
  b.On(Stream::kReduce)
      .Collect(CollectiveKind::kReduceToOwners, {{y, 0, 64, 0}, b.All(x), 1, 16, 32});
  b.On(Stream::kHostToDevice).Move(b.All(host), {x, 0, 1024, 0});
  b.On(Stream::kStorageWrite).File(true, b.All(host), {file, 1024, 1024, 0});
  FileIo load{false, FileTarget::kCheckpoint};
  load.host = b.All(host);
  load.unit = 1;
  load.state = StateKind::kFirst;
  load.begin = 128;
  load.count = 256;
  b.program.section(Section::kMicroStep).push_back({load, Stream::kStorage});
  b.On(Stream::kCompute).Drop(y);
  CHECK(FormatSection(b.program, Section::kMicroStep, 1) ==
        R"(micro_step:
    compute  alloc  y  (6144 bytes fp32)
--> compute  matmul_forward  x[0] params.unit[1]+0:1536@rank*1536 _ _ -> y ~workspace transposed  (M=64 K=16 N=48)
    compute  [middle|last] convert  x[0]+64:64 -> &y+0:64 accumulate  (n=16)
    compute  step_scalars -> &x[0]
    compute  record  event[0]
    gather   wait  event[0]
    gather   all_gather fp32  params.unit[1]+0:3072@rank*3072 -> params.unit[1]
    reduce   reduce_to_owners fp32  y+0:64(unit 1 [16, 32)) -> x[0]
    host_to_device  copy  host -> x[0]+0:1024
    storage_write  file_write  host -> file+1024:1024
    storage  file_read  checkpoint:adam_m.unit[1]+128:256 -> host
    compute  free  y
)");
  CHECK(FormatProgram(b.program) == FormatSection(b.program, Section::kMicroStep));
  CHECK(FormatLines(b.program, Section::kMicroStep, -3, 1, 0) ==
        "micro_step:\n--> compute  alloc  y  (6144 bytes fp32)\n");
}

}  // namespace
}  // namespace zeroplan
