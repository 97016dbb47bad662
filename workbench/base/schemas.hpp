// Names of the file formats, as a record's "schema" says them; docs/schema has what each holds.
#pragma once

#include <string_view>

namespace greenfast::workbench {

inline constexpr std::string_view kSchemaPrefix = "greenfast.";
inline constexpr std::string_view kRunSchema = "greenfast.run/1";
inline constexpr std::string_view kSelftestSchema = "greenfast.selftest/1";
inline constexpr std::string_view kSamplesSchema = "greenfast.samples/1";
inline constexpr std::string_view kCompareSchema = "greenfast.compare/1";
inline constexpr std::string_view kCompareBestSchema = "greenfast.compare_best/1";
inline constexpr std::string_view kGateSchema = "greenfast.gate/1";
inline constexpr std::string_view kLadderSchema = "greenfast.ladder/1";
inline constexpr std::string_view kLadderGatesSchema = "greenfast.ladder_gates/1";
inline constexpr std::string_view kPhasesSchema = "greenfast.phases/1";
inline constexpr std::string_view kProfileSchema = "greenfast.profile/1";
inline constexpr std::string_view kGateStatusSchema = "greenfast.gate_status/1";
inline constexpr std::string_view kResourcesSchema = "greenfast.resources/1";
inline constexpr std::string_view kLedgerSchema = "greenfast.evidence/1";
inline constexpr std::string_view kBundleSchema = "greenfast.bundle/1";

}  // namespace greenfast::workbench
