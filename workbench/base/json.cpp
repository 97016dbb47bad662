#include "workbench/base/json.hpp"

#include <fmt/format.h>

#include "workbench/base/files.hpp"

namespace greenfast::workbench {

namespace fs = std::filesystem;
using nlohmann::json;

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

std::string json_text(const json& document, int indent) {
  return document.dump(indent, ' ', false, json::error_handler_t::replace);
}

json text_or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

std::string plain(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace greenfast::workbench
