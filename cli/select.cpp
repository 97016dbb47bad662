#include "cli/select.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::cli {
namespace {

using workbench::kNoDevice;
using workbench::kUsage;
using workbench::Subject;
using Subjects = std::vector<std::unique_ptr<Subject>>;
using Toggles = std::map<std::string, int>;

const VariantInfo* find_variant(const std::vector<VariantInfo>& all, const std::string& id) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const VariantInfo& v) { return v.id == id; });
  return it == all.end() ? nullptr : &*it;
}

Toggles toggles_of(const VariantInfo& variant) {
  Toggles toggles;
  for (const Toggle& t : variant.toggles) toggles[t.name] = t.value;
  return toggles;
}

std::string family_of(const std::string& id) { return id.substr(0, id.rfind('.')); }

std::string text_of(const Toggles& toggles) {
  std::vector<std::string> words;
  for (const auto& [name, value] : toggles) words.push_back(fmt::format("{}={}", name, value));
  return fmt::format("{}", fmt::join(words, " "));
}

// Values of every toggle that some variant has; 0 is off.
std::map<std::string, std::set<int>> known_toggles(const std::vector<VariantInfo>& all) {
  std::map<std::string, std::set<int>> known;
  for (const VariantInfo& v : all)
    for (const Toggle& t : v.toggles) known[t.name].insert({0, t.value});
  return known;
}

int parse_value(const std::string& source, const std::string& name, std::string_view text,
                const std::set<int>& possible) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !possible.contains(value))
    throw Failure(kUsage,
                  fmt::format("{}: values of {} are {}", source, name, fmt::join(possible, ", ")));
  return value;
}

Toggles asked_toggles(const std::vector<VariantInfo>& all, const std::vector<std::string>& set,
                      bool* from_set) {
  const auto known = known_toggles(all);
  Toggles asked;
  for (const auto& [name, possible] : known)
    if (const char* value = std::getenv(name.c_str()))
      asked[name] =
          parse_value(fmt::format("{}={} (environment)", name, value), name, value, possible);
  for (const std::string& item : set) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos)
      throw Failure(kUsage, fmt::format("--set {}: expected NAME=VALUE", item));
    const std::string name = item.substr(0, equals);
    const auto it = known.find(name);
    if (it == known.end()) {
      std::vector<std::string> names;
      for (const auto& [n, values] : known) names.push_back(n);
      throw Failure(
          kUsage, fmt::format("--set {}: no variant has a toggle {}; possible are {}{}", item, name,
                              names.empty() ? "none in this build"
                                            : fmt::format("{}", fmt::join(names, ", ")),
                              did_you_mean(name, names)));
    }
    asked[name] =
        parse_value("--set " + item, name, std::string_view(item).substr(equals + 1), it->second);
    *from_set = true;
  }
  return asked;
}

// Combinations that no kernel could have a meaning for.
struct Rule {
  std::string_view toggle;
  int value;
  std::string_view needs;  // must not be 0
  std::string_view why;
};
constexpr Rule kRules[] = {
    {"USE_THREE_STAGE_PIPE", 1, "USE_CP_ASYNC",
     "a third stage holds tiles whose copies are under way, and plain loads never are"},
    {"USE_FUSED_SOFTMAX_PV", 2, "USE_WMMA_PV",
     "P stays in the registers of a matrix instruction, which scalar P·V cannot read"},
};

// A toggle that a ladder variant does not name is off in it.
int value_of(const Toggles& toggles, const std::string& name) {
  const auto it = toggles.find(name);
  return it == toggles.end() ? 0 : it->second;
}

int differences(const Toggles& a, const Toggles& b) {
  int count = 0;
  for (const auto& [name, value] : a) count += value_of(b, name) != value ? 1 : 0;
  for (const auto& [name, value] : b) count += !a.contains(name) && value != 0 ? 1 : 0;
  return count;
}

bool has_all(const Toggles& toggles, const Toggles& asked) {
  return std::all_of(asked.begin(), asked.end(), [&](const auto& item) {
    return value_of(toggles, item.first) == item.second;
  });
}

void refuse_meaningless(const std::string& id, const Toggles& wanted) {
  for (const Rule& rule : kRules)
    if (value_of(wanted, std::string(rule.toggle)) == rule.value &&
        value_of(wanted, std::string(rule.needs)) == 0)
      throw Failure(kUsage, fmt::format("{} with {}: {}={} needs {}=1: {}", id, text_of(wanted),
                                        rule.toggle, rule.value, rule.needs, rule.why));
}

// The variant of the same family that has the toggles of `variant` with those asked for changed.
const VariantInfo& sibling(const std::vector<VariantInfo>& all, const VariantInfo& variant,
                           const Toggles& asked) {
  Toggles wanted = toggles_of(variant);
  for (const auto& [name, value] : asked) wanted[name] = value;
  refuse_meaningless(variant.id, wanted);
  const VariantInfo* nearest = &variant;
  for (const VariantInfo& v : all) {
    if (family_of(v.id) != family_of(variant.id) || v.toggles.empty()) continue;
    if (differences(wanted, toggles_of(v)) < differences(wanted, toggles_of(*nearest)))
      nearest = &v;
  }
  if (differences(wanted, toggles_of(*nearest)) > 0)
    throw Failure(
        kUsage,
        fmt::format("{} with {}: no such kernel exists; the nearest is {} with {}", variant.id,
                    text_of(wanted), nearest->id, text_of(toggles_of(*nearest))));
  return *nearest;
}

Subjects apply_toggles(Subjects subjects, const std::set<std::string>& named,
                       const std::vector<VariantInfo>& all, const Toggles& asked, bool from_set,
                       std::vector<std::string>& notes) {
  if (asked.empty()) return subjects;
  Subjects kept;
  std::set<std::string> seen;
  for (auto& subject : subjects) {
    const VariantInfo* variant = find_variant(all, subject->id());
    const bool has_toggles = variant != nullptr && !variant->toggles.empty();
    if (!has_toggles) {
      if (!from_set || named.contains(subject->id())) kept.push_back(std::move(subject));
      continue;
    }
    if (named.contains(subject->id())) {
      const VariantInfo& other = sibling(all, *variant, asked);
      if (other.id == variant->id)
        notes.push_back(
            fmt::format("NO_OP: {} changes nothing in {}", text_of(asked), variant->id));
      if (seen.insert(other.id).second)
        kept.push_back(workbench::make_library_subject(other));
      else
        notes.push_back(fmt::format("NO_OP: {} with {} is {}, which runs already: one subject",
                                    variant->id, text_of(asked), other.id));
    } else if (has_all(toggles_of(*variant), asked) && seen.insert(variant->id).second) {
      kept.push_back(std::move(subject));
    }
  }
  if (kept.empty())
    throw Failure(kUsage, fmt::format("--set {}: no selected variant has that; see greenfast list",
                                      text_of(asked)));
  return kept;
}

DeviceKind choose_device(const std::string& device, const Subjects& subjects,
                         const std::vector<VariantInfo>& all, bool named) {
  if (device == "cpu") return DeviceKind::cpu;
  if (device == "cuda") return DeviceKind::cuda;
  if (device != "auto")
    throw Failure(kUsage, fmt::format("--device {}: possible are auto, cpu, cuda", device));
  const bool one_kind = named && !subjects.empty() &&
                        std::all_of(subjects.begin(), subjects.end(), [&](const auto& s) {
                          return s->device() == subjects.front()->device();
                        });
  if (one_kind) return subjects.front()->device();
  const bool cuda_built = std::any_of(all.begin(), all.end(), [](const VariantInfo& v) {
    return v.device == DeviceKind::cuda && v.built;
  });
  return cuda_built && device_facts(DeviceKind::cuda).ok() ? DeviceKind::cuda : DeviceKind::cpu;
}

std::string plugin_ids() {
  std::vector<std::string> ids;
  for (const workbench::PluginKernelRow& row : workbench::plugin_kernels()) ids.push_back(row.id);
  return fmt::format("{}", fmt::join(ids, ","));
}

}  // namespace

Selected select_subjects(const std::string& device, const std::string& selector,
                         const std::vector<std::string>& set) {
  // Whoever brings a kernel asks about that one; a verdict on all the others would pass for its.
  const std::string variants = selector.empty() ? plugin_ids() : selector;
  const std::vector<VariantInfo> all = greenfast::variants();
  bool from_set = false;
  const Toggles asked = asked_toggles(all, set, &from_set);
  const bool named = !variants.empty();
  Subjects subjects = value_or_fail(workbench::find_subjects(named ? variants : "all"));

  // Ids in the selector, as against patterns and "all": they are a promise to the user, so what
  // cannot be kept of them is an error or SKIPPED, never left out.
  std::set<std::string> ids;
  for (const std::string& item : split_list(variants)) ids.insert(item);
  Selected selected;
  subjects = apply_toggles(std::move(subjects), ids, all, asked, from_set, selected.notes);

  const DeviceKind kind = choose_device(device, subjects, all, named || from_set);
  for (auto& subject : subjects) {
    const VariantInfo* variant = find_variant(all, subject->id());
    if (subject->device() != kind) {
      if (ids.contains(subject->id()))
        throw Failure(kUsage, fmt::format("{}{}: it runs on {}, the device is {}; choose "
                                          "--device {} or another variant",
                                          selector.empty() ? "" : "--variants ", subject->id(),
                                          name_of(subject->device()), name_of(kind),
                                          name_of(subject->device())));
      continue;
    }
    if (!named && variant != nullptr && !variant->built) continue;
    selected.subjects.push_back(std::move(subject));
  }
  selected.device = value_or_fail(workbench::open_device(kind));
  if (selected.subjects.empty())
    throw Failure(kNoDevice, fmt::format("no variant for {} is built here; greenfast list shows "
                                         "what is",
                                         name_of(kind)));
  return selected;
}

}  // namespace greenfast::cli
