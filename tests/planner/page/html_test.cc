#include "planner/page/html.h"

#include <doctest/doctest.h>

#include "planner/page/svg.h"
#include "tests/planner/page/page_reading.h"

namespace zeroplan {
namespace {

constexpr const char* kHostile = "\"><script>alert('x')</script>&\x01\xff";
constexpr const char* kEscaped =
    "&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\xEF\xBF\xBD\xEF\xBF\xBD";

TEST_CASE("text is escaped for elements and attributes") {
  CHECK(EscapeHtml("stage 2, 38.4 GB") == "stage 2, 38.4 GB");
  CHECK(EscapeHtml("Gr\xC3\xBC\xC3\x9F") == "Gr\xC3\xBC\xC3\x9F");
  CHECK(EscapeHtml(kHostile) == kEscaped);
}

TEST_CASE("no text of a page becomes a part of it, wherever it stands") {
  Page page;
  page.title = page.answer = page.details_title = page.origin.command = kHostile;
  page.facts = page.findings = page.details = page.origin.assumed = page.origin.notes = {kHostile};
  page.figures = {{kHostile, kHostile}};
  Picture picture;
  picture.id = picture.title = picture.about = kHostile;
  picture.legend = {{"c0", kHostile}};
  picture.table.heads = {kHostile, "number"};
  picture.table.rows = {{kHostile, "1"}};
  picture.table.note = kHostile;
  Svg svg(100, 100, kHostile);
  svg.Rect({0, 0, 1, 1}, "c0", kHostile, {{"data-part", kHostile}});
  svg.Circle(1, 1, 1, "c0", kHostile, {{"data-x", kHostile}});
  svg.Path("M0 0", "c0", kHostile);
  svg.Text(1, 1, kHostile);
  svg.TextWithin(1, 1, kHostile, 0, 100);
  picture.wide = picture.narrow = std::move(svg).Finish();
  page.pictures = {picture};
  const std::string html = RenderPage(page);
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("alert('x')") == std::string::npos);
  // title and h1, the answer, details and their line, 4 paragraphs (one behind "Assumed: "), 2 of a
  // figure, command, 3 of the picture, legend, head, row, note; 8 of the picture, twice.
  CHECK(Count(html, kEscaped) == 2 + 1 + 2 + 4 + 2 + 1 + 3 + 1 + 2 + 1 + 2 * 8);
}

TEST_CASE("a page asks for nothing from outside") {
  Page page;
  page.title = "title";
  for (const std::string& html : {RenderPage(page), RenderPictures(page)}) {
    for (const char* what : {"http:", "https:", "src=", "url(", "@import", "<link", "<script"}) {
      CAPTURE(what);
      CHECK(html.find(what) == std::string::npos);
    }
    CHECK(html.find("Content-Security-Policy") != std::string::npos);
    CHECK(html.find("default-src 'none'") != std::string::npos);
    CHECK(html.find("prefers-color-scheme: dark") != std::string::npos);
    CHECK(html.find("@media print") != std::string::npos);
  }
}

TEST_CASE("numbers stand to the right, the answer's row is marked") {
  Page page;
  Picture picture;
  picture.id = "memory";
  picture.table.heads = {"choice", "total", "why"};
  picture.table.last_is_text = true;
  picture.table.rows = {{"stage 0", "1 GB", "because"}, {"stage 1", "2 GB", "it fits"}};
  picture.table.marked = {1};
  page.pictures = {picture};
  const std::string html = RenderPage(page);
  CHECK(html.find("<tr><td>stage 0</td><td class=\"n\">1 GB</td><td class=\"long\">because</td>") !=
        std::string::npos);
  CHECK(html.find("<tr class=\"marked\"><td>stage 1</td>") != std::string::npos);
}

TEST_CASE("a long table shows its first rows, and folds the others with their marks") {
  Page page;
  page.answer = "The answer.";
  page.details = {"A detail."};
  Picture picture;
  picture.id = "machines";
  picture.table.heads = {"machine"};
  for (int i = 0; i < 12; ++i) picture.table.rows.push_back({"row " + std::to_string(i) + "."});
  picture.table.marked = {1, 7};
  page.pictures = {picture};
  const std::string html = RenderPage(page);
  const size_t fold = html.find("<summary>7 more rows</summary>");
  REQUIRE(fold != std::string::npos);
  CHECK(html.find("row 4.") < fold);
  CHECK(html.find("row 5.") > fold);
  CHECK(html.find("<tr class=\"marked\"><td>row 1.</td>") < fold);
  CHECK(html.find("<tr class=\"marked\"><td>row 7.</td>") > fold);
  CHECK(html.find("<tr class=\"marked\"><td>row 7.</td>") != std::string::npos);
  // Details and the page's origin are folded, the answer is not.
  CHECK(html.find("The answer.") < html.find("<details>"));
  CHECK(html.find("A detail.") > html.find("<details>"));
  CHECK(Count(html, "<details>") == 3);
  // All of a table that explains a picture's letters is shown; of a folded one nothing.
  page.pictures[0].needs_table = true;
  CHECK(RenderPage(page).find("more rows") == std::string::npos);
  page.pictures[0].needs_table = false;
  page.pictures[0].table.folded = true;
  CHECK(RenderPage(page).find("<summary>12 rows</summary>") != std::string::npos);
}

TEST_CASE("pictures alone: each once, and small, tables folded but where the picture needs them") {
  Page page;
  page.title = "title";
  page.origin.command = "the command";
  page.findings = {"a finding"};
  Picture folded;
  folded.id = "memory";
  folded.wide = "<svg>wide</svg>";
  folded.narrow = "<svg>narrow</svg>";
  folded.table.heads = {"choice", kHostile};
  Picture lettered = folded, bare = folded, table_only = folded;
  lettered.needs_table = true;
  bare.table = {};
  table_only.wide = table_only.narrow = "";
  page.pictures = {folded, lettered, bare, table_only};
  const std::string html = RenderPictures(page);
  CHECK(Count(html, "<section id=\"memory\">") == 4);
  CHECK(Count(html, "<svg>narrow</svg>") == 3);
  CHECK(Count(html, "<svg>wide</svg>") == 0);
  CHECK(Count(html, "<details><summary>") == 1);
  CHECK(Count(html, "<details open><summary>") == 1);
  CHECK(Count(html, "<details open class=\"whole\"><summary>") == 1);
  CHECK(Count(html, kEscaped) == 3);
  CHECK(html.find("the command") == std::string::npos);
  CHECK(html.find("a finding") == std::string::npos);
  CHECK(html.find(":root.light {") != std::string::npos);
  CHECK(html.find(":root.dark {") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
