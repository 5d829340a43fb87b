// A page that a browser shows from disk: one file, without scripts and without anything fetched.
// Every text that goes in is plain; it is escaped here, and nowhere else.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zeroplan {

// `text` so that HTML and SVG show it as it is, in elements and in quoted attributes. Control
// characters, which neither may hold, become U+FFFD, and so does what is no UTF-8.
std::string EscapeHtml(std::string_view text);

// Numbers below a picture.
struct PageTable {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;  // as many cells as heads
  size_t text_columns = 1;                     // this many first ones are read, the others compared
  bool last_is_text = false;                   // so is the last, which may be long
  std::vector<size_t> marked;                  // rows in bold
  std::string note;                            // below it; "": none
};

// What a colour of a picture stands for.
struct LegendEntry {
  std::string css_class;  // of planner/page/svg.h's colours: "c0"
  std::string name;
  enum class Shape : uint8_t { kBox, kLine, kDot, kRing } shape = Shape::kBox;
};

// Drawn twice, as text cannot shrink with its picture and stay legible: for wide windows and for
// paper, and for those of a phone.
struct Picture {
  std::string id;     // of the section: "memory"; letters and hyphens
  std::string title;  // "Memory of one GPU at its peak"
  std::string about;  // what one sees, in a sentence or two
  std::vector<LegendEntry> legend;
  std::string wide, narrow;  // SVG; empty: this section is a table only
  PageTable table;
  bool needs_table = false;  // which says what the picture's letters are

  // Of planner/page/charts.h.
  template <typename Chart>
  void Draw(std::string (*draw)(const Chart& chart, int width), const Chart& chart) {
    wide = draw(chart, 960);  // CSS pixels
    narrow = draw(chart, 360);
  }
};

// What a page says of how it was made.
struct PageOrigin {
  std::string command;               // the command line, as a shell takes it
  std::vector<std::string> assumed;  // as the text report has them: "--micro-batch 1"
  std::vector<std::string> notes;    // guessed figures and the like
};

struct Page {
  PageOrigin origin;
  std::string title;               // "5B on 16 GPUs: plan"
  std::vector<std::string> facts;  // lines below it: model, machines, batch
  std::vector<std::pair<std::string, std::string>> figures;  // "a step", "3.30 s": the answer
  std::vector<std::string> findings;                         // paragraphs
  std::vector<Picture> pictures;

  void Add(std::optional<Picture> picture) {
    if (picture) pictures.push_back(std::move(*picture));
  }
};

std::string RenderPage(const Page& page);

// The pictures alone as a page, for a frame of another page: drawn small, in as many columns as
// there is room for, with folded tables. Class "light" or "dark" of its <html> chooses the colours;
// without one they are what the reader's system asks for.
std::string RenderPictures(const Page& page);

}  // namespace zeroplan
