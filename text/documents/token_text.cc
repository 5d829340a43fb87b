#include "text/documents/token_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/documents/tokenize_files.h"
#include "text/files/mapped_file.h"
#include "text/files/token_dataset.h"
#include "text/files/token_file.h"

namespace zeroplan {

namespace fs = std::filesystem;

std::string FirstDocument(const Tokenizer& tokenizer, const fs::path& path) {
  constexpr uint64_t kMostTokens = 400;
  constexpr size_t kMostBytes = 1200;
  const MappedFile file = MappedFile::Open(path);
  const TokenFileExtent extent = FindTokens(file, path);
  if (extent.documents == 0 || extent.count == 0) return "";
  uint64_t end = extent.count;
  if (extent.documents > 1) {
    std::memcpy(&end, file.bytes().data() + extent.documents_offset + sizeof end, sizeof end);
  }
  std::string text = TokensAsText(tokenizer, path,
                                  {0, std::min(end, kMostTokens), extent.mask_offset.has_value()});
  text.erase(0, text.find('\n') + 1);  // "-- document 1, token 0 --"
  const bool cut = end > kMostTokens || text.size() > kMostBytes;
  if (text.size() > kMostBytes) text.resize(PreviousStart(text, kMostBytes + 1));
  return cut ? text + "..." : text;
}

std::string TokensAsText(const Tokenizer& tokenizer, const fs::path& path,
                         const ShowOptions& options) {
  if (!IsTokenFile(path)) ThrowUsage("{}: is no token file (.bin, .u16, .u32)", path.string());
  const MappedFile file = MappedFile::Open(path);
  const TokenFileExtent extent = FindTokens(file, path);
  CheckOrigin(extent, path, tokenizer);
  if (options.mask && extent.documents == 0) {
    ThrowUsage("⟦mask⟧: {} does not say what counts in the loss; leave it out", path.string());
  }
  const std::string name = path.string();
  TokenDataset data = TokenDataset::Open({&name, 1});
  data.SetVocab(tokenizer.vocab_size());
  const uint64_t begin = std::min(options.begin, data.size());
  std::vector<int32_t> ids(std::min(options.count, data.size() - begin));
  if (ids.empty()) return "";
  try {
    data.Read(begin, ids);
  } catch (const Error& error) {
    // An id that no token has may be damage.
    if (error.code() == ExitCode::kUsage) RefuseDamaged(file, path);
    throw;
  }

  const auto document_begin = [&](uint64_t document) {
    uint64_t at = 0;
    std::memcpy(&at, file.bytes().data() + extent.documents_offset + sizeof at * document,
                sizeof at);
    return at;
  };
  const auto counts = [&](uint64_t at) {
    if (!extent.mask_offset) return true;
    return (std::to_integer<unsigned>(file.bytes()[*extent.mask_offset + at / 8]) >> at % 8 & 1) !=
           0;
  };
  // The first document that begins behind the first token, or with it.
  uint64_t next = 0;
  for (uint64_t last = extent.documents; next < last;) {
    const uint64_t middle = next + (last - next) / 2;
    if (document_begin(middle) < begin) {
      next = middle + 1;
    } else {
      last = middle;
    }
  }
  std::string text;
  for (size_t from = 0; from < ids.size();) {
    uint64_t end = ids.size();
    if (next < extent.documents && document_begin(next) == begin + from) {
      text += fmt::format("{}-- document {}, token {} --\n", text.empty() ? "" : "\n", next + 1,
                          begin + from);
      ++next;
    }
    if (next < extent.documents) end = std::min(end, document_begin(next) - begin);
    const std::span<const int32_t> document = std::span(ids).subspan(from, end - from);
    if (!options.mask) {
      text += tokenizer.Decode(document, false);
    } else {
      // What a token looks like may depend on those before: each run of tokens is what it adds.
      std::string before;
      for (size_t first = 0, last = 0; first < document.size(); first = last) {
        const bool counted = counts(begin + from + first);
        while (last < document.size() && counts(begin + from + last) == counted) ++last;
        std::string all = tokenizer.Decode(document.first(last), false);
        const std::string added =
            all.starts_with(before)
                ? all.substr(before.size())
                : tokenizer.Decode(document.subspan(first, last - first), false);
        text += counted ? "[[" + added + "]]" : added;
        before = std::move(all);
      }
    }
    from = end;
  }
  return text;
}

}  // namespace zeroplan
