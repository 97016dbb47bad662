// What every record is made of and read with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
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
/// What one says, without the library's name and number before it.
std::string reason_of(const nlohmann::json::exception& error);

/// Members of an object as they must be. What is missing or of another kind throws
/// json::exception, whose reason names the member: what is read here was written by this program,
/// so that one place for a whole document can say that it is damaged.
namespace field {

[[noreturn]] void wrong(const std::string& why);
const nlohmann::json& any(const nlohmann::json& object, const char* name);
const nlohmann::json& object(const nlohmann::json& object, const char* name);
const nlohmann::json& list(const nlohmann::json& object, const char* name,
                           bool may_be_empty = false);
std::string text(const nlohmann::json& object, const char* name);
std::string text_or_none(const nlohmann::json& object, const char* name);
bool flag(const nlohmann::json& object, const char* name);
double number(const nlohmann::json& object, const char* name);
/// Of 0 or more, up to `most`.
std::int64_t count(const nlohmann::json& object, const char* name, std::int64_t most);
template <class Integer>
Integer count_of(const nlohmann::json& object, const char* name) {
  return static_cast<Integer>(count(object, name, std::numeric_limits<Integer>::max()));
}

}  // namespace field

}  // namespace greenfast::workbench
