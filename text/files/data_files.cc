#include "text/files/data_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "text/files/byte_source.h"
#include "text/files/mapped_file.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

fs::path WithoutCompression(const fs::path& path) {
  return CompressionOf(path) == Compression::kNone ? path.filename() : path.stem();
}

constexpr std::array<std::string_view, 8> kRecordExtensions = {
    ".jsonl", ".jsonlines", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"};

// Files that lie beside data and are none.
bool DescribesData(const fs::path& path) {
  const std::string name = LowerAscii(path.filename().string());
  static constexpr std::array<std::string_view, 8> kNames = {"dataset_info.json",
                                                             "dataset_infos.json",
                                                             "state.json",
                                                             "dataset_dict.json",
                                                             "croissant.json",
                                                             "license",
                                                             "readme",
                                                             "license.txt"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name == "readme.txt" ||
         name.ends_with(".md");
}

enum class Split { kNone, kTrain, kOther };
// The split that a file's path below its folder names, as the Hub finds it: a word of a name that
// letters and digits end.
Split SplitOf(const fs::path& below) {
  static const std::map<std::string, Split> words = {
      {"train", Split::kTrain},      {"training", Split::kTrain}, {"test", Split::kOther},
      {"testing", Split::kOther},    {"eval", Split::kOther},     {"evaluation", Split::kOther},
      {"validation", Split::kOther}, {"valid", Split::kOther},    {"val", Split::kOther},
      {"dev", Split::kOther}};
  std::string word;
  Split split = Split::kNone;
  for (const char c : LowerAscii(below.string()) + "/") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    if (const auto found = words.find(word); found != words.end()) split = found->second;
    word.clear();
  }
  return split;
}

std::vector<fs::path> FilesBelow(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    std::error_code gone;  // a dangling link is no file
    if (entry->path().filename().native().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(gone)) {
      files.push_back(entry->path());
    }
    entry.increment(error);
  }
  if (error) ThrowUsage("{}: cannot list the folder: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

// A folder that `datasets` saved; false: it is none.
bool SelectSaved(const fs::path& folder, DataSelection* selection) {
  std::error_code ignored;
  const fs::path splits_file = folder / "dataset_dict.json";
  if (fs::exists(splits_file, ignored)) {
    const JsonNode document = ParseJsonText(ReadTextFile(splits_file), splits_file.string());
    const JsonNode* splits = document.Find("splits");
    std::vector<std::string> others;
    bool has_train = false;
    for (size_t i = 0; splits != nullptr && i < splits->elements.size(); ++i) {
      if (!splits->elements[i].is_string()) continue;
      const std::string& name = splits->elements[i].scalar.text();
      has_train = has_train || name == "train";
      if (name != "train") others.push_back(name);
    }
    if (!has_train) {
      ThrowUsage("{}: a dataset of the splits {}, and none is train; name the folder of one",
                 folder.string(), fmt::join(others, ", "));
    }
    if (!others.empty()) {
      selection->notes.push_back(fmt::format("{}: the split train; {} left out", folder.string(),
                                             fmt::join(others, ", ")));
    }
    return SelectSaved(folder / "train", selection);
  }
  const fs::path state_file = folder / "state.json";
  if (!fs::exists(state_file, ignored)) return false;
  const JsonNode document = ParseJsonText(ReadTextFile(state_file), state_file.string());
  const JsonNode* files = document.Find("_data_files");
  if (files == nullptr || !files->is_array() || files->elements.empty()) return false;
  for (const JsonNode& file : files->elements) {
    const JsonNode* name = file.Find("filename");
    if (name == nullptr || !name->is_string() ||
        fs::path(name->scalar.text()).filename() != name->scalar.text()) {
      ThrowUsage("{}: _data_files: a file of it has no name; save the dataset again",
                 state_file.string());
    }
    selection->files.push_back(folder / name->scalar.text());
  }
  return true;
}

void SelectFolder(const fs::path& folder, DataSelection* selection) {
  if (SelectSaved(folder, selection)) return;
  std::vector<fs::path> files = FilesBelow(folder);
  if (files.empty()) ThrowUsage("{}: the folder holds no files", folder.string());
  const auto take_out = [&](const auto& is_out) {
    const auto kept = std::stable_partition(files.begin(), files.end(),
                                            [&](const fs::path& file) { return !is_out(file); });
    std::vector<fs::path> out(kept, files.end());
    files.erase(kept, files.end());
    return out;
  };
  if (std::any_of(files.begin(), files.end(), [](const fs::path& file) {
        return FileKindOf(file) != FileKind::kText && !DescribesData(file);
      })) {
    const std::vector<fs::path> out = take_out(DescribesData);
    if (!out.empty()) {
      selection->notes.push_back(fmt::format("{}: left out, as {} no data", FileNames(out),
                                             out.size() == 1 ? "it is" : "they are"));
    }
  }
  const auto split = [&](const fs::path& file) { return SplitOf(file.lexically_relative(folder)); };
  if (std::any_of(files.begin(), files.end(),
                  [&](const fs::path& file) { return split(file) == Split::kTrain; })) {
    const std::vector<fs::path> out =
        take_out([&](const fs::path& file) { return split(file) == Split::kOther; });
    if (!out.empty()) {
      selection->notes.push_back(fmt::format(
          "{}: left out, as by {} not of the split train; ⟦validation_data⟧ may name what is "
          "validated with",
          FileNames(out), out.size() == 1 ? "its name it is" : "their names they are"));
    }
  }
  selection->files.insert(selection->files.end(), files.begin(), files.end());
}

// What a file is by the end of its name, and what to do with it.
struct Format {
  std::string_view extensions;  // " .png .jpg "
  std::string_view what, way_out;
};
constexpr std::string_view kAsText = "write its text to a file first";
constexpr std::array kFormats = {
    Format{" .png .jpg .jpeg .gif .webp .bmp .tif .tiff .heic .ico ", "an image",
           "remove it; zeroplan trains on text"},
    Format{" .mp3 .wav .ogg .flac .m4a .mp4 .mkv .avi .mov .webm ", "sound or video",
           "remove it; zeroplan trains on text"},
    Format{" .pdf ", "a PDF",
           "write its text to a file first, as pdftotext FILE.pdf FILE.txt does"},
    Format{" .docx .odt .epub .pptx .doc .ppt ", "a document of an office program",
           "write its text to a file first, as pandoc FILE -t plain -o FILE.txt does"},
    Format{" .xlsx .xls .ods ", "a spreadsheet", "save it as CSV"},
    Format{" .zip .tar .tgz .7z .rar .jar .whl ", "an archive", "unpack it"},
    Format{" .bz2 ", "compressed by bzip2", "decompress it, as bunzip2 does, or use .gz or .zst"},
    Format{" .xz .lzma ", "compressed by xz", "decompress it, as unxz does, or use .gz or .zst"},
    Format{" .lz4 .br .snappy .z ", "compressed", "decompress it, or use .gz or .zst"},
    Format{" .safetensors .gguf .ggml .pt .pth .ckpt .onnx .h5 .pkl .pickle ",
           "the weights or objects of a program", "remove it"},
    Format{" .npy .npz ", "an array of numpy",
           "write token ids as a token file: uint16 as FILE.u16, uint32 as FILE.u32 (tofile)"},
    Format{" .feather .orc .avro .msgpack .tfrecord .mdb .lmdb .db .sqlite .sqlite3 ",
           "a table of another kind", "write it as .parquet, .csv or .jsonl"},
    Format{" .exe .dll .so .o .a .class .pyc ", "a program", "remove it"}};

// What a file is by its first bytes.
struct Signature {
  std::string_view begins, what, way_out;
};
using std::string_view_literals::operator""sv;
constexpr std::array kSignatures = {
    Signature{"\x89PNG"sv, "a PNG image", "remove it"},
    Signature{"\xFF\xD8\xFF"sv, "a JPEG image", "remove it"},
    Signature{"GIF8"sv, "a GIF image", "remove it"},
    Signature{"RIFF"sv, "an image, sound or video (RIFF)", "remove it"},
    Signature{"%PDF-"sv, "a PDF", "write its text to a file first, as pdftotext does"},
    Signature{"PK\x03\x04"sv, "a zip archive, or a document of an office program", kAsText},
    Signature{"\x1F\x8B"sv, "compressed by gzip", "let its name end in .gz"},
    Signature{"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "let its name end in .zst"},
    Signature{"BZh"sv, "compressed by bzip2", "decompress it"},
    Signature{"\xFD\x37zXZ"sv, "compressed by xz", "decompress it"},
    Signature{"7z\xBC\xAF"sv, "a 7z archive", "unpack it"},
    Signature{"Rar!"sv, "a rar archive", "unpack it"},
    Signature{"PAR1"sv, "a Parquet table", "let its name end in .parquet"},
    Signature{"ARROW1"sv, "an Arrow table", "let its name end in .arrow"},
    Signature{"GGUF"sv, "weights in GGUF", "remove it"},
    Signature{"\x93NUMPY"sv, "an array of numpy", "write token ids as a token file, .u16 or .u32"},
    Signature{"\x89HDF"sv, "an HDF5 file", "write its text to a file first"},
    Signature{"SQLite format 3"sv, "a database of SQLite", "write its texts as .csv or .jsonl"},
    Signature{"\x7F"
              "ELF"sv,
              "a program", "remove it"},
    Signature{"\xD0\xCF\x11\xE0"sv, "a document of an office program", kAsText},
    Signature{"\xFF\xFE"sv, "text in UTF-16, not UTF-8",
              "convert it, as iconv -f UTF-16 -t UTF-8 FILE > NEW does"},
    Signature{"\xFE\xFF"sv, "text in UTF-16, not UTF-8",
              "convert it, as iconv -f UTF-16 -t UTF-8 FILE > NEW does"}};

}  // namespace

FileKind FileKindOf(const fs::path& path) {
  const fs::path name = WithoutCompression(path);
  const std::string extension = KindSuffix(name);
  if (std::find(kRecordExtensions.begin(), kRecordExtensions.end(), extension) !=
      kRecordExtensions.end()) {
    return FileKind::kRecords;
  }
  return IsTokenFile(name) ? FileKind::kTokens : FileKind::kText;
}

bool IsPlainText(const fs::path& path) {
  return CompressionOf(path) == Compression::kNone && KindSuffix(path) != ".parquet" &&
         KindSuffix(path) != ".arrow";
}

std::string FileNames(std::span<const fs::path> paths) {
  const std::string first = paths.front().string();
  return paths.size() == 1 ? first : fmt::format("{} and {} more", first, paths.size() - 1);
}

DataSelection SelectData(std::span<const std::string> paths) {
  DataSelection selection;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      SelectFolder(path, &selection);
    } else {
      selection.files.emplace_back(path);
    }
  }
  return selection;
}

std::vector<fs::path> DataFiles(std::span<const std::string> paths) {
  return SelectData(paths).files;
}

void CheckDataFiles(std::span<const std::string> paths) {
  const std::vector<fs::path> files = DataFiles(paths);
  bool is_empty = !paths.empty();
  for (const fs::path& file : files) is_empty = MappedFile::Open(file).size() == 0 && is_empty;
  if (is_empty) ThrowUsage("{}: no text in it", paths[0]);
  CheckOneKind(files);
}

void CheckOneKind(std::span<const fs::path> files) {
  const fs::path* text = nullptr;
  const fs::path* tokens = nullptr;
  for (const fs::path& file : files) {
    std::error_code error;
    if (fs::file_size(file, error) == 0) continue;
    (IsTokenFile(file) ? tokens : text) = &file;
    if (text != nullptr && tokens != nullptr) RefuseMixed(*text, *tokens);
  }
}

void RefuseMixed(const fs::path& text, const fs::path& tokens) {
  ThrowUsage(
      "{} is text and {} is a file of tokens: one run reads one kind; turn the text into tokens "
      "with 'zeroplan data tokenize'",
      text.string(), tokens.string());
}

void RefuseNoText(const fs::path& path, std::string_view begin) {
  const std::string extension = KindSuffix(WithoutCompression(path));
  for (const Format& format : kFormats) {
    if (!extension.empty() &&
        format.extensions.find(" " + extension + " ") != std::string_view::npos) {
      ThrowUsage("{}: {} by its name, no text; {}", path.string(), format.what, format.way_out);
    }
  }
  for (const Signature& signature : kSignatures) {
    if (begin.starts_with(signature.begins)) {
      ThrowUsage("{}: {} by its first bytes; {}", path.string(), signature.what, signature.way_out);
    }
  }
  if (begin.find('\0') != std::string_view::npos) {
    TextCheck check;
    check.Add(begin);
    check.Refuse(path.string());
  }
}

void TextCheck::Add(std::string_view part) {
  bytes_ += part.size();
  nul_ += static_cast<uint64_t>(std::count(part.begin(), part.end(), '\0'));
  if (IsValidUtf8(part)) return;
  // Each byte that is no part of a character.
  for (size_t at = 0; at < part.size();) {
    const size_t length = Utf8Length(part[at]);
    if (length > 0 && at + length <= part.size() && IsValidUtf8(part.substr(at, length))) {
      at += length;
    } else {
      ++broken_;
      ++at;
    }
  }
}

void TextCheck::Refuse(std::string_view where) const {
  if (nul_ > 0) {
    ThrowUsage(
        "{}: has {} bytes that are 0, which no text has; if it is text of another encoding, "
        "convert it, as iconv -f UTF-16 -t UTF-8 FILE > NEW does; else remove it",
        where, nul_);
  }
  if (broken_ > std::max<uint64_t>(4, bytes_ / 200)) {
    ThrowUsage(
        "{}: {} of its {} bytes are no UTF-8; if it is text of another encoding, convert it, as "
        "iconv -f LATIN1 -t UTF-8 FILE > NEW does; else remove it",
        where, broken_, bytes_);
  }
}

}  // namespace zeroplan
