// The pages that quote what zeroplan prints: docs, README and the examples that plan. Each command
// that a page shows is run, and what it quotes is looked for in what the command prints: "..."
// stands where something is left out, and lines may be broken elsewhere.
//
// All quotes are written anew, from the words that are nearest to them in what is printed now, by
//   ZEROPLAN_UPDATE_GOLDEN=1 build/release/tests/tests_cli --no-skip -tc="pages:*"
// Read what that changes before it is committed.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/cli/run_binary.h"
#include "tests/core/lowering/golden_text.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using PageLines = std::vector<std::string>;
using PageWords = std::vector<std::string>;

constexpr std::string_view kIndent = "    ", kPrompt = "    $ ", kLeftOut = "...";

bool Updates() {
  const char* update = std::getenv("ZEROPLAN_UPDATE_GOLDEN");
  return update != nullptr && std::string(update) == "1";
}

void Write(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  REQUIRE(out.good());
}

PageWords SplitWords(const std::string& text) {
  std::istringstream in(text);
  PageWords words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// A word without its figures, "23.5K" as "#K": by these a quote finds its place again.
std::string Shape(const std::string& word) {
  std::string shape;
  for (const char c : word) {
    const bool figure = std::isdigit(static_cast<unsigned char>(c)) != 0 ||
                        (c == '.' && !shape.empty() && shape.back() == '#');
    if (!figure) {
      shape += c;
    } else if (shape.empty() || shape.back() != '#') {
      shape += '#';
    }
  }
  return shape;
}

// The output of a command as words, each with its line.
struct Printed {
  explicit Printed(const std::string& text) : lines(testing::SplitLines(text)) {
    for (size_t i = 0; i < lines.size(); ++i) {
      for (std::string& word : SplitWords(lines[i])) {
        words.push_back(std::move(word));
        line_of.push_back(i);
      }
    }
  }

  // The first place of these words from `at` on.
  std::optional<size_t> Find(const PageWords& piece, size_t at) const {
    const auto found = std::search(words.begin() + static_cast<std::ptrdiff_t>(at), words.end(),
                                   piece.begin(), piece.end());
    if (found == words.end()) return std::nullopt;
    return static_cast<size_t>(found - words.begin());
  }

  // The range of words from `at` on that is nearest to `piece`, as far as shapes tell: an alignment
  // of all of the piece with a part of what is printed. None: less than half of it is there.
  std::optional<std::pair<size_t, size_t>> Nearest(const PageWords& piece, size_t at) const {
    constexpr int kSame = 4, kAlike = 3, kOther = -1;  // a pair of words; kOther: a word alone, too
    struct Cell {
      int score = 0;
      size_t begin = 0;  // the range's first word
      int alike = 0;
    };
    const size_t count = words.size() - at;
    std::vector<std::string> shapes;
    for (size_t j = 0; j < count; ++j) shapes.push_back(Shape(words[at + j]));
    std::vector<Cell> above(count + 1), row(count + 1);
    for (size_t j = 0; j <= count; ++j) above[j].begin = j;
    for (const std::string& word : piece) {
      const std::string shape = Shape(word);
      row[0] = {above[0].score + kOther, 0, above[0].alike};
      for (size_t j = 1; j <= count; ++j) {
        const bool alike = shape == shapes[j - 1];
        row[j] = above[j - 1];
        row[j].score += !alike ? kOther : word == words[at + j - 1] ? kSame : kAlike;
        row[j].alike += alike ? 1 : 0;
        for (const Cell* other : {&above[j], &row[j - 1]}) {
          if (other->score + kOther <= row[j].score) continue;
          row[j] = *other;
          row[j].score += kOther;
        }
      }
      std::swap(above, row);
    }
    size_t end = 0;
    for (size_t j = 1; j <= count; ++j) {
      if (above[j].score > above[end].score) end = j;
    }
    if (2 * static_cast<size_t>(above[end].alike) < piece.size() || above[end].begin >= end) {
      return std::nullopt;
    }
    return std::pair{at + above[end].begin, at + end};
  }

  PageLines lines;
  PageWords words;
  std::vector<size_t> line_of;
};

// The lines of a quote between two lines "    ...".
struct Chunk {
  PageLines lines;
  std::vector<PageWords> pieces;  // between the "..." within lines
};

Chunk ChunkOf(PageLines lines) {
  Chunk chunk{std::move(lines), {{}}};
  for (const std::string& line : chunk.lines) {
    for (std::string& word : SplitWords(line)) {
      if (word == kLeftOut) {
        chunk.pieces.emplace_back();
      } else {
        chunk.pieces.back().push_back(std::move(word));
      }
    }
  }
  return chunk;
}

// Whether a line goes on with the paragraph before it.
bool GoesOn(const std::string& line) {
  const size_t margin = line.find_first_not_of(' ');
  return margin != std::string::npos && margin == kIndent.size() + 2;
}

// The lines in parts: each paragraph that leaves something out within its lines is one, and so is
// what lies between two of these.
std::vector<PageLines> PartsOf(const PageLines& lines) {
  std::vector<PageLines> parts;
  bool last_leaves_out = true;
  for (size_t i = 0; i < lines.size();) {
    PageLines paragraph = {lines[i++]};
    while (i < lines.size() && GoesOn(lines[i])) paragraph.push_back(lines[i++]);
    const bool leaves_out = ChunkOf(paragraph).pieces.size() > 1;
    if (leaves_out || last_leaves_out) parts.emplace_back();
    parts.back().insert(parts.back().end(), paragraph.begin(), paragraph.end());
    last_leaves_out = leaves_out;
  }
  return parts;
}

// Checks quotes of one page against what is printed, or writes them anew.
class Page {
 public:
  // Commands of `file` are run in a folder of their own with a copy of the JSON files of its
  // folder.
  explicit Page(const fs::path& file) : file_(file), text_(ReadWhole(file.string())) {
    REQUIRE_FALSE(text_.empty());
    for (const auto& beside : fs::directory_iterator(file.parent_path())) {
      if (beside.path().extension() == ".json") {
        fs::copy(beside.path(), own_.path(beside.path().filename()));
      }
    }
  }

  // A file that its commands read.
  void Has(const std::string& name, const std::string& text) { Write(own_.path(name), text); }

  // Counts of its commands that are run, and of those that are left: they train, or read files that
  // the page does not have.
  int run = 0, left = 0;

  void Check() {
    const PageLines lines = testing::SplitLines(text_);
    std::string now;
    for (size_t i = 0; i < lines.size();) {
      now += lines[i] + "\n";
      if (!lines[i].starts_with(kPrompt)) {
        ++i;
        continue;
      }
      std::string command = lines[i++].substr(kPrompt.size());
      while (command.ends_with('\\') && i < lines.size()) {
        command.pop_back();
        command += lines[i].substr(kIndent.size());
        now += lines[i++] + "\n";
      }
      PageLines quoted;
      for (; i < lines.size() && (lines[i].empty() || lines[i].starts_with(kIndent)) &&
             !lines[i].starts_with(kPrompt);
           ++i) {
        quoted.push_back(lines[i]);
      }
      for (; !quoted.empty() && quoted.back().empty(); --i) quoted.pop_back();
      for (const std::string& line : Quote(command, quoted)) now += line + "\n";
    }
    if (Updates()) {
      if (now != text_) Write(file_, now);
    }
    CheckKept();
  }

 private:
  // None: it is not run.
  std::optional<RunResult> Run(const std::string& command) {
    constexpr std::string_view kProgram = "zeroplan ", kShow = "cat ";
    if (command.starts_with(kShow)) {
      return RunResult{0, ReadWhole(own_.path(command.substr(kShow.size()))), ""};
    }
    if (!command.starts_with(kProgram)) return std::nullopt;
    const std::string options = command.substr(kProgram.size());
    const PageWords words = SplitWords(options);
    const bool plans = words[0] == "plan" || words[0] == "estimate" || words[0] == "config";
    if (!plans || std::count(words.begin(), words.end(), "DIR") > 0) {
      ++left;
      return std::nullopt;
    }
    ++this->run;
    RunResult result = RunZeroplan(options, "cd " + own_.path() + " && ZEROPLAN_NO_DETECT=1");
    CHECK(result.exit_code == (words[0] == "config" ? 2 : 0));  // 2: the config has slips
    return result;
  }

  // The lines that quote `command` now.
  PageLines Quote(const std::string& command, const PageLines& quoted) {
    CAPTURE(command);
    if (quoted.empty() && !command.starts_with("zeroplan ")) return quoted;
    const std::optional<RunResult> result = Run(command);
    if (!result) return quoted;
    const Printed out(result->out), err(result->err);
    PageLines now;
    size_t at = 0;
    for (size_t i = 0; i < quoted.size(); ++i) {
      PageLines lines;
      for (; i < quoted.size() && SplitWords(quoted[i]) != PageWords{std::string(kLeftOut)}; ++i) {
        lines.push_back(quoted[i]);
      }
      for (PageLines& part : PartsOf(lines)) {
        for (std::string& line : Said(ChunkOf(std::move(part)), out, err, at)) {
          now.push_back(std::move(line));
        }
      }
      if (i < quoted.size()) now.push_back(quoted[i]);
    }
    return now;
  }

  // A chunk's lines now; `at` moves behind its words in `out`.
  PageLines Said(Chunk chunk, const Printed& out, const Printed& err, size_t& at) {
    const bool whole = chunk.pieces.size() == 1;
    bool changed = false;
    for (PageWords& piece : chunk.pieces) {
      if (piece.empty() || err.Find(piece, 0)) continue;
      if (const std::optional<size_t> found = out.Find(piece, at)) {
        at = *found + piece.size();
        continue;
      }
      const auto near = out.Nearest(piece, at);
      const std::string text = fmt::format("{}", fmt::join(piece, " "));
      if (!Updates() || !near) {
        FAIL_CHECK(
            fmt::format("not printed: {}\nbut: {}", text,
                        near ? fmt::format("{}", fmt::join(out.words.begin() + near->first,
                                                           out.words.begin() + near->second, " "))
                             : "nothing like it"));
        continue;
      }
      changed = true;
      at = near->second;
      piece.assign(out.words.begin() + static_cast<std::ptrdiff_t>(near->first),
                   out.words.begin() + static_cast<std::ptrdiff_t>(near->second));
      if (!whole) continue;
      const bool ended = chunk.lines.back().ends_with('.');
      // Empty lines before its words stay.
      chunk.lines.erase(std::find_if(chunk.lines.begin(), chunk.lines.end(),
                                     [](const std::string& line) { return !line.empty(); }),
                        chunk.lines.end());
      size_t last = out.line_of[near->second - 1];
      // A paragraph that the page quotes to its end stays whole.
      while (ended && last + 1 < out.lines.size() && !out.lines[last].ends_with('.') &&
             GoesOn(std::string(kIndent) + out.lines[last + 1])) {
        ++last;
      }
      for (size_t i = out.line_of[near->first]; i <= last; ++i) {
        std::string line = out.lines[i].empty() ? "" : std::string(kIndent) + out.lines[i];
        line.resize(line.find_last_not_of(' ') + 1);
        chunk.lines.push_back(std::move(line));
      }
      while (at < out.words.size() && out.line_of[at] <= last) ++at;
    }
    return changed && !whole ? Wrapped(chunk) : chunk.lines;
  }

  // The pieces of a chunk in lines of as many columns as a page has.
  static PageLines Wrapped(const Chunk& chunk) {
    constexpr size_t kColumns = 104;
    PageWords words;
    for (const PageWords& piece : chunk.pieces) {
      if (&piece != &chunk.pieces.front()) words.emplace_back(kLeftOut);
      words.insert(words.end(), piece.begin(), piece.end());
    }
    const std::string& first = chunk.lines.front();
    PageLines lines = {first.substr(0, first.find_first_not_of(' '))};
    bool begins = true;
    for (const std::string& word : words) {
      if (!begins && lines.back().size() + 1 + word.size() > kColumns) {
        lines.push_back(std::string(kIndent) + "  ");
        begins = true;
      }
      lines.back() += (begins ? "" : " ") + word;
      begins = false;
    }
    return lines;
  }

  // Files that the commands write are equal to those of the same name in the page's folder.
  void CheckKept() {
    for (const auto& file : fs::directory_iterator(own_.path())) {
      const std::string name = file.path().filename();
      CAPTURE(name);
      const std::string text = ReadWhole(file.path().string());
      CHECK(text.find("⟦") == std::string::npos);  // a field, which is to be named as an option
      const fs::path kept = file_.parent_path() / name;
      if (!fs::exists(kept) || text == ReadWhole(kept.string())) continue;
      if (Updates()) {
        Write(kept, text);
      } else {
        FAIL_CHECK("not as kept beside the page");
      }
    }
  }

  const fs::path file_;
  const std::string text_;
  const TempDir own_;
};

// The config that docs/formats.md plans with has an optimizer and a schedule.
constexpr const char* kConfigOfDocs = R"({
  "bf16": {"enabled": true},
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 2},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": 200, "total_num_steps": 10000}}
})";

// `run`, `left`: how many of the pages' commands are run, and how many are left.
void CheckPages(const std::vector<std::string>& pages, int run, int left) {
  int all_run = 0, all_left = 0;
  for (const std::string& name : pages) {
    CAPTURE(name);
    Page page(SourcePath(name));
    if (name.starts_with("docs/")) page.Has("ds_config.json", kConfigOfDocs);
    page.Check();
    all_run += page.run;
    all_left += page.left;
  }
  CHECK(all_run == run);
  CHECK(all_left == left);
}

TEST_CASE("pages: README and examples quote what is printed and keep what is written") {
  CheckPages({"README.md", "examples/10b_on_one_32gb_gpu/README.md",
              "examples/5b_on_16_gpus/README.md", "examples/8b_on_one_24gb_gpu/README.md"},
             16, 1);
}

TEST_CASE("pages: docs quote what is printed") {
  CheckPages({"docs/checkpoints.md", "docs/commands.md", "docs/memory.md"}, 3, 0);
}

// Half a minute of processor time.
TEST_CASE("pages: what takes longer quotes what is printed, too" * doctest::skip()) {
  CheckPages({"docs/formats.md", "examples/adapters_on_one_gpu/README.md"}, 6, 2);
}

}  // namespace
}  // namespace zeroplan
