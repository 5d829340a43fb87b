// States of every dtype: what goes into a checkpoint comes out, whatever layout saved it.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "core/base/hash.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/stored_state.h"
#include "executor/kernels/convert.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// What a state of `dtype` keeps of numbers.
std::vector<float> KeptAs(Dtype dtype, std::vector<float> values) {
  if (IsDynamic8(dtype)) {
    std::vector<uint8_t> codes(values.size());
    std::vector<float> scales(ScaleCount(values.size()));
    EncodeDynamic8(dtype, values, codes, scales);
    DecodeDynamic8(dtype, codes, 0, scales, values);
    return values;
  }
  for (float& value : values) {
    uint32_t bits = 0;
    WriteScalar(dtype, &bits, 0, value);
    value = ReadScalar(dtype, &bits, 0);
  }
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

struct KeptKind {
  const char* name;
  PrecisionConfig precision;
  std::array<const char*, 3> stored;  // by StateKind
};

std::vector<KeptKind> Kinds() {
  std::vector<KeptKind> kinds;
  const auto add = [&](const char* name, Dtype dtype, MasterWeights masters, Dtype moments,
                       std::array<const char*, 3> stored) {
    PrecisionConfig precision;
    precision.dtype = precision.grad_accum_dtype = dtype;
    precision.master_weights = masters;
    precision.moment_dtype = moments;
    kinds.push_back({name, precision, stored});
  };
  add("fp32", Dtype::kBF16, MasterWeights::kFp32, Dtype::kF32, {"F32", "F32", "F32"});
  add("split, bf16", Dtype::kBF16, MasterWeights::kSplit, Dtype::kBF16, {"F32", "BF16", "BF16"});
  add("split, 8bit", Dtype::kBF16, MasterWeights::kSplit, Dtype::kDynamic8, {"F32", "U8", "U8"});
  add("16bit, 8bit", Dtype::kBF16, MasterWeights::kParam, Dtype::kDynamic8, {"BF16", "U8", "U8"});
  add("16bit in fp16, bf16", Dtype::kF16, MasterWeights::kParam, Dtype::kBF16,
      {"F16", "BF16", "BF16"});
  return kinds;
}

// All that a run of this kind has, by tensor and state.
class KeptStates {
 public:
  KeptStates(const ParamLayout& layout, std::mt19937& words) {
    std::normal_distribution<float> normal;
    for (const ParamTensor& tensor : *layout.tensors) {
      for (const StateKind state : kStateKinds) {
        std::vector<float> values(tensor.elements());
        for (float& value : values) {
          value = normal(words) * 1e-3f;
          if (state == StateKind::kSecond) value *= value;
        }
        all_.push_back(KeptAs(StoredDtype(layout, tensor, state), std::move(values)));
      }
    }
  }

  std::span<const float> Of(int tensor, StateKind state) const {
    return all_[static_cast<size_t>(tensor) * 3 + static_cast<size_t>(state)];
  }

  // As Engine::Save, the last piece first.
  void Write(const ParamLayout& layout, std::span<StateSink* const> sinks, uint64_t piece) const {
    for (int owner = 0; owner < static_cast<int>(layout.owners()); ++owner) {
      for (const ShardRange& range : OwnerRanges(layout, owner)) {
        for (const StateKind state : kStateKinds) {
          for (uint64_t at = (range.count - 1) / piece * piece;; at -= piece) {
            const uint64_t count = std::min(piece, range.count - at), begin = range.begin + at;
            sinks[static_cast<size_t>(owner)]->Write({range.tensor, state, begin, count},
                                                     Of(range.tensor, state).subspan(begin, count));
            if (at == 0) break;
          }
        }
      }
    }
  }

  // Whether `source` has the same, read in the ranges of `layout`.
  bool Are(const StateSource& source, const ParamLayout& layout, uint64_t piece) const {
    std::vector<float> read;
    for (int owner = 0; owner < static_cast<int>(layout.owners()); ++owner) {
      for (const ShardRange& range : OwnerRanges(layout, owner)) {
        for (const StateKind state : kStateKinds) {
          for (uint64_t at = 0; at < range.count; at += piece) {
            read.assign(std::min(piece, range.count - at), -1.0f);
            const uint64_t begin = range.begin + at;
            source.Read({range.tensor, state, begin, read.size()}, read);
            if (!SameBits(read, Of(range.tensor, state).subspan(begin, read.size()))) return false;
          }
        }
      }
    }
    return true;
  }

 private:
  std::vector<std::vector<float>> all_;
};

fs::path SaveKept(const TempDir& dir, const ParamLayout& layout, const KeptStates& states,
                  uint64_t piece = 1024) {
  return SaveWith(dir.path(), layout, SmallMeta(3), {},
                  [&](std::span<StateSink* const> sinks) { states.Write(layout, sinks, piece); });
}

TEST_CASE("8 bit: groups that are read and made anew are the same") {
  std::mt19937 words(7);
  std::normal_distribution<float> normal;
  for (const Dtype dtype : {Dtype::kDynamic8, Dtype::kUnsignedDynamic8}) {
    for (const float size : {1.0f, 1e-7f, 1e-30f, 3e-38f, 1e37f}) {
      CAPTURE(size);
      std::vector<float> values(kDynamic8Group * 40 + 17);
      for (size_t i = 0; i < values.size(); ++i) {
        // Some groups of one sign, some with what is far below their largest.
        const float x = normal(words) * size * std::pow(10.0f, -static_cast<float>(i % 9));
        values[i] = dtype == Dtype::kUnsignedDynamic8 || i / kDynamic8Group % 3 == 0 ? std::abs(x)
                    : i / kDynamic8Group % 3 == 1                                    ? -std::abs(x)
                                                                                     : x;
      }
      std::fill_n(values.begin() + 5 * kDynamic8Group, kDynamic8Group, 0.0f);
      std::vector<uint8_t> codes(values.size()), again(values.size());
      std::vector<float> scales(ScaleCount(values.size())), scales_again(scales.size());
      CHECK(scales.size() == 41);
      EncodeDynamic8(dtype, values, codes, scales);
      std::vector<float> read(values.size());
      DecodeDynamic8(dtype, codes, 0, scales, read);
      EncodeDynamic8(dtype, read, again, scales_again);
      CHECK(again == codes);
      CHECK(SameBits(scales, scales_again));
      CHECK(scales[5] == 0);
      // From within a group on.
      std::vector<float> part(1000);
      DecodeDynamic8(dtype, std::span(codes).subspan(700, 1000), 700 - 512,
                     std::span(scales).subspan(2), part);
      CHECK(SameBits(part, std::span(read).subspan(700, 1000)));
    }
  }
  // The largest magnitude is kept exactly; what is not finite stays so.
  std::vector<float> values = {0.25f, -3.7f, 1.0f, 0.0f};
  std::vector<uint8_t> codes(4);
  std::vector<float> scale(1);
  EncodeDynamic8(Dtype::kDynamic8, values, codes, scale);
  CHECK(scale[0] == -3.7f);
  DecodeDynamic8(Dtype::kDynamic8, codes, 0, scale, values);
  CHECK(values[1] == -3.7f);
  CHECK(values[3] == 0);
  values[2] = std::numeric_limits<float>::quiet_NaN();
  EncodeDynamic8(Dtype::kDynamic8, values, codes, scale);
  DecodeDynamic8(Dtype::kDynamic8, codes, 0, scale, values);
  for (const float value : values) CHECK_FALSE(std::isfinite(value));
}

TEST_CASE("states of every kind: saved at one layout, read and saved again at any") {
  const std::vector<std::pair<int, int>> places = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {3, 7}};
  for (const KeptKind& kind : Kinds()) {
    CAPTURE(kind.name);
    std::mt19937 words(3);
    const KeptStates states(SmallLayout(0, 1, SmallModel(), kind.precision), words);
    for (const auto& [stage, ranks] : places) {
      CAPTURE(stage);
      CAPTURE(ranks);
      const FastTempDir dir;
      const ParamLayout layout = SmallLayout(stage, ranks, SmallModel(), kind.precision);
      const fs::path folder =
          SaveWith(dir.path(), layout, SmallMeta(3), {},
                   [&](std::span<StateSink* const> sinks) { states.Write(layout, sinks, 1024); });
      const CheckpointSource source = OpenCheckpoint(folder);
      source.Verify();
      // Layouts of other kinds start tensors elsewhere.
      CHECK(states.Are(source, SmallLayout(2, 5), 301));
      CHECK(states.Are(source, layout, 1 << 20));
      // The files have the bytes that their room was counted with, and the dtypes of the states.
      const std::vector<uint64_t> bytes = ShardFileBytes(layout);
      for (size_t owner = 0; owner < bytes.size(); ++owner) {
        const auto file = SafetensorsFile::Open(folder / ShardFileName(static_cast<int>(owner)));
        CHECK(file.file_bytes() == bytes[owner]);
        for (const ShardRange& range : OwnerRanges(layout, static_cast<int>(owner))) {
          const std::string& name = (*layout.tensors)[static_cast<size_t>(range.tensor)].name;
          for (const StateKind state : kStateKinds) {
            const auto* entry = file.Find(ShardEntryName(name, EntryKind(state), range.begin));
            REQUIRE(entry != nullptr);
            CHECK(entry->dtype == kind.stored[static_cast<size_t>(state)]);
            CHECK(entry->elements == range.count);
            if (state == StateKind::kMaster) continue;
            const auto* scales = file.Find(ShardEntryName(name, ScaleKind(state), range.begin));
            REQUIRE((scales != nullptr) == (entry->dtype == "U8"));
            if (scales != nullptr) CHECK(scales->elements == ScaleCount(range.count));
          }
        }
      }
    }
  }
}

TEST_CASE("8 bit: a checkpoint has a third of fp32's bytes") {
  PrecisionConfig light;
  light.master_weights = MasterWeights::kParam;
  light.moment_dtype = Dtype::kDynamic8;
  const uint64_t elements = SmallLayout(0, 1).param_elements();
  const uint64_t bytes = ShardFileBytes(SmallLayout(0, 1, SmallModel(), light)).front();
  const uint64_t whole = ShardFileBytes(SmallLayout(0, 1)).front();
  CHECK(whole > 12 * elements);
  CHECK(whole < 12 * elements + 16384);  // its header
  CHECK(bytes > 4 * elements);
  CHECK(bytes < 4 * elements + elements / 16 + 32768);
}

TEST_CASE("8 bit: pieces that are not whole groups are a mistake") {
  const KeptKind kind = Kinds()[2];
  std::mt19937 words(5);
  const ParamLayout layout = SmallLayout(1, 2, SmallModel(), kind.precision);
  const KeptStates states(layout, words);
  const TempDir dir;
  CHECK_THROWS_AS(SaveKept(dir, layout, states, 1000), CheckFailure);
  CHECK_NOTHROW(SaveKept(dir, layout, states, 256));
  CHECK(states.Are(OpenCheckpoint(dir.path()), layout, 256));
}

// Changes a byte of an entry's data.
void FlipByteOf(const fs::path& path, const std::string& name) {
  uint64_t offset = 0;
  {
    const auto file = SafetensorsFile::Open(path);
    const SafetensorsEntry* entry = file.Find(name);
    REQUIRE(entry != nullptr);
    uint64_t data = 0;
    for (const SafetensorsEntry& each : file.entries()) data = std::max(data, each.end);
    offset = file.file_bytes() - data + entry->end - 1;
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

TEST_CASE("8 bit: damaged codes and scales are found, and each has the other") {
  const KeptKind kind = Kinds()[2];
  std::mt19937 words(5);
  const ParamLayout layout = SmallLayout(1, 2, SmallModel(), kind.precision);
  const KeptStates states(layout, words);
  const ShardRange range = OwnerRanges(layout, 1).front();
  const std::string& tensor = (*layout.tensors)[static_cast<size_t>(range.tensor)].name;
  for (const size_t state : {EntryKind(StateKind::kSecond), ScaleKind(StateKind::kSecond)}) {
    const TempDir dir;
    const fs::path folder = SaveKept(dir, layout, states);
    FlipByteOf(folder / ShardFileName(1), ShardEntryName(tensor, state, range.begin));
    const CheckpointSource source = OpenCheckpoint(dir.path());
    const std::string expected = fmt::format("rank-0001.safetensors: {} of {}, elements {} + ",
                                             EntryKindName(state), tensor, range.begin);
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { source.Verify(); }), expected));
    std::vector<float> values(range.count);
    CHECK(Has(ErrorOf(ExitCode::kUsage,
                      [&] {
                        source.Read({range.tensor, StateKind::kSecond, range.begin, range.count},
                                    values);
                      }),
              expected));
    source.Read({range.tensor, StateKind::kFirst, range.begin, range.count}, values);
  }
  // As one who knows how to make headers of his own.
  const TempDir dir;
  const fs::path folder = SaveKept(dir, layout, states);
  const fs::path shard = folder / ShardFileName(0), meta = folder / "meta.json";
  const auto read = [](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const auto hash = [&](const std::string& text) {
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    return fmt::format("{:016x}",
                       HashBytes(std::as_bytes(std::span(text)).first(kLengthBytes + length)));
  };
  std::string text = read(shard), described = read(meta);
  const std::string before = hash(text);
  const size_t at = text.find("|adam_m_scale|0\"");
  REQUIRE(at != std::string::npos);
  text[at + std::strlen("|adam_m_scale|")] = '9';
  described.replace(described.find(before), before.size(), hash(text));
  std::ofstream(shard, std::ios::binary) << text;
  std::ofstream(meta) << SealJson(described.substr(0, described.rfind(",\n  \"digest\"")) + "\n}");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { OpenCheckpoint(dir.path()); }),
            ": codes and scales do not belong together"));
}

}  // namespace
}  // namespace zeroplan
