// A report as a page: Markdown becomes HTML, and what a record says stays text.
#include <gtest/gtest.h>

#include "workbench/report/report.hpp"

namespace greenfast::workbench::test {
namespace {

TEST(Page, TextIsEscapedAlsoInAnAttribute) {
  EXPECT_EQ(html_text("<a href=\"x\" title='y'> & \x1b"),
            "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt; &amp;  ");
  EXPECT_EQ(html_text("two\nlines\t"), "two\nlines\t");
}

TEST(Page, RendersTheKindOfMarkdownThatReportsAreWrittenIn) {
  EXPECT_EQ(html_of_markdown("## Head `x`\n"), "<h2>Head <code>x</code></h2>\n");
  EXPECT_EQ(html_of_markdown("one **two**\nthree\n\nfour"),
            "<p>one <strong>two</strong>\nthree\n</p>\n<p>four\n</p>\n");
  EXPECT_EQ(html_of_markdown("> said\n"), "<blockquote><p>said</p></blockquote>\n");
  EXPECT_EQ(html_of_markdown("- a\n- [x] b\n- [ ] c\n"),
            "<ul><li>a</li><li><span class=\"good\">done:</span> b</li>"
            "<li><span class=\"wait\">open:</span> c</li></ul>\n");
  EXPECT_EQ(html_of_markdown("```\na **b** <c>\n```\n"),
            "<pre><code>a **b** &lt;c&gt;\n</code></pre>\n");
}

TEST(Page, ATableHasAsManyCellsAsItWasWrittenWith) {
  const std::string html =
      html_of_markdown("# Times\n| variant | p50 |\n| --- | --- |\n| a\\|b | 1 |\n");
  EXPECT_NE(html.find("a|b"), std::string::npos) << html;
  std::size_t cells = 0;
  for (std::size_t at = 0; (at = html.find("<td", at)) != std::string::npos; ++at) ++cells;
  EXPECT_EQ(cells, 2u) << html;
}

TEST(Page, HtmlInARecordStaysText) {
  for (const char* hostile :
       {"<script>alert(1)</script>", "# <img src=x onerror=alert(1)>", "- <b>x", "> <i>", "`<u>`",
        "**<s>**", "| <td> |\n| --- |\n| <script> |", "```\n</pre><script>\n```", "|<script>"}) {
    const std::string html = html_of_markdown(hostile);
    for (const char* element : {"<script", "<img", "<b>", "<i>", "<u>", "<s>", "</pre><"})
      EXPECT_EQ(html.find(element), std::string::npos) << hostile << "\n" << html;
  }
}

TEST(Page, WhatIsCutOffEnds) {
  for (const char* cut : {"", "\n\n", "```", "#", "|", "|\n|", "**", "`", "- ", "> "})
    EXPECT_LT(html_of_markdown(cut).size(), 200u) << cut;
}

TEST(Page, IsWholeWithoutANetworkOrSaysWhatItNeeds) {
  ReportPart part;
  part.markdown = "# All <well>\n";
  const auto page = report_html(std::vector<ReportPart>{part}, "a <title>");
  ASSERT_EQ(page.ok(), has_html_report());
  if (!page) {
    EXPECT_EQ(page.status().code(), StatusCode::unsupported);
    EXPECT_NE(page.status().message().find("libjs-chart.js"), std::string::npos);
    return;
  }
  EXPECT_NE(page->find("<title>a &lt;title&gt;</title>"), std::string::npos);
  EXPECT_NE(page->find("<h1>All &lt;well&gt;</h1>"), std::string::npos);
  EXPECT_EQ(page->find("src=\"http"), std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
