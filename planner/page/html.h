// A page that a browser shows from disk: one file, without scripts, that fetches nothing. All texts
// passed in are plain; they are escaped here, and nowhere else.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zeroplan {

// `text` escaped so that HTML and SVG show it as it is, in elements and in quoted attributes.
// Control characters, which neither allows, become U+FFFD, and so do bytes that are not UTF-8.
std::string EscapeHtml(std::string_view text);

// A table of numbers below a picture.
struct PageTable {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;  // as many cells as heads
  size_t text_columns = 1;                     // the first columns are text, the others numbers
  bool last_is_text = false;                   // the last column is text too, which may be long
  std::vector<size_t> marked;                  // rows in bold
  std::string note;                            // below the table; "": none
  bool folded = false;                         // shown when the reader asks for it
};

// A colour of a picture, and its meaning.
struct LegendEntry {
  std::string css_class;  // one of planner/page/svg.h's colours: "c0"
  std::string name;
  enum class Shape : uint8_t { kBox, kLine, kDot, kRing } shape = Shape::kBox;
};

// A picture, drawn twice because text cannot shrink with its picture and stay legible: for wide
// windows and paper, and for phones.
struct Picture {
  std::string id;     // the section's id: "memory"; letters and hyphens
  std::string title;  // "Memory of one GPU at its peak"
  std::string about;  // describes the picture, in a sentence or two
  std::vector<LegendEntry> legend;
  std::string wide, narrow;  // SVG; empty: this section is a table only
  PageTable table;
  bool needs_table = false;  // the table explains the picture's letters

  // Draws a chart of planner/page/charts.h.
  template <typename Chart>
  void Draw(std::string (*draw)(const Chart& chart, int width), const Chart& chart) {
    wide = draw(chart, 960);  // CSS pixels
    narrow = draw(chart, 360);
  }
};

// The page's origin: the command, its assumptions and notes.
struct PageOrigin {
  std::string command;               // the command line, quoted for a shell
  std::vector<std::string> assumed;  // in the form of the text report: "--micro-batch 1"
  std::vector<std::string> notes;    // guessed figures and the like
};

struct Page {
  PageOrigin origin;
  std::string title;               // "5B on 16 GPUs: plan"
  std::string answer;              // one sentence below it; "": none
  std::vector<std::string> facts;  // lines below that: model, machines, batch
  std::vector<std::pair<std::string, std::string>> figures;  // "a step", "3.30 s": the answer
  std::vector<std::string> findings;                         // paragraphs
  std::vector<std::string> details;                          // more of them, folded behind a line
  std::string details_title = "Why, and what would change it";
  std::vector<Picture> pictures;

  void Add(std::optional<Picture> picture) {
    if (picture) pictures.push_back(std::move(*picture));
  }
};

// Folds long tables behind their first rows, and the page's origin.
std::string RenderPage(const Page& page);

// The pictures alone as a page, for a frame of another page: drawn small, in as many columns as
// there is room for, with folded tables. Class "light" or "dark" of its <html> chooses the colours;
// without a class they follow the reader's system.
std::string RenderPictures(const Page& page);

}  // namespace zeroplan
