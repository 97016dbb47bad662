// What a comment leaves as it was in a source's digest, and what a change does not.
#include "workbench/evidence/kernel_files.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

TEST(SourceDigest, ACommentAndALineBreakChangeNothing) {
  const std::string plain = "int a = 1; int b = 2;";
  for (const char* same :
       {"int a = 1;\n\n\tint b = 2;\n", "int a = 1; // one\nint b = 2;",
        "int a /* why */ = 1; int b = 2;", "// head\r\nint a = 1; int b = 2; /* open"})
    EXPECT_EQ(source_digest(same), source_digest(plain)) << same;
}

TEST(SourceDigest, CodeAndLiteralsCount) {
  const std::string plain = "int a = 1; int b = 2;";
  EXPECT_NE(source_digest("int a = 1; int b = 3;"), source_digest(plain));
  EXPECT_NE(source_digest("inta = 1; int b = 2;"), source_digest(plain));
  // What looks like a comment inside a literal is none, and its blanks are its own.
  EXPECT_NE(source_digest(R"(f("a // b");)"), source_digest(R"(f("a // c");)"));
  EXPECT_NE(source_digest(R"(f("a  b");)"), source_digest(R"(f("a b");)"));
  EXPECT_NE(source_digest("f(R\"x(a  b // c)x\"); g();"),
            source_digest("f(R\"x(a b // c)x\"); g();"));
  EXPECT_EQ(source_digest("f(R\"x(a)\" // b)x\"); /* c */ g();"),
            source_digest("f(R\"x(a)\" // b)x\");  g();"));
  EXPECT_EQ(source_digest("x = 1'000;  // thousand"), source_digest("x = 1'000;"));
  EXPECT_NE(source_digest("c = '\"'; // x\n"), source_digest("c = '\"'; y"));
}

}  // namespace
}  // namespace greenfast::workbench::test
