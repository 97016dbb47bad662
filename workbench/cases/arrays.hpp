// The arrays that serving adds to Q, K and V: lengths, tables, sinks, slopes and masks, drawn by
// seed.
#pragma once

#include <cstdint>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

/// Arrays of a case, a pure function of its problem, lengths and seed. Page tables are in a random
/// order; entries that no key needs, those of pages of left padding too, name a page that nobody
/// has. Packed sequences begin and end inside the storage.
Arrays draw_arrays(const Case& c);

/// Sets what a problem says of its storage (total_q, total_kv, pages.count and row_stride, kv_rows)
/// from the lengths that are drawn for seed 0 and some room; other seeds stay within it.
void size_storage(Problem& problem, const Lengths& lengths);

/// Whether a case of that problem has any of them.
bool has_arrays(const Problem& problem);

}  // namespace greenfast::workbench
