// What every record is made of and read with.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Parses a JSON file. invalid_argument for what is not JSON (truncated), internal for what cannot
/// be read; both name the file.
Result<nlohmann::json> read_json(const std::filesystem::path& file);

/// A record, which may have passed through any hands, for showing what it says: texts and names of
/// members are clean_text. What lies deeper than 64 levels becomes null.
nlohmann::json clean_record(const nlohmann::json& record, int depth = 0);
/// read_json, cleaned. Digests are taken of the file.
Result<nlohmann::json> read_record(const std::filesystem::path& file);

/// The document as text, indented unless -1. Bytes that are no UTF-8 (of a path, of a plugin's
/// message) become U+FFFD: a record is never lost to them.
std::string json_text(const nlohmann::json& document, int indent = -1);
/// The document as evidence keeps it, one line for each object or array that holds no other, so that
/// a change shows as the rows that changed. Ends with a line break.
std::string record_text(const nlohmann::json& document);
/// Null for the empty text.
nlohmann::json text_or_null(const std::string& text);
/// A string as it is, anything else as JSON.
std::string plain(const nlohmann::json& value);

}  // namespace greenfast::workbench
