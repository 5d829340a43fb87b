#include "executor/checkpoint/safetensors.h"

#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

std::string FileText(uint64_t length, std::string_view header, std::string_view data) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  text += header;
  text += data;
  return text;
}
std::string FileText(std::string_view header, std::string_view data) {
  return FileText(header.size(), header, data);
}

class Folder : public FastTempDir {
 public:
  std::string Write(std::string_view text) const {
    const std::string file = path() + "/t.safetensors";
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
};

TEST_CASE("safetensors: what is written comes back, in any order and in pieces") {
  const TempDir folder;
  const std::string path = folder.path() + "/a.safetensors";
  const std::vector<SafetensorsPlan::Tensor> tensors = {
      {"b", {2, 3}}, {"a|with|bars", {7}}, {"scalar", {}}, {"empty", {0, 4}}, {"\"odd\"\n", {1}}};
  SafetensorsWriter writer(path, PlanSafetensors(tensors, {{"key", "value"}}));
  const std::vector<float> b = {1, 2, 3, 4, 5, 6}, a = {0.1f, -0.0f, 1e-45f, 3e38f, 5, 6, 7};
  writer.WriteAt(1, 3, std::span(a).subspan(3));
  writer.WriteAt(0, 0, b);
  writer.WriteAt(1, 0, std::span(a).first(3));
  writer.WriteAt(2, 0, std::vector<float>{42});
  CHECK_THROWS_AS(writer.WriteAt(0, 1, b), CheckFailure);
  writer.Finish();
  CHECK(std::filesystem::file_size(path) == writer.plan().file_bytes);

  const SafetensorsFile file = SafetensorsFile::Open(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"key", "value"}});
  CHECK(file.entries().size() == 5);
  CHECK(file.header_hash() == HashBytes(std::as_bytes(std::span(writer.plan().header))));
  CHECK(writer.plan().header.size() % 8 == 0);
  std::vector<float> got(7);
  file.ReadFloats(*file.Find("a|with|bars"), 0, got);
  CHECK(std::memcmp(got.data(), a.data(), 28) == 0);
  got.resize(2);
  file.ReadFloats(*file.Find("b"), 3, got);
  CHECK(got == std::vector<float>{4, 5});
  CHECK(file.Find("b")->shape == std::vector<uint64_t>{2, 3});
  CHECK(file.Find("scalar")->elements == 1);
  CHECK(file.Find("empty")->elements == 0);
  CHECK(file.Find("\"odd\"\n") != nullptr);
  CHECK(file.Find("c") == nullptr);
  CHECK_THROWS_AS(file.ReadFloats(*file.Find("b"), 5, got), CheckFailure);
}

TEST_CASE("safetensors: 16-bit values widen exactly, at odd addresses too") {
  const Folder folder;
  const auto f16 = [](uint16_t bits) {  // by definition
    const int exponent = (bits >> 10) & 31;
    const double mantissa = (bits & 1023) / 1024.0;
    double value =
        exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
    if (exponent == 31) value = (bits & 1023) != 0 ? NAN : INFINITY;
    return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
  };
  std::string data(1, 'x');
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    data += static_cast<char>(bits & 255);
    data += static_cast<char>(bits >> 8);
  }
  for (const char* dtype : {"F16", "BF16"}) {
    const std::string header =
        fmt::format(R"({{"pad":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},)"
                    R"("t":{{"dtype":"{}","shape":[65536],"data_offsets":[1,131073]}}}})",
                    dtype);
    const SafetensorsFile file = SafetensorsFile::Open(folder.Write(FileText(header, data)));
    std::vector<float> values(65536);
    file.ReadFloats(*file.Find("t"), 0, values);
    size_t wrong = 0;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float expected =
          dtype[0] == 'F' ? f16(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits << 16);
      const bool same = std::isnan(expected) ? std::isnan(values[bits])
                                             : std::bit_cast<uint32_t>(values[bits]) ==
                                                   std::bit_cast<uint32_t>(expected);
      wrong += same ? 0 : 1;
    }
    CHECK(wrong == 0);
    std::vector<float> one(1);
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { file.ReadFloats(*file.Find("pad"), 0, one); }),
              "'pad' has dtype U8"));
  }
}

TEST_CASE("safetensors: hostile files are errors") {
  const Folder folder;
  const auto tensor = [](std::string_view body) { return fmt::format(R"({{"t":{{{}}}}})", body); };
  const std::string four(4, '\0'), eight(8, '\0');
  struct Case {
    std::string text;
    std::string message;
  };
  const std::string good = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
  REQUIRE_NOTHROW(SafetensorsFile::Open(folder.Write(FileText(tensor(good), four))));
  REQUIRE_NOTHROW(SafetensorsFile::Open(folder.Write(FileText("{}  ", ""))));
  const std::vector<Case> cases = {
      {"", "too few"},
      {std::string(7, '\0'), "too few"},
      {FileText(0, "", ""), "does not begin with '{'"},
      {FileText(~uint64_t{0}, "{}", ""), "past the limit"},
      {FileText(~uint64_t{0} - 7, "{}", ""), "past the limit"},
      {FileText(100'000'001, "{}", ""), "past the limit"},
      {FileText(3, "{}", ""), "the file ends after 2"},
      {FileText(99'999'999, "{}", ""), "the file ends after 2"},
      {FileText("[]", ""), "does not begin with '{'"},
      {FileText(" {}", ""), "does not begin with '{'"},
      {FileText("{", ""), "not valid JSON"},
      {FileText("{} x", ""), "not valid JSON"},
      {FileText("{\"t\":1,}", ""), "not valid JSON"},
      {FileText(std::string("{\"\xff\":1}"), ""), "not valid JSON"},
      {FileText(std::string("{\"a\0b\":1}", 9), ""), "not valid JSON"},
      {FileText("{" + std::string(100'000, '['), ""), "not valid JSON"},
      {FileText("{\"t\":" + std::string(100'000, '['), ""), "nested too deeply"},
      {FileText("{\"t\":{\"shape\":[[[[1]]]]}}", ""), "nested too deeply"},
      {FileText("{\"t\":1}", ""), "'t' is not described by an object"},
      {FileText("{\"t\":[1]}", ""), "'t' is not described by an object"},
      {FileText("{\"t\":null}", ""), "'t' is not described by an object"},
      {FileText(tensor(R"("shape":[1],"data_offsets":[0,4])"), four), "has no dtype"},
      {FileText(tensor(R"("dtype":"F32","data_offsets":[0,4])"), four), "has no shape"},
      {FileText(tensor(R"("dtype":"F32","shape":[1])"), four), "has no data_offsets"},
      {FileText(tensor(good + R"(,"more":1)"), four), "unknown key 'more'"},
      {FileText(tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), four),
       "unknown dtype 'F33'"},
      {FileText(tensor(R"("dtype":7,"shape":[1],"data_offsets":[0,4])"), four), "not a string"},
      {FileText(tensor(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), four), "not an array"},
      {FileText(tensor(R"("dtype":"F32","shape":{},"data_offsets":[0,4])"), four), "not an array"},
      {FileText(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), four),
       "not a non-negative integer"},
      {FileText(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), four),
       "not a non-negative integer"},
      {FileText(tensor(R"("dtype":"F32","shape":[1e3],"data_offsets":[0,4])"), four),
       "not a non-negative integer"},
      {FileText(tensor(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), four),
       "not a non-negative integer"},
      {FileText(tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4])"),
                four),
       "not a non-negative integer"},
      {FileText(tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
                ""),
       "overflows"},
      {FileText(tensor(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"),
                four),
       "overflows"},
      {FileText(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), four), "two"},
      {FileText(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), eight), "two"},
      {FileText(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), four), "outside"},
      {FileText(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), four), "outside"},
      {FileText(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0])"),
                four),
       "outside"},
      {FileText(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), four),
       "not a non-negative integer"},
      {FileText(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), four),
       "of shape [2] and dtype F32 takes 8 bytes, its data_offsets give 4"},
      {FileText(tensor(R"("dtype":"BF16","shape":[1],"data_offsets":[0,4])"), four), "takes 2"},
      {FileText(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), eight), "gap"},
      {FileText(tensor(good), eight), "4 bytes behind the last tensor"},
      {FileText("{}", four), "4 bytes behind"},
      {FileText(fmt::format(R"({{"a":{{{}}},"b":{{{}}}}})", good, good), four), "overlapping"},
      {FileText(fmt::format(R"({{"a":{{{}}},"a":{{{}}}}})", good, good), four), "'a' twice"},
      {FileText(tensor(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), four),
       "'dtype' twice"},
      {FileText(R"({"__metadata__":[]})", ""), "__metadata__ is not an object"},
      {FileText(R"({"__metadata__":{"a":1}})", ""), "key 'a': not a string"},
  };
  CHECK(cases.size() >= 25);
  for (const Case& c : cases) {
    CAPTURE(c.message);
    const std::string path = folder.Write(c.text);
    const auto message = ErrorOf(ExitCode::kUsage, [&] { SafetensorsFile::Open(path); });
    CHECK(Has(message, c.message));
    CHECK(Has(message, path));
    CHECK(message.size() < 1000);
  }
}

TEST_CASE("safetensors: a header of 80,000 tensors is written and read in linear time" *
          doctest::test_suite("timing")) {
  const Folder folder;
  constexpr size_t kTensors = 80'000;
  std::vector<SafetensorsPlan::Tensor> tensors;
  for (size_t i = 0; i < kTensors; ++i) tensors.push_back({fmt::format("tensor.{}", i), {1}});
  const std::string path = folder.path() + "/many.safetensors";
  const auto begin = std::chrono::steady_clock::now();
  SafetensorsWriter writer(path, PlanSafetensors(tensors));
  writer.Finish();
  const SafetensorsFile file = SafetensorsFile::Open(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK(file.entries().size() == kTensors);
  CHECK(file.Find("tensor.79999") != nullptr);
  CHECK(seconds.count() < 8);  // 0.4 s; quadratic it was 103 s
}

TEST_CASE("safetensors: random damage is an error or a valid file, never worse") {
  const Folder folder;
  const std::string path = folder.path() + "/g.safetensors";
  SafetensorsWriter writer(
      path, PlanSafetensors(std::vector<SafetensorsPlan::Tensor>{{"a", {3}}, {"b", {2, 2}}}));
  writer.Finish();
  std::ifstream in(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  std::mt19937 random(1);
  int opened = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int k = 0; k < flips; ++k) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    try {
      const SafetensorsFile file = SafetensorsFile::Open(folder.Write(bad));
      for (const SafetensorsEntry& entry : file.entries()) {
        std::vector<float> values(entry.elements);
        if (entry.dtype == "F32") file.ReadFloats(entry, 0, values);
      }
      ++opened;
    } catch (const Error&) {
    }
  }
  CHECK(opened < 3000);
}

}  // namespace
}  // namespace zeroplan
