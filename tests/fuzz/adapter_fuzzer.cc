// An adapter's folder: adapter_config.json and, behind a 0 byte, the bytes of
// adapter_model.safetensors. Reading throws Error or gives a model whose adapters are within their
// limits; what is written from it reads back the same, and every tensor of the file can be read.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/families/adapter_config.h"
#include "core/model/lora.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/adapter_weights.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"
#include "tests/tiny_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zeroplan;
  static const ScratchFiles files, written;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view config = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(config.size() + 1, rest.size()));
  files.Write(kAdapterConfigFile, config);
  files.Write(kAdapterWeightsFile, rest);
  ModelSpec spec;
  const auto read = [&] {
    spec = WithAdapter(testing::TinyModel(), files.folder(), AdapterUse::kMerge);
  };
  if (!Accepts(read)) return 0;
  Need(HasAdapters(spec) && spec.lora_rank <= 65536 && spec.lora_alpha > 0);
  // The table of a rank that memory holds.
  if (spec.lora_rank > 64) return 0;
  const std::vector<ParamTensor> table = BuildParamTable(spec);
  Need(std::any_of(table.begin(), table.end(), [](const auto& row) { return row.trainable; }));
  written.Write(kAdapterConfigFile, WriteAdapterConfig(spec, "base"));
  written.Write(kAdapterWeightsFile, rest);
  const ModelSpec again = WithAdapter(testing::TinyModel(), written.folder(), AdapterUse::kMerge);
  const std::vector<ParamTensor> table_again = BuildParamTable(again);
  Need(table_again.size() == table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    Need(table[i].name == table_again[i].name && table[i].shape == table_again[i].shape &&
         table[i].trainable == table_again[i].trainable);
  }
  Accepts([&] {
    const AdapterSource source(files.folder(), spec, table);
    for (size_t i = 0; i < table.size(); ++i) {
      std::vector<float> values(table[i].elements());
      source.Read({static_cast<int>(i), StateKind::kMaster, 0, values.size()}, values);
    }
  });
  return 0;
}
