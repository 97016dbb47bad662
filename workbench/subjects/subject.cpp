#include "workbench/subjects/subject.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "workbench/base/trim.hpp"
#include "workbench/subjects/mutants/mutants.hpp"
#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::workbench {
namespace {

// A library variant, or with an empty id whatever the library selects.
class LibrarySubject final : public Subject {
 public:
  LibrarySubject(std::string id, DeviceKind device) : id_(std::move(id)), device_(device) {}

  std::string id() const override { return id_.empty() ? "auto" : id_; }
  DeviceKind device() const override { return device_; }

  std::optional<std::string> refusal(const Problem& problem, const DeviceFacts& facts) override {
    if (facts.kind != device_)
      return "runs on " + std::string(name_of(device_)) + ", not on " +
             std::string(name_of(facts.kind));
    const Selection selection = explain(problem, facts, options(nullptr, nullptr, 0));
    for (const Candidate& candidate : selection.candidates) {
      if (id_.empty() ? candidate.accepted : candidate.variant == id_ && candidate.accepted)
        return std::nullopt;
      if (candidate.variant == id_) return candidate.reason;
    }
    return id_.empty() ? "no variant takes this problem" : "not in the registry";
  }

  std::optional<Plan> plan(const Problem& problem, const DeviceFacts& facts) override {
    auto made = greenfast::plan(problem, facts, options(nullptr, nullptr, 0));
    if (!made) return std::nullopt;
    return std::move(*made);
  }

  Status prepare(const Problem& problem, void* stream) override {
    return greenfast::prepare(problem, options(stream, nullptr, 0));
  }

  Status launch(const Problem& problem, const Tensors& tensors, void* stream, void* workspace,
                std::size_t workspace_bytes) override {
    return attention(problem, tensors, options(stream, workspace, workspace_bytes));
  }

 private:
  Options options(void* stream, void* workspace, std::size_t workspace_bytes) const {
    Options options;
    options.device = device_;
    options.stream = stream;
    options.variant = id_;
    options.workspace = workspace;
    options.workspace_bytes = workspace_bytes;
    return options;
  }

  std::string id_;
  DeviceKind device_;
};

// '*' stands for any run of characters.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

std::unique_ptr<Subject> make_library_subject(const VariantInfo& variant) {
  return std::make_unique<LibrarySubject>(variant.id, variant.device);
}

std::unique_ptr<Subject> make_automatic_subject(DeviceKind device) {
  return std::make_unique<LibrarySubject>(std::string(), device);
}

Result<std::vector<std::unique_ptr<Subject>>> find_subjects(std::string_view selector) {
  const std::vector<VariantInfo> registry = variants();
  // Compared with a predecessor, or the first of those.
  const auto is_rung = [&](const VariantInfo& variant) {
    return !variant.automatic &&
           (!variant.predecessor.empty() ||
            std::any_of(registry.begin(), registry.end(),
                        [&](const VariantInfo& other) { return other.predecessor == variant.id; }));
  };
  const auto refuse = [&](std::string_view item, std::string_view what) {
    std::string known;
    for (const auto& variant : registry) known += (known.empty() ? "" : ", ") + variant.id;
    for (const auto& row : plugin_kernels()) known += ", " + row.id;
    // Half a hundred: their names only help who asked for one.
    if (names_planted(item))
      for (const auto& row : planted_table()) known += ", " + planted_id(row);
    else
      known += "; planted kernels as mutant.NAME, honest.NAME";
    return Status(
        StatusCode::invalid_argument,
        "variants '" + std::string(item) + "': " + std::string(what) +
            "; give ids, patterns with *, all, ladder, rollback or auto. Known: " + known);
  };

  std::vector<std::unique_ptr<Subject>> found;
  const auto add = [&](const std::string& id, const auto& make) {
    if (std::none_of(found.begin(), found.end(),
                     [&](const auto& subject) { return subject->id() == id; }))
      found.push_back(make());
  };
  std::string_view rest = selector;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    const std::string_view item = trim(rest.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    if (item.empty()) return refuse(selector, "has an empty item");

    bool any = false;
    for (const auto& variant : registry) {
      const bool derived = !variant.derived_from.empty();
      const bool wanted =
          item == variant.id || (item == "rollback" && derived && variant.phases.empty()) ||
          (!derived && (item == "all" || (item == "ladder" && is_rung(variant)) ||
                        (item == "auto" && variant.automatic) || matches(item, variant.id)));
      if (!wanted) continue;
      any = true;
      add(variant.id, [&] { return make_library_subject(variant); });
    }
    // Planted kernels must be asked for: "*" means the library's.
    if (names_planted(item))
      for (const auto& row : planted_table()) {
        const std::string id = planted_id(row);
        if (!matches(item, id)) continue;
        any = true;
        add(id, [&] { return make_planted(id); });
      }
    if (item.starts_with("plugin:"))
      for (const auto& row : plugin_kernels()) {
        if (!matches(item, row.id)) continue;
        any = true;
        add(row.id, [&] { return make_plugin_subject(row.id); });
      }
    if (!any && item != "ladder" && item != "rollback" && item != "auto" && item != "all")
      return refuse(item, "matches nothing");
  }
  if (found.empty()) return refuse(selector, "matches no variant of this build");
  return found;
}

}  // namespace greenfast::workbench
