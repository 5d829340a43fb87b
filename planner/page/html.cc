#include "planner/page/html.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/strings.h"
#include "core/base/version.h"

namespace zeroplan {
namespace {

// ---- the look of a page: light and dark by what the reader's system asks for, and on paper ----

// Colours c0 to c6 are far apart in lightness or in blue against yellow, which people who see no
// red and green tell apart; parts of a bar are parted by a gap besides.
constexpr std::string_view kLightColours =
    R"(--paper: #ffffff; --ink: #1b1f24; --dim: #57606a; --grid: #d8dee4; --soft: #f3f5f8;
  --limit: #b3261e; --mark: #eaf2fd;
  --c0: #0b66b8; --c1: #e8970c; --c2: #0a8f6a; --c3: #c45fa0; --c4: #4fb3e6; --c5: #8a8f98;
  --c6: #7a4b12;)";
constexpr std::string_view kDarkColours =
    R"(--paper: #12161c; --ink: #e6eaf0; --dim: #a0a9b5; --grid: #323a45; --soft: #1b212a;
  --limit: #ff8a80; --mark: #1c2c44;
  --c0: #4b9cf0; --c1: #f0ab3a; --c2: #2fb98f; --c3: #dd83bd; --c4: #9ad4f5; --c5: #7f8792;
  --c6: #b98a4f;)";

// Behind the colours.
constexpr std::string_view kPageRules = R"(* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 19px; line-height: 1.3; margin: 0 0 4px; }
section, footer { margin-top: 40px; }
p { margin: 6px 0; overflow-wrap: anywhere; }
.answer { font-size: 19px; line-height: 1.35; margin: 0 0 8px; }
.fact, .about, .note { color: var(--dim); }
.fact, .note { font-size: 14px; margin: 2px 0; }
.note { margin: 6px 0; }
.finding { max-width: 80ch; }
.figures { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0; }
.figures div { background: var(--soft); border-radius: 8px; padding: 8px 14px; min-width: 0; }
.figures dt { font-size: 12px; color: var(--dim); }
.figures dd { margin: 0; font-size: 18px; font-weight: 600; overflow-wrap: anywhere; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 10px 0; padding: 0;
  font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; }
.key { flex: none; width: 12px; height: 12px; border-radius: 2px; background: currentColor; }
.key.line { height: 0; width: 18px; border-top: 3px solid; border-radius: 0; background: none; }
.key.dot { border-radius: 50%; }
.key.ring { border-radius: 50%; background: none; border: 2px solid; }
.key.c0 { color: var(--c0); } .key.c1 { color: var(--c1); } .key.c2 { color: var(--c2); }
.key.c3 { color: var(--c3); } .key.c4 { color: var(--c4); } .key.c5 { color: var(--c5); }
.key.c6 { color: var(--c6); } .key.limit { color: var(--limit); } .key.ink { color: var(--ink); }
.key.dim { color: var(--dim); } .key.present { color: var(--c0); } .key.band { color: var(--grid); }
.scroll { overflow-x: auto; margin-top: 12px; }
summary { color: var(--dim); font-size: 14px; cursor: pointer; margin-top: 8px; }
summary h2 { display: inline; color: var(--ink); }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 8px; text-align: left; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }
th { color: var(--dim); font-weight: 600; }
.n { text-align: right; }
.long { white-space: normal; min-width: 320px; }
.names td:first-child { white-space: normal; min-width: 230px; }
.marked td { background: var(--mark); font-weight: 600; }
pre { margin: 0; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
svg { display: block; max-width: 100%; height: auto; }
.narrow { display: none; }
.t { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: var(--ink); }
.tick { font-size: 11px; fill: var(--dim); }
.dim { fill: var(--dim); }
.strong { font-weight: 600; }
.onpresent { fill: var(--paper); font-weight: 600; }
.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--grid); }
.base { stroke: var(--dim); }
.divider { stroke: var(--dim); stroke-dasharray: 1 3; }
.limit { stroke: var(--limit); stroke-width: 2px; stroke-dasharray: 6 3; }
.pointer { stroke: var(--ink); }
.peak { fill: var(--ink); stroke: var(--paper); stroke-width: 1.5px; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); }
.part { stroke: var(--paper); }
.faint { opacity: 0.5; }
.arrow { fill: var(--dim); }
.over { fill: transparent; }
.over:hover { fill: var(--ink); opacity: 0.15; }
.front { fill: none; stroke: var(--c0); stroke-width: 1.5px; stroke-dasharray: 4 3; }
.ring { fill: none; stroke: var(--ink); stroke-width: 2px; }
.hollow { fill: none; stroke: var(--dim); }
.series { fill: none; stroke-width: 2px; stroke-linejoin: round; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); }
.l3 { stroke: var(--c3); } .l4 { stroke: var(--c4); } .l5 { stroke: var(--c5); }
.l6 { stroke: var(--c6); }
.band { fill: var(--soft); stroke: var(--dim); }
.band.present { fill: var(--c0); }
@media screen and (max-width: 920px) {
  main { padding: 16px; }
  h1 { font-size: 22px; }
  .wide { display: none; }
  .narrow { display: block; }
  .names td:first-child { white-space: normal; min-width: 150px; }
}
@media print {
  :root { --paper: #ffffff; --ink: #000000; --dim: #444444; --grid: #cccccc; --soft: #f3f5f8;
    --limit: #b3261e; --mark: #eaf2fd; --c0: #0b66b8; --c1: #e8970c; --c2: #0a8f6a; --c3: #c45fa0;
    --c4: #4fb3e6; --c5: #8a8f98; --c6: #7a4b12; }
  body { font-size: 11pt; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; }
  table { font-size: 8pt; }
  th, td { padding: 2px 5px; white-space: normal; }
  h2, .about, .legend { break-after: avoid; }
  .wide, tr { break-inside: avoid; }
}
)";

// Behind the page's rules: pictures alone, drawn for a phone, side by side.
constexpr std::string_view kPicturesRules = R"(main { max-width: none; padding: 14px 16px 0;
  columns: 340px; column-gap: 28px; }
section { margin: 0 0 22px; break-inside: avoid; }
h2 { font-size: 16px; }
.about { font-size: 13px; line-height: 1.4; }
.legend { margin: 6px 0; font-size: 12px; gap: 2px 12px; }
section > svg { width: 100%; max-width: 400px; }
summary { font-size: 13px; color: var(--dim); cursor: pointer; margin-top: 4px; }
.scroll { margin-top: 4px; }
table { font-size: 12px; }
.whole th, .whole td { padding: 3px 5px; white-space: normal; }
)";

std::string PageStyle() {
  return fmt::format(
      ":root {{\n  {}\n}}\n@media (prefers-color-scheme: dark) {{ :root {{\n  {}\n}} }}\n{}",
      kLightColours, kDarkColours, kPageRules);
}
std::string PicturesStyle() {
  return fmt::format(
      "@media screen {{\n:root.light {{\n  color-scheme: light; {}\n}}\n:root.dark {{\n"
      "  color-scheme: dark; {}\n}}\n}}\n{}",
      kLightColours, kDarkColours, kPicturesRules);
}

// ---- its elements ----

std::string Paragraphs(const std::vector<std::string>& texts, const char* css_class) {
  std::string html;
  for (const std::string& text : texts) {
    html += fmt::format("<p class=\"{}\">{}</p>\n", css_class, EscapeHtml(text));
  }
  return html;
}

constexpr size_t kLongName = 24;  // a row's, which may break
constexpr size_t kLongText = 60;  // any other that is read

// The rows from `begin` to `end`.
std::string RowsHtml(const PageTable& table, size_t begin, size_t end) {
  const bool names = std::any_of(table.rows.begin(), table.rows.end(),
                                 [](const auto& row) { return row.front().size() > kLongName; });
  std::string html = fmt::format("<div class=\"scroll\" tabindex=\"0\"><table{}>\n<thead><tr>",
                                 names ? " class=\"names\"" : "");
  const auto cell = [&](const char* tag, size_t column, const std::string& text) {
    const bool last = table.last_is_text && column + 1 == table.heads.size();
    const bool breaks = last || (column < table.text_columns && text.size() > kLongText);
    const char* css_class = breaks                        ? " class=\"long\""
                            : column < table.text_columns ? ""
                                                          : " class=\"n\"";
    return fmt::format("<{}{}>{}</{}>", tag, css_class, EscapeHtml(text), tag);
  };
  for (size_t c = 0; c < table.heads.size(); ++c) html += cell("th", c, table.heads[c]);
  html += "</tr></thead>\n<tbody>\n";
  for (size_t r = begin; r < end; ++r) {
    const bool marked =
        std::find(table.marked.begin(), table.marked.end(), r) != table.marked.end();
    html += marked ? "<tr class=\"marked\">" : "<tr>";
    for (size_t c = 0; c < table.rows[r].size(); ++c) html += cell("td", c, table.rows[r][c]);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string Folded(std::string_view summary, std::string_view html) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", summary, html);
}

std::string NoteHtml(const PageTable& table) {
  return table.note.empty() ? "" : Paragraphs({table.note}, "note");
}

std::string TableHtml(const PageTable& table) {
  if (table.heads.empty()) return "";
  return RowsHtml(table, 0, table.rows.size()) + NoteHtml(table);
}

// A long table shows its first rows, a folded one none; the rest is behind a line.
std::string FoldedTableHtml(const PageTable& table) {
  constexpr size_t kLong = 8, kFirst = 5;  // rows
  const size_t rows = table.rows.size();
  if (table.heads.empty() || (rows <= kLong && !table.folded)) return TableHtml(table);
  const auto fold = [&](size_t begin) {
    const size_t left = rows - begin;
    return Folded(fmt::format("{}{} row{}", left, begin > 0 ? " more" : "", left == 1 ? "" : "s"),
                  RowsHtml(table, begin, rows));
  };
  if (table.folded) return fold(0) + NoteHtml(table);
  return RowsHtml(table, 0, kFirst) + fold(kFirst) + NoteHtml(table);
}

std::string LegendHtml(const std::vector<LegendEntry>& legend) {
  if (legend.empty()) return "";
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : legend) {
    constexpr const char* kShapes[] = {"box", "line", "dot", "ring"};
    const char* shape = kShapes[static_cast<size_t>(entry.shape)];
    html += fmt::format("<li><span class=\"key {} {}\"></span>{}</li>", shape, entry.css_class,
                        EscapeHtml(entry.name));
  }
  return html + "</ul>\n";
}

// All of a section that stands above its picture.
std::string PictureHead(const Picture& picture) {
  std::string html = fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", EscapeHtml(picture.id),
                                 EscapeHtml(picture.title));
  if (!picture.about.empty()) html += Paragraphs({picture.about}, "about");
  return html + LegendHtml(picture.legend);
}

std::string PictureHtml(const Picture& picture) {
  std::string html = PictureHead(picture);
  if (!picture.wide.empty()) {
    html += fmt::format("<div class=\"wide\">{}</div>\n<div class=\"narrow\">{}</div>\n",
                        picture.wide, picture.narrow);
  }
  return html + (picture.needs_table ? TableHtml : FoldedTableHtml)(picture.table) + "</section>\n";
}

std::string SmallPictureHtml(const Picture& picture) {
  std::string html = PictureHead(picture) + picture.narrow + '\n';
  if (const std::string table = TableHtml(picture.table); !table.empty()) {
    html += fmt::format("<details{}><summary>Numbers</summary>\n{}</details>\n",
                        picture.needs_table      ? " open class=\"whole\""
                        : picture.narrow.empty() ? " open"
                                                 : "",
                        table);
  }
  return html + "</section>\n";
}

std::string Figures(const Page& page) {
  if (page.figures.empty()) return "";
  std::string html = "<dl class=\"figures\">\n";
  for (const auto& [name, value] : page.figures) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", EscapeHtml(name), EscapeHtml(value));
  }
  return html + "</dl>\n";
}

std::string Footer(const Page& page) {
  std::string html = fmt::format("<pre id=\"command\">{}</pre>\n", EscapeHtml(page.origin.command));
  html += fmt::format("<p>zeroplan {}.</p>\n", EscapeHtml(kVersion));
  if (!page.origin.assumed.empty()) {
    html += Paragraphs({fmt::format("Assumed: {}", fmt::join(page.origin.assumed, ", "))}, "note");
  }
  html += Paragraphs(page.origin.notes, "note");
  return "<footer>\n" + Folded("<h2>How this page was made</h2>", html) + "</footer>\n";
}

// From the beginning to <main>.
std::string Beginning(const std::string& title, std::string_view more_style) {
  // The policy lets nothing in from outside, whatever the texts hold.
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<main>\n",
      EscapeHtml(title), PageStyle(), more_style);
}
constexpr const char* kEnd = "</main>\n</body>\n</html>\n";

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string html;
  html.reserve(text.size());
  for (const char c : ReplaceInvalidUtf8(text)) {
    constexpr std::string_view kMarks = "&<>\"'";
    constexpr const char* kEscaped[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    if (const size_t at = kMarks.find(c); at != std::string_view::npos) {
      html += kEscaped[at];
    } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      AppendUtf8(kReplacementCharacter, &html);
    } else {
      html += c;
    }
  }
  return html;
}

std::string RenderPage(const Page& page) {
  std::string html = Beginning(page.title, "");
  html += fmt::format("<h1>{}</h1>\n", EscapeHtml(page.title));
  if (!page.answer.empty()) html += Paragraphs({page.answer}, "answer");
  html += Paragraphs(page.facts, "fact") + Figures(page);
  html += Paragraphs(page.findings, "finding");
  if (!page.details.empty()) {
    html += Folded(EscapeHtml(page.details_title), Paragraphs(page.details, "finding"));
  }
  for (const Picture& picture : page.pictures) html += PictureHtml(picture);
  return html + Footer(page) + kEnd;
}

std::string RenderPictures(const Page& page) {
  std::string html = Beginning(page.title, PicturesStyle());
  for (const Picture& picture : page.pictures) html += SmallPictureHtml(picture);
  return html + kEnd;
}

}  // namespace zeroplan
