// Files of data: their selection, their kinds, and the detection of files that are no text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

enum class FileKind { kText, kRecords, kTokens };
// The kind of a file by its name: .jsonl, .jsonlines, .ndjson, .json, .csv, .tsv, .parquet and
// .arrow hold records, .bin, .u16 and .u32 tokens, all others text; in small letters or capitals. A
// suffix .gz or .zst is ignored.
FileKind FileKindOf(const std::filesystem::path& path);
inline bool HoldsRecords(const std::filesystem::path& path) {
  return FileKindOf(path) == FileKind::kRecords;
}
// Whether the file's bytes are records as text: not a table, not compressed.
bool IsPlainText(const std::filesystem::path& path);

// The first of the files, and the number of the others. REQUIRES: there is one.
std::string FileNames(std::span<const std::filesystem::path> paths);

struct DataSelection {
  std::vector<std::filesystem::path> files;
  // The files of folders that are left out, and the reasons: sentences for the user.
  std::vector<std::string> notes;
};

// The selection of ⟦data⟧: files as they are, and those of folders, in this order.
//
// A folder stands for the regular files below it, at any depth, in byte order of their paths.
// Linked files count; linked folders are not entered, because they could lead in circles. Left out
// are
//
//   - hidden files and folders (.git, .gitattributes),
//   - if there are records or tokens: files that describe them (README, LICENSE, *.md, a
//     dataset's own dataset_info.json and the like),
//   - if the files' names contain their split (Hugging Face: train, validation, test), and
//     one is train: the others.
//
// A folder that `datasets` saved (save_to_disk) stands for the files that it names, with several
// splits those of train. Throws Error(kUsage) naming the folder if it cannot be listed, has no
// files, or has splits without train.
DataSelection SelectData(std::span<const std::string> paths);
// The files alone.
std::vector<std::filesystem::path> DataFiles(std::span<const std::string> paths);

// Opens each file of ⟦data⟧ and closes it again. Throws Error(kUsage) naming the path if it cannot
// be opened or is no regular file, or if all are empty; and as SelectData and CheckOneKind.
void CheckDataFiles(std::span<const std::string> paths);

// Throws Error(kUsage) if some of the files are token files and others are not; ignores empty ones.
void CheckOneKind(std::span<const std::filesystem::path> files);
[[noreturn]] void RefuseMixed(const std::filesystem::path& text,
                              const std::filesystem::path& tokens);

// Throws Error(kUsage) naming the path, with advice, if a file with that name or these first bytes
// is known to be no text: images, archives, documents, weights, UTF-16, zero bytes.
void RefuseNoText(const std::filesystem::path& path, std::string_view begin);

// Detects texts that are not text.
class TextCheck {
 public:
  // Adds the next part of the text. Characters cut at its end count as broken: parts must end at a
  // character.
  void Add(std::string_view part);
  // Throws Error(kUsage) naming `where`, with advice, if the text has NUL bytes, or if more than
  // some, and more than one byte in 200, are not UTF-8.
  void Refuse(std::string_view where) const;
  // Bytes that are not UTF-8.
  uint64_t broken() const { return broken_; }

 private:
  uint64_t bytes_ = 0;
  uint64_t broken_ = 0;
  uint64_t nul_ = 0;
};

}  // namespace zeroplan
