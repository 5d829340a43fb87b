#include "core/base/error.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "core/base/dtype.h"
#include "core/base/limits.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "tests/has.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

TEST_CASE("error: checks are bugs, not user errors") {
  const int two = 2;
  CHECK_NOTHROW(ZEROPLAN_CHECK(two == 2));
  CHECK_THROWS_WITH_AS(ZEROPLAN_CHECK(two == 3, "two is {}", two),
                       doctest::Contains("two == 3: two is 2"), CheckFailure);
  CHECK_THROWS_WITH_AS(ZEROPLAN_CHECK(two == 3), doctest::Contains("error_test.cc"), CheckFailure);
}

TEST_CASE("error: fields are named as whoever asked names them") {
  CHECK_EQ(NameFields("⟦gpu_memory⟧: 3 is less than (⟦gpus⟧ 2)"),
           "--gpu-memory: 3 is less than (--gpus 2)");
  CHECK_EQ(NameFields("use ⟦offload_⟧..., or ⟦seq_len⟧", {"", '_'}), "use offload_..., or seq_len");
  for (const char* text : {"", "⟦", "⟦⟧", "⟦gpus", "gpus⟧", "⟦ gpus⟧", "⟦GPUs⟧", "/data/@@gpus"}) {
    CHECK_EQ(NameFields(text), text);
  }
}

TEST_CASE("error: codes travel with the exception") {
  try {
    ThrowRuntime("rank {} is gone", 3);
    FAIL("not reached");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    CHECK(std::string(error.what()) == "rank 3 is gone");
  }
}

TEST_CASE("error: a message is bounded and whole, whatever it quotes") {
  const std::string zero = std::string("f: a") + '\0' + "b: is not allowed";
  CHECK(std::string(Error(ExitCode::kUsage, zero).what()) == "f: a\\x00b: is not allowed");
  const std::string exact(kMostMessageBytes, 'x');
  CHECK(std::string(Error(ExitCode::kUsage, exact).what()) == exact);
  // Of characters of two bytes, which are not cut.
  std::string quoted;
  while (quoted.size() < 5'000'000) quoted += "é";
  for (const char* shift : {"", "a"}) {
    const std::string text = Error(ExitCode::kUsage, shift + quoted + "; use less").what();
    CHECK(text.size() < kMostMessageBytes + 100);
    CHECK(IsValidUtf8(text));
    CHECK(text.ends_with("éé; use less"));
    CHECK(Has(text, wording::kBytesAreLeftOut));
  }
}

std::string logged;

TEST_CASE("log: a line is bounded") {
  const LogLevel before = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  SetMessageWriter([](std::string_view text, const char* /*end*/) { logged = text; });
  LogInfo("{}: is odd", std::string(5'000'000, 'x'));
  SetMessageWriter([](std::string_view text, const char* end) {
    const std::string message = Escaped(text) + end;
    std::fwrite(message.data(), 1, message.size(), stderr);
  });
  SetLogLevel(before);
  CHECK(logged.size() < kMostMessageBytes + 100);
  CHECK(logged.ends_with("xx: is odd"));
}

TEST_CASE("dtype: names and spellings") {
  CHECK(ParseDtype("bf16", "--dtype") == Dtype::kBF16);
  CHECK(ParseDtype("BFloat16", "--dtype") == Dtype::kBF16);
  CHECK(ParseDtype("half", "--dtype") == Dtype::kF16);
  CHECK(ParseDtype("float", "--dtype") == Dtype::kF32);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    CHECK(ParseDtype(DtypeName(dtype), "x") == dtype);
  }
  CHECK(DtypeName(Dtype::kU8) == "uint8");
  CHECK_THROWS_WITH_AS(ParseDtype("fp8", "--dtype"),
                       "--dtype: 'fp8' is not allowed; use bf16, fp16 or fp32", Error);
  CHECK_THROWS_AS(ParseDtype("", "--dtype"), Error);
}

TEST_CASE("nearest name") {
  const std::vector<std::string> known = {"stage", "offload_param", "offload_optimizer", "lr"};
  CHECK(NearestName("satge", known) == "stage");
  CHECK(NearestName("offload_optimiser", known) == "offload_optimizer");
  CHECK(NearestName("offload_params", known) == "offload_param");
  CHECK(NearestName("rl", known) == "");  // one edit of two letters says nothing
  CHECK(NearestName("zebra_crossing", known) == "");
  CHECK(NearestName("", known) == "");
  CHECK(NearestName("stage", {}) == "");
}

TEST_CASE("log level") {
  const LogLevel before = GetLogLevel();
  SetLogLevel(LogLevel::kQuiet);
  CHECK(GetLogLevel() == LogLevel::kQuiet);
  LogInfo("never {}", "seen");
  SetLogLevel(before);
}

}  // namespace
}  // namespace zeroplan
