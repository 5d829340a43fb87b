// Files of data: which there are, of what kind, and what is no text.
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
// .arrow hold records, .bin, .u16 and .u32 tokens, all others text; in small letters or capitals.
// What .gz and .zst stand behind counts.
FileKind FileKindOf(const std::filesystem::path& path);
// Whether the bytes of the file are records of text: not those of a table, or compressed.
bool IsPlainText(const std::filesystem::path& path);

// The first of the files, and how many more there are. REQUIRES: there is one.
std::string FileNames(std::span<const std::filesystem::path> paths);

struct DataSelection {
  std::vector<std::filesystem::path> files;
  // What of the folders is left out, and why: sentences for the user.
  std::vector<std::string> notes;
};

// What ⟦data⟧ names: files as they are, and those of folders, in this order.
//
// Of a folder it is the regular files below it, at any depth, in byte order of their paths. Linked
// files count, linked folders are not entered: they could lead in circles. Left out are
//
//   - hidden files and folders (.git, .gitattributes),
//   - where there are records or tokens: files that describe them (README, LICENSE, *.md, a
//     dataset's own dataset_info.json and the like),
//   - where the files' names say which split they are (Hugging Face: train, validation, test), and
//     one is train: the others.
//
// A folder that `datasets` saved (save_to_disk) is the files that it names, of several splits
// those of train. Throws Error(kUsage) naming the folder if it cannot be listed, has no files, or
// has splits of which none is train.
DataSelection SelectData(std::span<const std::string> paths);
// The files alone.
std::vector<std::filesystem::path> DataFiles(std::span<const std::string> paths);

// Opens each file of ⟦data⟧ and closes it again. Throws Error(kUsage) naming the path: it cannot be
// opened, is no regular file, or all are empty; and as SelectData and CheckOneKind.
void CheckDataFiles(std::span<const std::string> paths);

// Throws Error(kUsage) if some of the files are token files and others are not; empty ones do not
// count.
void CheckOneKind(std::span<const std::filesystem::path> files);
[[noreturn]] void RefuseMixed(const std::filesystem::path& text,
                              const std::filesystem::path& tokens);

// Throws Error(kUsage) naming the path and the way out if a file of that name, or one that begins
// with these bytes, is known to be no text: images, archives, documents, weights, UTF-16, bytes
// that are 0.
void RefuseNoText(const std::filesystem::path& path, std::string_view begin);

// What of a text is none.
class TextCheck {
 public:
  // The next part of the text. Characters that are cut at its end count as broken: parts of texts
  // of any length end at a character.
  void Add(std::string_view part);
  // Throws Error(kUsage) naming `where` if the text has NUL bytes, or if more than some, and more
  // than one byte in 200, are no UTF-8, with the way out.
  void Refuse(std::string_view where) const;
  // Bytes that are no UTF-8.
  uint64_t broken() const { return broken_; }

 private:
  uint64_t bytes_ = 0;
  uint64_t broken_ = 0;
  uint64_t nul_ = 0;
};

}  // namespace zeroplan
