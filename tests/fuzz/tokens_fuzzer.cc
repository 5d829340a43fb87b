// Files of tokens and text. The first byte says what the file is called, the second how large the
// vocabulary is. Opening throws Error or gives tokens that are in the vocabulary, the same however
// they are read; what was read can be written and read back.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"
#include "text/files/token_dataset.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

constexpr int64_t kVocabularies[] = {1, 7, 256, 50'257, 65'536, 128'256, int64_t{1} << 31};

void Read(const uint8_t* data, size_t size) {
  static const ScratchFiles files;
  if (size < 2) return;
  constexpr const char* kNames[] = {"in.bin", "in.u16", "in.u32", "in.txt"};
  const int64_t vocab = kVocabularies[data[1] % std::size(kVocabularies)];
  const auto path =
      files.Write(kNames[data[0] % 4], {reinterpret_cast<const char*>(data) + 2, size - 2});
  std::optional<TokenDataset> opened;
  if (!Accepts([&] {
        opened.emplace(TokenDataset::Open(std::vector{path.string()}));
        opened->SetVocab(vocab);
      })) {
    return;
  }
  const TokenDataset& tokens = *opened;
  Need(tokens.size() > 0 && tokens.size() <= size);
  std::vector<int32_t> all(tokens.size());
  const bool readable = Accepts([&] { tokens.Read(0, all); });
  uint64_t parts = 0;
  bool checked = true;
  for (int part = 0; part < 3; ++part) {
    parts += tokens.PartSize(part, 3);
    checked =
        Accepts([&] { Need(tokens.CheckVocab(part, 3, 1 << 20) == tokens.PartSize(part, 3)); }) &&
        checked;
  }
  Need(parts == tokens.size() && checked == readable);
  Need(!tokens.Digest().empty());
  if (!readable) return;
  for (const int32_t token : all) Need(token >= 0 && token < vocab);
  std::vector<int32_t> piece(all.size() - all.size() / 2);
  tokens.Read(all.size() / 2, piece);
  Need(std::equal(piece.begin(), piece.end(), all.end() - static_cast<int64_t>(piece.size())));
  if (*std::max_element(all.begin(), all.end()) > 65'535) return;
  const auto written = files.folder() / "written.bin";
  WriteTokenFile(written, all);
  const TokenDataset back = TokenDataset::Open(std::vector{written.string()});
  std::vector<int32_t> again(back.size());
  back.Read(0, again);
  Need(again == all);
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zeroplan::Read(data, size);
  return 0;
}
