// Names of compiled kernels, the same from the host's compiler (plans) and from the device's
// (cubins).
#include <cxxabi.h>

#include <charconv>
#include <cstdlib>
#include <memory>
#include <string>

#include <greenfast/attention.hpp>

namespace greenfast {
namespace {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_name(char c) {
  return c == '_' || is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void erase_all(std::string& text, std::string_view word) {
  for (std::size_t found = 0; (found = text.find(word, found)) != std::string::npos;)
    text.erase(found, word.size());
}

/// nvcc names an anonymous namespace after the source's path and a hash: back to what GCC calls it.
std::string without_path_hash(std::string_view symbol) {
  constexpr std::string_view kMarker = "_GLOBAL__N_", kPlain = "12_GLOBAL__N_1";
  std::string out(symbol);
  for (std::size_t found = 0; (found = out.find(kMarker, found)) != std::string::npos;) {
    std::size_t digits = found;
    while (digits > 0 && is_digit(out[digits - 1])) --digits;
    std::size_t length = 0;
    const auto read = std::from_chars(out.data() + digits, out.data() + found, length);
    if (digits == found || read.ec != std::errc() || length > out.size() - found) {
      found += kMarker.size();
      continue;
    }
    out.replace(digits, found + length - digits, kPlain);
    found = digits + kPlain.size();
  }
  return out;
}

}  // namespace

std::string kernel_name(std::string_view symbol) {
  constexpr std::size_t kLongest = 4096;
  const std::string mangled = without_path_hash(symbol.substr(0, kLongest));
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  if (status != 0 || demangled == nullptr) return mangled;
  std::string text = demangled.get();
  erase_all(text, "(anonymous namespace)::");
  // The type device/launch.hpp wraps a kernel in: "KernelTag<&(void v2c::kernel<...>(Params))>".
  constexpr std::string_view kTag = "KernelTag<&";
  if (const std::size_t found = text.find(kTag); found != std::string::npos) {
    text.erase(0, found + kTag.size());
    if (!text.empty()) text.pop_back();
    if (text.starts_with('(')) text.erase(0, 1);
  }
  constexpr std::string_view kVoid = "void ", kOurs = "greenfast::cuda::";
  if (text.starts_with(kVoid)) text.erase(0, kVoid.size());
  if (text.starts_with(kOurs)) text.erase(0, kOurs.size());

  // One pass to the parameter list; inside of template arguments casts "(Type)1", qualifiers "a::"
  // and the suffixes of integers go, and so do members that are zero at the end of a list, which
  // only one of the compilers names.
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '(' && depth == 0) break;
    if (c == '(') {
      const std::size_t close = text.find(')', i);
      if (close != std::string::npos && close + 1 < text.size() &&
          (text[close + 1] == '-' || is_digit(text[close + 1]))) {
        i = close;
        continue;
      }
    }
    if (depth > 0 && c == ':' && next == ':') {
      while (!out.empty() && is_name(out.back())) out.pop_back();
      ++i;
      continue;
    }
    if (depth > 0 && (c == 'u' || c == 'l') && !out.empty() && is_digit(out.back())) {
      std::size_t first = out.size();
      while (first > 0 && is_digit(out[first - 1])) --first;
      if (first == 0 || !is_name(out[first - 1])) {  // a number, not the end of a name
        while (i + 1 < text.size() && (text[i + 1] == 'u' || text[i + 1] == 'l')) ++i;
        continue;
      }
    }
    if (c == '<' || c == '{') ++depth;
    if (c == '>' || c == '}') --depth;
    if (c == ' ' && next == '>') continue;
    if (c == '}') {
      for (bool more = true; more;) {
        more = false;
        for (const std::string_view zero : {", 0", ", false", "{0", "{false"}) {
          if (!out.ends_with(zero)) continue;
          out.resize(out.size() - zero.size() + (zero[0] == '{' ? 1 : 0));
          more = true;
        }
      }
    }
    out += c;
  }
  return out;
}

}  // namespace greenfast
