#include "planner/page/html.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/strings.h"
#include "core/base/version.h"
#include "planner/page/page_style.h"

namespace zeroplan {
namespace {

std::string Paragraphs(const std::vector<std::string>& texts, const char* css_class) {
  std::string html;
  for (const std::string& text : texts) {
    html += fmt::format("<p class=\"{}\">{}</p>\n", css_class, EscapeHtml(text));
  }
  return html;
}

constexpr size_t kLongName = 24;  // a row's, which may break

std::string TableHtml(const PageTable& table) {
  if (table.heads.empty()) return "";
  const bool names = std::any_of(table.rows.begin(), table.rows.end(),
                                 [](const auto& row) { return row.front().size() > kLongName; });
  std::string html = fmt::format("<div class=\"scroll\" tabindex=\"0\"><table{}>\n<thead><tr>",
                                 names ? " class=\"names\"" : "");
  const auto cell = [&](const char* tag, size_t column, const std::string& text) {
    const bool last = table.last_is_text && column + 1 == table.heads.size();
    const char* css_class = last                          ? " class=\"long\""
                            : column < table.text_columns ? ""
                                                          : " class=\"n\"";
    return fmt::format("<{}{}>{}</{}>", tag, css_class, EscapeHtml(text), tag);
  };
  for (size_t c = 0; c < table.heads.size(); ++c) html += cell("th", c, table.heads[c]);
  html += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const bool marked =
        std::find(table.marked.begin(), table.marked.end(), r) != table.marked.end();
    html += marked ? "<tr class=\"marked\">" : "<tr>";
    for (size_t c = 0; c < table.rows[r].size(); ++c) html += cell("td", c, table.rows[r][c]);
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  if (!table.note.empty()) html += Paragraphs({table.note}, "note");
  return html;
}

std::string LegendHtml(const std::vector<LegendEntry>& legend) {
  if (legend.empty()) return "";
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : legend) {
    const char* shape = entry.shape == LegendEntry::Shape::kBox    ? "box"
                        : entry.shape == LegendEntry::Shape::kLine ? "line"
                        : entry.shape == LegendEntry::Shape::kDot  ? "dot"
                                                                   : "ring";
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
  return html + TableHtml(picture.table) + "</section>\n";
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
  std::string html = "<footer>\n<h2>How this page was made</h2>\n";
  html += fmt::format("<pre id=\"command\">{}</pre>\n", EscapeHtml(page.command));
  html += fmt::format("<p>zeroplan {}.</p>\n", EscapeHtml(kVersion));
  if (!page.assumed.empty()) {
    html += Paragraphs({fmt::format("Assumed: {}", fmt::join(page.assumed, ", "))}, "note");
  }
  return html + Paragraphs(page.notes, "note") + "</footer>\n";
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
    if (c == '&') {
      html += "&amp;";
    } else if (c == '<') {
      html += "&lt;";
    } else if (c == '>') {
      html += "&gt;";
    } else if (c == '"') {
      html += "&quot;";
    } else if (c == '\'') {
      html += "&#39;";
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
  html += Paragraphs(page.facts, "fact") + Figures(page);
  html += Paragraphs(page.findings, "finding");
  for (const Picture& picture : page.pictures) html += PictureHtml(picture);
  return html + Footer(page) + kEnd;
}

std::string RenderPictures(const Page& page) {
  std::string html = Beginning(page.title, PicturesStyle());
  for (const Picture& picture : page.pictures) html += SmallPictureHtml(picture);
  return html + kEnd;
}

}  // namespace zeroplan
