// Planted kernels: wrong ones that the gate must catch, honest ones that it must not. They compute
// on the CPU, in any dtype, layout and mask; those of the CUDA table wrap a launch of a real
// kernel.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "workbench/device/device.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

struct PlantedRow {
  std::string_view name;    // without "mutant." or "honest."
  std::string_view models;  // the mistake, or how it differs from the emulator
  bool honest = false;
  /// Why this fault cannot show in the problem (a softcap that is not there); nullptr: it can. Such
  /// a problem is refused: a fault that changes nothing is no test of a gate.
  const char* (*absent)(const Problem&) = nullptr;
};
/// Mutants first.
std::span<const PlantedRow> planted_table();

/// A fresh instance, with no memory of earlier calls. Null for an unknown id; ids are "mutant.name"
/// and "honest.name".
std::unique_ptr<Subject> make_planted(std::string_view id);
/// The same for a GPU's buffers: they are fetched on the launch's stream, and what the kernel
/// changed is written back. The device must outlive it.
std::unique_ptr<Subject> make_planted_on(std::string_view id, Device& device);

/// Faults that need a real launch: work on another stream, a kernel called for a smaller problem.
/// Only in builds with CUDA. Ids are "mutant.cuda_name" and "honest.cuda_name".
std::span<const PlantedRow> cuda_planted_table();
std::unique_ptr<Subject> make_cuda_planted(std::string_view id);

std::string planted_id(const PlantedRow& row);
/// Whether an id is of that form; there need be no such kernel.
bool names_planted(std::string_view id);

}  // namespace greenfast::workbench
