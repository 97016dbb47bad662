#include <fmt/format.h>

#include "workbench/build_info.hpp"

int main() { fmt::print("{}\n", greenfast::workbench::build_line()); }
