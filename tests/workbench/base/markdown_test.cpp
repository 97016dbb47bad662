// Text that may hold anything, in a table of Markdown.
#include "workbench/base/markdown.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

TEST(Markdown, TextShowsAsItIs) {
  EXPECT_EQ(markdown_text("a|b `c` *d* \\ <img src=x>"),
            "a\\|b \\`c\\` \\*d\\* \\\\ \\<img src=x>");
  EXPECT_EQ(markdown_text("two\nlines"), "two lines") << "a row of a table is one line";
}

TEST(Markdown, ATableIsAsWideAsItsHeader) {
  const std::vector<std::string> header = {"variant", "p50"};
  const std::vector<std::vector<std::string>> rows = {{"cpu|x"}, {"cpu.flash", "1 ms", "beyond"}};
  EXPECT_EQ(markdown_table(header, rows),
            "| variant | p50 |\n"
            "| --- | --- |\n"
            "| cpu\\|x |  |\n"
            "| cpu.flash | 1 ms |\n");
}

}  // namespace
}  // namespace greenfast::workbench::test
