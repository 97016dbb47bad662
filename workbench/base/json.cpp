#include "workbench/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"

namespace greenfast::workbench {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kDeepest = 64;

bool is_leaf(const json& value) {
  return std::none_of(value.begin(), value.end(),
                      [](const json& item) { return item.is_structured() && !item.empty(); });
}

void write_rows(std::string& out, const json& value, std::size_t depth) {
  if (!value.is_structured() || value.empty()) {
    out += json_text(value);
    return;
  }
  const bool leaf = is_leaf(value);
  const auto separate = [&](bool first) {
    if (!first) out += leaf ? ", " : ",";
    if (!leaf) out.append("\n").append(depth + 1, ' ');
  };
  out += value.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    separate(first);
    first = false;
    if (value.is_object()) out += json_text(key) + ": ";
    write_rows(out, item, depth + 1);
  }
  if (!leaf) out.append("\n").append(depth, ' ');
  out += value.is_object() ? '}' : ']';
}

}  // namespace

Result<json> read_json(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: is a directory; name the file in it", file.string()));
  }
  const auto text = read_file(file);
  if (!text) return Status(StatusCode::internal, text.status().message());
  json document = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: not valid JSON, perhaps truncated ({} bytes); record it again",
                              file.string(), text->size()));
  }
  return document;
}

json clean_record(const json& value, int depth) {
  // No record goes so deep; one that does would end the program's stack.
  if (depth > kDeepest) return nullptr;
  if (value.is_string()) return clean_text(value.get_ref<const std::string&>());
  if (value.is_array()) {
    json out = json::array();
    for (const json& item : value) out.push_back(clean_record(item, depth + 1));
    return out;
  }
  if (value.is_object()) {
    json out = json::object();
    for (const auto& [key, item] : value.items())
      out[clean_text(key)] = clean_record(item, depth + 1);
    return out;
  }
  return value;
}

Result<json> read_record(const fs::path& file) {
  auto document = read_json(file);
  if (!document) return document.status();
  return clean_record(*document);
}

std::string json_text(const json& document, int indent) {
  return document.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string record_text(const json& document) {
  std::string out;
  write_rows(out, document, 0);
  return out + '\n';
}

json text_or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

std::string plain(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace greenfast::workbench
