// What the page of a report needs beside its text; put into the binary at build time.
#pragma once

#include <string_view>

namespace greenfast::workbench {

struct ReportAssets {
  std::string_view css, page_js;
  std::string_view chart_js;  ///< Chart.js; empty where it was not installed at build time
};
ReportAssets report_assets();

/// docs/schema/KIND.schema.json; empty where there is none.
std::string_view schema_text(std::string_view kind);

}  // namespace greenfast::workbench
