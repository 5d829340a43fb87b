// Checkpoints. An input whose first byte is even is a meta.json, which is sealed before it is read:
// refused, or written and read back as it was; without the right seal it is refused. Else it is a
// shard, with the meta.json that belongs to it: refused, or every element of every state is what
// the file holds, but for codes, which no more than read.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/families/gpt2/gpt2.h"
#include "core/model/model_fields.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/shard_writer.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"

namespace zeroplan {
namespace {

constexpr const char* kShard = "rank-0000.safetensors";

// Of the corpus.
ModelSpec Model() {
  ModelSpec spec;
  spec.name = "fuzz";
  spec.family = &Gpt2();
  spec.layers = 1;
  spec.hidden = 4;
  spec.heads = 1;
  spec.ffn = 16;
  spec.vocab = spec.padded_vocab = 8;
  spec.positions = 4;
  return spec;
}

void ReadMeta(const ScratchFiles& files, std::string_view text) {
  files.Write("meta.json", text);
  const bool unsealed = Accepts([&] { ReadCheckpointMeta(files.folder()); });
  const std::string_view body = text.substr(0, text.rfind(",\n  \"digest\": \""));
  const size_t end = body.find_last_not_of("\n}");
  const std::string sealed =
      SealJson(std::string(body.substr(0, end == std::string_view::npos ? 0 : end + 1)) + "\n}");
  Need(!unsealed || SealJson(std::string(body) + "\n}") == text);
  files.Write("meta.json", sealed);
  CheckpointMeta meta;
  if (!Accepts([&] { meta = ReadCheckpointMeta(files.folder()); })) return;
  ForEachField(meta.model, [&]<typename T>(const ModelField&, const T& value) {
    if constexpr (std::is_same_v<T, float>) Need(std::isfinite(value));
  });
  const std::string written = FormatCheckpointMeta(meta);
  files.Write("meta.json", written);
  Need(FormatCheckpointMeta(ReadCheckpointMeta(files.folder())) == written);
}

// What the one who wrote these bytes would have said of them.
CheckpointFile Describe(std::string_view bytes) {
  CheckpointFile file{kShard, bytes.size(), 0, {}};
  uint64_t header = 0;
  if (bytes.size() < sizeof header) return file;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header > bytes.size() - sizeof header) return file;
  const std::string_view data = bytes.substr(sizeof header + header);
  file.header_hash = HashBytes(std::as_bytes(std::span(bytes.substr(0, sizeof header + header))));
  Accepts([&] {
    for (const SafetensorsEntry& entry :
         ParseSafetensorsHeader(bytes.substr(sizeof header, header), data.size(), "described")
             .entries) {
      const auto stored =
          std::as_bytes(std::span(data)).subspan(entry.begin, entry.end - entry.begin);
      std::vector<uint64_t> sums(ChecksumCount(entry.elements));
      const size_t size = entry.elements == 0 ? 1 : stored.size() / entry.elements;
      if (size > 4) return;  // no checkpoint has these
      AddToChecksums(0, stored, size, sums);
      file.checksums.insert(file.checksums.end(), sums.begin(), sums.end());
    }
  });
  return file;
}

void ReadShard(const ScratchFiles& files, std::string_view bytes) {
  static const std::vector<ParamTensor> table = BuildParamTable(Model());
  CheckpointMeta meta;
  meta.model = Model();
  meta.files = {Describe(bytes)};
  files.Write("meta.json", FormatCheckpointMeta(meta));
  files.Write(kShard, bytes);
  std::optional<CheckpointSource> source;
  if (!Accepts([&] {
        source.emplace(CheckpointSource::Begin(files.folder(), Model(), table));
        const std::vector<std::string> looks = {source->LookAt(0, 1)};
        source->Complete(looks);
      })) {
    return;
  }
  source->Verify();
  const SafetensorsFile file = SafetensorsFile::Open(files.folder() / kShard);
  uint64_t expected = 0, found = 0;
  for (size_t t = 0; t < table.size(); ++t) {
    for (const StateKind state : kStateKinds) {
      std::vector<float> values(table[t].elements());
      source->Read({static_cast<int>(t), state, 0, values.size()}, values);
      expected += values.size();
      for (const SafetensorsEntry& entry : file.entries()) {
        const std::string prefix = fmt::format("{}|{}|", table[t].name, StateKindName(state));
        if (!entry.name.starts_with(prefix)) continue;
        const uint64_t begin = std::stoull(entry.name.substr(prefix.size()));
        Need(begin <= values.size() && entry.elements <= values.size() - begin);
        if (entry.dtype != "U8") {
          std::vector<float> stored(entry.elements);
          file.ReadFloats(entry, 0, stored);
          Need(stored.empty() || std::memcmp(stored.data(), values.data() + begin,
                                             stored.size() * sizeof(float)) == 0);
        }
        found += entry.elements;
      }
    }
  }
  Need(found == expected);
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const zeroplan::ScratchFiles files;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    zeroplan::ReadMeta(files, rest);
  } else {
    zeroplan::ReadShard(files, rest);
  }
  return 0;
}
