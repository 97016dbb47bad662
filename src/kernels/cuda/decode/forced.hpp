// GREENFAST_DECODE: how cuda.sm90.decode is to part and merge, for measuring.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>

namespace greenfast::cuda::decode {

#if GREENFAST_EXPERIMENTAL
/// What GREENFAST_DECODE says, so that one run on a GPU can try several: "blocks=4 warps=8", each
/// optional; blocks=0 is the second kernel. Of builds with GREENFAST_EXPERIMENTAL alone.
struct Forced {
  int blocks = -1, warps = -1, least = -1, most = -1;
  std::string wrong;  // the word that says nothing

  static Forced of(std::string_view text) {
    Forced forced;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, text.find(' '));
      text.remove_prefix(std::min(text.size(), word.size() + 1));
      const std::size_t equals = word.find('=');
      const std::string_view name = word.substr(0, equals);
      int* const value = name == "blocks"  ? &forced.blocks
                         : name == "warps" ? &forced.warps
                         : name == "least" ? &forced.least
                         : name == "most"  ? &forced.most
                                           : nullptr;
      bool read = false;
      if (value != nullptr && equals != std::string_view::npos) {
        const char* const end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data() + equals + 1, end, *value);
        read = error == std::errc{} && at == end;
      }
      if (!read && !word.empty()) forced.wrong = word;
    }
    const auto one_of = [](int value, std::initializer_list<int> of) {
      return std::find(of.begin(), of.end(), value) != of.end();
    };
    if (!one_of(forced.blocks, {-1, 0, 2, 4, 8})) forced.wrong = "blocks";
    if (!one_of(forced.warps, {-1, 4, 8})) forced.wrong = "warps";
    return forced;
  }
  /// Read anew for each plan, so that one process can time several.
  static Forced get() {
    const char* const text = std::getenv("GREENFAST_DECODE");
    return of(text == nullptr ? "" : text);
  }
};
#else
struct Forced {
  static constexpr int blocks = -1, warps = -1, least = -1, most = -1;
  static constexpr Forced get() { return {}; }
};
#endif

}  // namespace greenfast::cuda::decode
