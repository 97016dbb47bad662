// What comes from outside must not move a cursor, and must be UTF-8 that a record can hold.
#include "workbench/base/clean_text.hpp"

#include <gtest/gtest.h>

#include <string>

namespace greenfast::workbench::test {
namespace {

TEST(CleanText, PlainTextStaysAsItIs) {
  for (const char* text : {"", "two\nlines\tand a tab", "µs × ≥ 𝛼"})
    EXPECT_EQ(clean_text(text), text);
}

TEST(CleanText, NothingMovesTheCursor) {
  EXPECT_EQ(clean_text("\x1b[2Jgone\r\b\x7f"), "?[2Jgone???");
  EXPECT_EQ(clean_text(std::string("nul\0end", 7)), "nul?end");
  // U+009B is an escape sequence in one character.
  EXPECT_EQ(clean_text("\xc2\x9b"
                       "31m"),
            "?31m");
  // U+202E turns the direction of writing: a name would read as another.
  EXPECT_EQ(clean_text("gate\xe2\x80\xaenosj.exe"), "gate?nosj.exe");
}

TEST(CleanText, WhatIsNoUtf8IsReplacedByteByByte) {
  const std::string unknown = "\xef\xbf\xbd";
  EXPECT_EQ(clean_text("a\xff"
                       "b"),
            "a" + unknown + "b");
  EXPECT_EQ(clean_text("\xe2\x82"), unknown + unknown) << "cut off";
  EXPECT_EQ(clean_text("\xc0\xaf"), unknown + unknown) << "longer than need be";
  EXPECT_EQ(clean_text("\xed\xa0\x80"), unknown + unknown + unknown) << "half of a pair";
  EXPECT_EQ(clean_text("\xf4\x90\x80\x80"), unknown + unknown + unknown + unknown);
}

TEST(CleanText, ALineIsOneLine) {
  EXPECT_EQ(clean_line("a\nb\n\n"), "a b");
  EXPECT_EQ(clean_line("\033[2J\tx"), "?[2J\tx");
  EXPECT_EQ(clean_line("\n"), "");
}

}  // namespace
}  // namespace greenfast::workbench::test
