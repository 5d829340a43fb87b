// Verify on a program small enough to follow by hand, and on one fault of every kind put into it.
#include <doctest/doctest.h>

#include <string>

#include "core/base/error.h"
#include "core/program/verify.h"
#include "tests/core/program/program_builder.h"
#include "tests/core/program/program_faults.h"

namespace zeroplan {
namespace {

// Two ranks, each with a shard of a parameter; three micro-steps. A micro-step gathers the
// parameter (double use of the memory ordered by a carried event), computes and accumulates; the
// optimizer step updates the shard on the device, and copies the sum to the host, whose kernel's
// result goes to disk.
struct Small {
  Small() : b(2, 3) {
    shard = b.Add("shard", 512, true);
    acc = b.Add("acc", 1024, true);
    whole = b.Add("whole", 1024, false);
    y = b.Add("y", 1024, false);
    host = b.Add("host", 1024, true, Space::kPinned);
    host_out = b.Add("host_out", 1024, true, Space::kPageable);
    file = b.Add("file", 1024, true, Space::kFile);
    gathered = b.Event(), used = b.Event(), updated = b.Event(), summed = b.Event();
    copied = b.Event(), hosted = b.Event(), stored = b.Event();

    b.In(Section::kInit).On(Stream::kCompute).Make(shard).Fill(shard).Make(acc);
    b.Make(host).Make(host_out).Make(file);

    b.In(Section::kMicroStep).On(Stream::kGather).Wait(used).Wait(updated).Make(whole);
    b.Collect(CollectiveKind::kAllGather, {b.All(shard), b.All(whole)}).Record(gathered);
    b.On(Stream::kCompute).Wait(gathered).Make(y).Gelu(b.All(whole), b.All(y));
    b.When(kWritesGrads).Launch(KernelId::kConvert, {256}, {b.All(y), b.All(acc)});
    b.When(kAddsGrads).Launch(KernelId::kConvert, {256}, {b.All(y), b.All(acc)}, kAccumulate);
    b.When(kEvery).Drop(y).Drop(whole).Record(used);

    b.In(Section::kOptimizerStep).Gelu({acc, 0, 512, 512}, b.All(shard)).Record(updated);
    b.Record(summed).On(Stream::kDeviceToHost).Wait(summed).Wait(hosted);
    b.Move(b.All(acc), b.All(host)).Record(copied).On(Stream::kCompute).Wait(copied);
    b.On(Stream::kHost).Wait(copied).Wait(stored).Gelu(b.All(host), b.All(host_out)).Record(hosted);
    b.On(Stream::kStorageWrite)
        .Wait(hosted)
        .File(true, b.All(host_out), b.All(file))
        .Record(stored);

    b.In(Section::kDrain).On(Stream::kCompute).Wait(stored);
  }
  Program& program() { return b.program; }

  ProgramBuilder b;
  BufferId shard, acc, whole, y, host, host_out, file;
  EventId gathered, used, updated, summed, copied, hosted, stored;
};

TEST_CASE("verify: a right program passes") {
  Small small;
  ExpectClean(small.program());
  CHECK_NOTHROW(VerifyOrThrow(small.program()));
  small.program().setup.batch.grad_accum = 1;
  ExpectClean(small.program());
  small.program().setup.batch.grad_accum = 7;
  ExpectClean(small.program());
  ExpectClean(Program{});
}

TEST_CASE("verify: every wait is needed") {
  // Without any one of its waits some order of the streams would be wrong.
  const Small original;
  for (const Section section : {Section::kMicroStep, Section::kOptimizerStep}) {
    for (size_t i = 0; i < original.b.program.section(section).size(); ++i) {
      Small small;
      if (!std::holds_alternative<WaitEvent>(small.program().section(section)[i].op)) continue;
      CAPTURE(FormatSection(small.program(), section, static_cast<int64_t>(i)));
      Erase(small.program(), section, i);
      CHECK_FALSE(Verify(small.program()).empty());
    }
  }
}

TEST_CASE("verify: a missing record") {
  Small small;
  Erase(small.program(), Section::kMicroStep,
        Find<RecordEvent>(small.program(), Section::kMicroStep));
  const Violation found = Expect(small.program(), "wait_without_record");
  CHECK(found.section == Section::kMicroStep);
  CHECK(found.message.find("--> compute  wait  event[0]") != std::string::npos);
  CHECK_THROWS_AS(VerifyOrThrow(small.program()), CheckFailure);
}

TEST_CASE("verify: a record of micro-steps that never come is none") {
  Small small;
  auto& list = small.program().section(Section::kMicroStep);
  list[Find<RecordEvent>(small.program(), Section::kMicroStep)].when = kOnly;
  Expect(small.program(), "wait_without_record");
}

TEST_CASE("verify: an event that is carried over orders the next step") {
  // The gather reads a shard that the step before is still writing.
  Small small;
  auto& list = small.program().section(Section::kMicroStep);
  REQUIRE(std::get<WaitEvent>(list[1].op).event == small.updated);
  Erase(small.program(), Section::kMicroStep, 1);
  const Violation found = Expect(small.program(), "race");
  CHECK(found.message.find("--> gather   all_gather fp32  shard -> whole") != std::string::npos);
}

TEST_CASE("verify: memory before its alloc and after its free") {
  Small late;
  SwapInstructions(late.program(), Section::kMicroStep, 2, 3);  // alloc and gather of `whole`
  Expect(late.program(), "use_before_alloc");

  Small other_stream;  // allocated on a stream that nobody waits for
  other_stream.program().section(Section::kMicroStep)[2].stream = Stream::kReduce;
  Expect(other_stream.program(), "use_before_alloc");

  Small early;
  const size_t free = Find<Free>(early.program(), Section::kMicroStep);
  SwapInstructions(early.program(), Section::kMicroStep, free, free - 1);
  const Violation found = Expect(early.program(), "use_after_free");
  CHECK(found.index == static_cast<int64_t>(free));

  Small unordered;  // freed by a stream that does not know when compute is done
  unordered.program().section(Section::kMicroStep)[free].stream = Stream::kReduce;
  Expect(unordered.program(), "use_after_free");
}

TEST_CASE("verify: allocated and freed once each") {
  Small twice;
  const size_t alloc = Find<Alloc>(twice.program(), Section::kMicroStep);
  Duplicate(twice.program(), Section::kMicroStep, alloc);
  Expect(twice.program(), "double_alloc");

  Small freed;
  Duplicate(freed.program(), Section::kMicroStep, Find<Free>(freed.program(), Section::kMicroStep));
  Expect(freed.program(), "double_free");

  Small leak;
  Erase(leak.program(), Section::kMicroStep, Find<Free>(leak.program(), Section::kMicroStep));
  const Violation found = Expect(leak.program(), "leak");
  CHECK(found.message.find("--> compute  alloc  y") != std::string::npos);

  Small persistent;
  persistent.b.In(Section::kOptimizerStep).On(Stream::kCompute).Drop(persistent.acc);
  Expect(persistent.program(), "persistent_freed");

  Small again;
  again.program().buffers[again.y].persistent = true;
  Expect(again.program(), "persistent_alloc");
}

TEST_CASE("verify: live buffers lie apart") {
  Small over;
  over.program().buffers[over.y].offset = over.program().buffers[over.whole].offset + 512;
  const Violation found = Expect(over.program(), "overlap");
  CHECK(found.message.find("whole") != std::string::npos);

  // `whole` of the next micro-step takes memory whose last owner's free is not ordered before it.
  Small reused;
  const BufferId z = reused.b.Add("z", 1024, false);
  reused.program().buffers[z].offset = reused.program().buffers[reused.whole].offset;
  reused.b.In(Section::kMicroStep).On(Stream::kCompute).Make(z).Fill(z).Drop(z);
  Expect(reused.program(), "overlap");
  reused.b.Record(reused.used);
  ExpectClean(reused.program());
}

TEST_CASE("verify: only what conflicts races") {
  // The other half of the accumulator may be read meanwhile, the same half may not.
  for (const bool conflict : {false, true}) {
    Small small;
    const BufferId z = small.b.Add("z", 512, true);
    small.b.In(Section::kInit).On(Stream::kCompute).Make(z);
    small.b.In(Section::kOptimizerStep).On(Stream::kCompute);
    const EventId go = small.b.Event(), done = small.b.Event();
    small.b.Record(go).On(Stream::kReduce).Wait(go);
    small.b.Move({small.acc, 0, 512, 0}, small.b.All(z)).Record(done).On(Stream::kCompute);
    small.b.Launch(KernelId::kFill, {512}, {Ref{small.acc, conflict ? 256u : 512u, 512, 0}});
    small.b.Wait(done);
    if (conflict) {
      Expect(small.program(), "race");
    } else {
      ExpectClean(small.program());
    }
  }
}

// A step that writes half of the swap file and then reads half of it. The next one writes again.
// `shared`: both halves have bytes in common.
struct WriteThenRead {
  WriteThenRead(bool shared, bool read_waits, bool next_write_waits) {
    const BufferId out = b.Add("out", 512, true, Space::kPinned);
    const BufferId in = b.Add("in", 512, true, Space::kPinned);
    const BufferId file = b.Add("file", 1024, true, Space::kFile);
    const Ref first{file, 0, 512, 0}, second{file, 512, 512, 0}, across{file, 256, 512, 0};
    const EventId made = b.Event(), filled = b.Event(), written = b.Event(), read = b.Event();
    b.In(Section::kInit).Make(out).Make(in).Make(file).Record(made);
    b.On(Stream::kHost).Wait(made).Fill(out).Record(filled);
    b.On(Stream::kStorageWrite).Wait(filled);
    b.File(true, b.All(out), first).File(true, b.All(out), second);
    b.In(Section::kOptimizerStep);
    if (next_write_waits) b.Wait(read);
    b.File(true, b.All(out), first).Record(written).On(Stream::kStorage);
    if (read_waits) b.Wait(written);
    b.File(false, b.All(in), shared ? across : second).Record(read);
    b.In(Section::kDrain).On(Stream::kCompute).Wait(read).Wait(written);
  }
  ProgramBuilder b;
};

TEST_CASE("verify: reads and writes of the same bytes of the swap file wait for each other") {
  ExpectClean(WriteThenRead(false, false, false).b.program);
  ExpectClean(WriteThenRead(true, true, true).b.program);
  const Violation early_read = Expect(WriteThenRead(true, false, true).b.program, "race");
  CHECK(early_read.message.find("--> storage  file_read  file+256:512 -> in") != std::string::npos);
  const Violation early_write = Expect(WriteThenRead(true, true, false).b.program, "race");
  CHECK(early_write.message.find("--> storage_write  file_write  out -> file+0:512") !=
        std::string::npos);
}

TEST_CASE("verify: ranges are those of each rank") {
  // Rank 0 reads [0, 512) and rank 1 [512, 1024): the last rank decides whether it fits.
  Small small;
  for (Ref& ref : small.program().refs) {
    if (ref.shard_stride != 0) ref.shard_stride = 1024;
  }
  Expect(small.program(), "out_of_bounds");
}

TEST_CASE("verify: bounds and alignment") {
  Small beyond;
  beyond.program().arena_bytes[static_cast<size_t>(Space::kDevice)] -= 256;
  Expect(beyond.program(), "out_of_bounds");

  Small region;
  region.program().persistent_bytes[static_cast<size_t>(Space::kDevice)] = 1024;
  Expect(region.program(), "out_of_bounds");

  Small shifted;
  shifted.program().arena_bytes[static_cast<size_t>(Space::kDevice)] += 256;
  shifted.program().buffers[shifted.y].offset += 64;
  Expect(shifted.program(), "misaligned");

  Small extent;
  extent.program().arena_bytes[static_cast<size_t>(Space::kFile)] += 4096;
  extent.program().persistent_bytes[static_cast<size_t>(Space::kFile)] += 4096;
  extent.program().buffers[extent.file].offset += 512;
  Expect(extent.program(), "misaligned");

  Small cut;
  cut.program().refs[0].bytes -= 2;
  Expect(cut.program(), "misaligned");
}

TEST_CASE("verify: nothing is read that nothing wrote") {
  Small small;
  Erase(small.program(), Section::kInit, 1);  // the fill of `shard`
  const Violation found = Expect(small.program(), "uninitialised_read");
  CHECK(found.section == Section::kMicroStep);

  Small half;  // written only in part
  half.program().refs[0].bytes = 256;
  const Violation partly = Expect(half.program(), "uninitialised_read");
  CHECK(partly.message.find("byte 256") != std::string::npos);

  Small from_outside;  // the engine fills what the program says it fills
  Erase(from_outside.program(), Section::kInit, 1);
  from_outside.program().state_buffer = from_outside.shard;
  ExpectClean(from_outside.program());
}

TEST_CASE("verify: streams and spaces") {
  Small collective;
  collective.program().section(Section::kMicroStep)[3].stream = Stream::kCompute;
  Expect(collective.program(), "collective_order");

  Small file;
  const size_t io = Find<FileIo>(file.program(), Section::kOptimizerStep);
  for (const Stream stream : {Stream::kHost, Stream::kStorage}) {
    file.program().section(Section::kOptimizerStep)[io].stream = stream;
    Expect(file.program(), "stream_mismatch");
  }

  Small copy;
  const size_t move = Find<Copy>(copy.program(), Section::kOptimizerStep);
  copy.program().section(Section::kOptimizerStep)[move].stream = Stream::kHostToDevice;
  Expect(copy.program(), "stream_mismatch");

  Small kernel;
  for (const Stream stream : {Stream::kStorage, Stream::kStorageWrite}) {
    kernel.program().section(Section::kOptimizerStep)[0].stream = stream;
    Expect(kernel.program(), "stream_mismatch");
  }

  Small host;  // a host kernel cannot reach the device
  host.program().buffers[host.host_out].space = Space::kDevice;
  Expect(host.program(), "wrong_space");

  Small swap;
  swap.program().buffers[swap.file].space = Space::kPinned;
  Expect(swap.program(), "wrong_space");
}

TEST_CASE("verify: sizes that belong together") {
  Small gather;
  gather.program().segments[0].src.bytes -= 128;
  Expect(gather.program(), "shard_cover");

  Small copy;
  auto& list = copy.program().section(Section::kOptimizerStep);
  std::get<Copy>(list[Find<Copy>(copy.program(), Section::kOptimizerStep)].op).src.bytes -= 128;
  Expect(copy.program(), "size_mismatch");
}

TEST_CASE("verify: an in-place collective uses the rank's own part") {
  Small small;
  const BufferId all = small.b.Add("all", 1024, true);
  small.b.In(Section::kInit).On(Stream::kCompute).Make(all).Fill(all);
  small.b.In(Section::kSave).On(Stream::kGather);
  small.b.Collect(CollectiveKind::kAllGather, {{all, 0, 512, 512}, small.b.All(all)});
  ExpectClean(small.program());
  small.program().segments.back().src.shard_stride = 256;
  Expect(small.program(), "shard_cover");
}

TEST_CASE("verify: tables are read only where they exist") {
  Small buffer;
  std::get<Alloc>(buffer.program().section(Section::kInit)[0].op).buffer = 1000;
  Expect(buffer.program(), "malformed");
  Small refs;
  refs.program().refs.resize(2);
  Expect(refs.program(), "malformed");
  Small events;
  events.program().event_count = 1;
  Expect(events.program(), "malformed");
  Small never;
  never.program().section(Section::kMicroStep)[3].when = 0;
  Expect(never.program(), "malformed");
  Small kernel;
  std::get<LaunchKernel>(kernel.program().section(Section::kOptimizerStep)[0].op).kernel =
      KernelId::kCount;
  Expect(kernel.program(), "malformed");
}

TEST_CASE("verify: at most `limit` violations") {
  Small small;
  for (Buffer& buffer : small.program().buffers) buffer.offset += 8;
  CHECK(Verify(small.program(), 3).size() == 3);
  CHECK(Verify(small.program(), 1).size() == 1);
}

}  // namespace
}  // namespace zeroplan
