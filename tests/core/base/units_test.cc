#include "core/base/units.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "core/base/error.h"

namespace zeroplan {
namespace {

TEST_CASE("units: counts are exact") {
  CHECK(ParseCount("1", "n") == 1);
  CHECK(ParseCount("125000000", "n") == 125'000'000);
  CHECK(ParseCount("10B", "n") == 10'000'000'000);
  CHECK(ParseCount("10b", "n") == 10'000'000'000);
  CHECK(ParseCount("1.5B", "n") == 1'500'000'000);
  CHECK(ParseCount("1.5e9", "n") == 1'500'000'000);
  CHECK(ParseCount("1.5E+9", "n") == 1'500'000'000);
  CHECK(ParseCount("2k", "n") == 2000);
  CHECK(ParseCount("350M", "n") == 350'000'000);
  CHECK(ParseCount("1T", "n") == 1'000'000'000'000);
  CHECK(ParseCount("0.5K", "n") == 500);
  CHECK(ParseCount(".5K", "n") == 500);
  CHECK(ParseCount("1000e-3", "n") == 1);
  CHECK(ParseCount("1.000", "n") == 1);
  // A double would round both.
  CHECK(ParseCount("9007199254740993", "n") == 9007199254740993u);
  CHECK(ParseCount("9223372036854775807", "n") == 9223372036854775807u);
  CHECK(ParseCount("9223372036.854775807B", "n") == 9223372036854775807u);
}

TEST_CASE("units: what is no count is refused by name") {
  for (const char* text : {"",
                           " ",
                           "0",
                           "0.0",
                           "-1",
                           "+1",
                           "1.5",
                           "1.5e0",
                           "nan",
                           "NaN",
                           "inf",
                           "1e400",
                           "1e19",
                           "9223372036854775808",
                           "18446744073709551616",
                           "10BB",
                           "10B ",
                           " 10B",
                           "10X",
                           "10GB",
                           "B",
                           "1e",
                           "1e+",
                           "1.",
                           ".",
                           "1..5",
                           "1,000",
                           "0x10",
                           "1_000",
                           "12 monkeys",
                           "1e-3",
                           "0.0005K",
                           "99999999999999999999999999999999999999999999999999",
                           "1e99999999999",
                           "1e-99999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(ParseCount(text, "--params"), doctest::Contains("--params: '"), Error);
  }
  CHECK_THROWS_AS(ParseCount(std::string("1\0", 2), "n"), Error);
  CHECK_THROWS_AS(ParseCount(std::string(100'000, '9'), "n"), Error);
}

TEST_CASE("units: bytes") {
  CHECK(ParseBytes("32GB", "m") == 32'000'000'000);
  CHECK(ParseBytes("32G", "m") == 32'000'000'000);
  CHECK(ParseBytes("32 gb", "m") == 32'000'000'000);
  CHECK(ParseBytes("80GiB", "m") == 80ull << 30);
  CHECK(ParseBytes("80gib", "m") == 80ull << 30);
  CHECK(ParseBytes("1.5GiB", "m") == 3ull << 29);
  CHECK(ParseBytes("79.6GiB", "m") == 85469849190u);  // 85469849190.4
  CHECK(ParseBytes("512MB", "m") == 512'000'000);
  CHECK(ParseBytes("512KiB", "m") == 524288);
  CHECK(ParseBytes("2TB", "m") == 2'000'000'000'000);
  CHECK(ParseBytes("1.5e9", "m") == 1'500'000'000);
  CHECK(ParseBytes("7B", "m") == 7);
  CHECK(ParseBytes("7", "m") == 7);
  for (const char* text :
       {"", "0", "0GB", "-1GB", "1.5", "1.5B", "GB", "1GBB", "1Gi", "1iB", "nan", "8589934592GiB",
        "9300PB", "1e30GB", "0.0000000001GiB", "10 GB ", "1Xb"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(ParseBytes(text, "--gpu-memory"), doctest::Contains("--gpu-memory: '"),
                         Error);
  }
  CHECK(ParseBytes("8589934591GiB", "m") == 8589934591ull << 30);
}

TEST_CASE("units: bandwidth") {
  CHECK(ParseBandwidth("25Gb", "b") == doctest::Approx(25e9 / 8));
  CHECK(ParseBandwidth("25Gb/s", "b") == doctest::Approx(25e9 / 8));
  CHECK(ParseBandwidth("400Gbps", "b") == doctest::Approx(50e9));
  CHECK(ParseBandwidth("100GB/s", "b") == doctest::Approx(100e9));
  CHECK(ParseBandwidth("1.5 TB/s", "b") == doctest::Approx(1.5e12));
  CHECK(ParseBandwidth("2GiB/s", "b") == doctest::Approx(2147483648.0));
  CHECK(ParseBandwidth("1e9", "b") == doctest::Approx(1e9));
  for (const char* text : {"", "0GB/s", "-1GB/s", "GB/s", "1G", "/s", "5/s", "nan", "inf", "1e400",
                           "25Gb/h", "25Gb/s "}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(ParseBandwidth(text, "network"), doctest::Contains("network: '"), Error);
  }
}

TEST_CASE("units: three digits") {
  CHECK(FormatBytes(0) == "0 B");
  CHECK(FormatBytes(999) == "999 B");
  CHECK(FormatBytes(1000) == "1.00 KB");
  CHECK(FormatBytes(1'500'000'000) == "1.50 GB");
  CHECK(FormatBytes(831'000'000) == "831 MB");
  CHECK(FormatBytes(999'600'000) == "1.00 GB");
  CHECK(FormatBytes(99'960'000) == "100 MB");
  CHECK(FormatBytes(std::numeric_limits<uint64_t>::max()) == "18.4 EB");
  CHECK(FormatPercent(0.0058) == "0.58");
  CHECK(FormatPercent(0.41) == "41");
  CHECK(FormatPercent(0.996) == "100");
  CHECK(FormatPercent(1.452) == "145");
  CHECK(FormatCount(999) == "999");
  CHECK(FormatCount(124'475'904) == "124M");
  CHECK(FormatCount(10'279'239'680) == "10.3B");
  CHECK(FormatCount(1'000'000'000'000'000) == "1000T");
}

TEST_CASE("units: checked arithmetic") {
  CHECK(CheckedMul(1ull << 31, 1ull << 32, "x") == 1ull << 63);
  CHECK(CheckedAdd(1, 2, "x") == 3);
  CHECK_THROWS_WITH_AS(CheckedMul(1ull << 32, 1ull << 32, "batch"), doctest::Contains("batch: "),
                       Error);
  CHECK_THROWS_AS(CheckedAdd(std::numeric_limits<uint64_t>::max(), 1, "x"), Error);
  CHECK(AlignUp(50257, 128) == 50304);
  CHECK(CeilDiv(7, 2) == 4);
}

}  // namespace
}  // namespace zeroplan
