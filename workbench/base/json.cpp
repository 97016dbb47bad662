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

std::string reason_of(const json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

namespace field {

void wrong(const std::string& why) { throw json::other_error::create(600, why, nullptr); }

const json& any(const json& object, const char* name) {
  if (!object.is_object()) wrong(fmt::format("no object that could hold {}", name));
  const auto found = object.find(name);
  if (found == object.end()) wrong(fmt::format("{} is missing", name));
  return *found;
}

const json& object(const json& object, const char* name) {
  const json& found = any(object, name);
  if (!found.is_object()) wrong(fmt::format("{} is no object", name));
  return found;
}

const json& list(const json& object, const char* name, bool may_be_empty) {
  const json& found = any(object, name);
  if (!found.is_array()) wrong(fmt::format("{} is no list", name));
  if (!may_be_empty && found.empty()) wrong(fmt::format("{} is empty", name));
  return found;
}

std::string text(const json& object, const char* name) {
  const json& found = any(object, name);
  if (!found.is_string()) wrong(fmt::format("{} is no text", name));
  return found.get<std::string>();
}

std::string text_or_none(const json& object, const char* name) {
  return object.contains(name) ? text(object, name) : std::string();
}

bool flag(const json& object, const char* name) {
  const json& found = any(object, name);
  if (!found.is_boolean()) wrong(fmt::format("{} is neither true nor false", name));
  return found.get<bool>();
}

double number(const json& object, const char* name) {
  const json& found = any(object, name);
  if (!found.is_number()) wrong(fmt::format("{} is no number", name));
  return found.get<double>();
}

std::int64_t count(const json& object, const char* name, std::int64_t most) {
  const json& found = any(object, name);
  if (!found.is_number_integer()) wrong(fmt::format("{} is no whole number", name));
  const auto value = found.get<std::int64_t>();
  if (value < 0 || value > most) wrong(fmt::format("{} is {}", name, value));
  return value;
}

}  // namespace field

}  // namespace greenfast::workbench
