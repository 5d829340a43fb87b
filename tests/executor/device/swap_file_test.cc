#include "executor/device/swap_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "executor/device/arena.h"
#include "tests/error_of.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

std::string MessageOf(ExitCode code, const std::string& dir, uint64_t bytes) {
  return ErrorOf(code, [&] { const SwapFile file(dir, bytes, 0); });
}

TEST_CASE("swap file: keeps what is written, and leaves no name behind") {
  const TempDir dir;
  SwapFile file(dir.path(), 100'000, 7);
  CHECK(file.bytes() == 100'000);
  CHECK(std::filesystem::is_empty(dir.path()));
  std::vector<std::byte> in(70'000), out(70'000);
  for (size_t i = 0; i < in.size(); ++i) in[i] = PatternByte(i);
  file.Write(30'000, in);
  const SwapFile moved = std::move(file);
  moved.Read(30'000, out);
  CHECK(in == out);
}

TEST_CASE("swap file: one thread reads it while another writes other bytes of it") {
  const TempDir dir;
  constexpr uint64_t kHalf = 1 << 20;
  const SwapFile file(dir.path(), 2 * kHalf, 0);
  std::vector<std::byte> kept(kHalf), written(kHalf);
  FillPattern(kept, 0);
  FillPattern(written, 7);
  file.Write(0, kept);
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) file.Write(kHalf, written);
  });
  std::vector<std::byte> read(kHalf);
  int wrong = 0;
  for (int i = 0; i < 50; ++i) {
    file.Read(0, read);
    wrong += read != kept;
  }
  writer.join();
  CHECK(wrong == 0);
  file.Read(kHalf, read);
  CHECK(read == written);
}

TEST_CASE("swap file: the pattern shows how far up it was written") {
  const TempDir dir;
  const SwapFile file(dir.path(), 200'000, 0);
  file.FillWithPattern();
  CHECK(file.PatternHighWater() == 0);
  const std::vector<std::byte> zeros(10);
  file.Write(70'001, zeros);
  CHECK(file.PatternHighWater() == 70'011);
  file.Write(199'990, zeros);
  CHECK(file.PatternHighWater() == 200'000);
}

TEST_CASE("swap file: ranges outside it are bugs") {
  const TempDir dir;
  const SwapFile file(dir.path(), 100, 0);
  std::vector<std::byte> bytes(8);
  CHECK_THROWS_AS(file.Read(93, bytes), CheckFailure);
  CHECK_THROWS_AS(file.Write(93, bytes), CheckFailure);
}

TEST_CASE("swap file: a folder that cannot be used is named, with the fix") {
  const TempDir dir;
  const std::string missing = dir.path() + "/none";
  CHECK(MessageOf(ExitCode::kUsage, missing, 100).find(missing) != std::string::npos);
  CHECK(MessageOf(ExitCode::kUsage, "", 100).find("nvme_path") != std::string::npos);
  const std::string plain = dir.path() + "/plain";
  std::ofstream(plain) << "x";
  CHECK(MessageOf(ExitCode::kUsage, plain, 100).find("not a folder") != std::string::npos);
}

TEST_CASE("swap file: a disk without room is named when the file is made") {
  const TempDir dir;
  const std::string message = MessageOf(ExitCode::kRuntime, dir.path(), uint64_t{1} << 58);
  CHECK(message.find(dir.path()) != std::string::npos);
  CHECK(message.find("288230376151711744") != std::string::npos);
  CHECK(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace zeroplan
