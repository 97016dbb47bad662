#include "workbench/search/evolve.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/guard.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/base/sha256.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of one line
/// Losses in a row after which nobody is asked any more.
constexpr int kPatience = 3;

/// The proposer's process and its two pipes.
class Proposer {
 public:
  explicit Proposer(std::string command) : command_(std::move(command)) {}
  ~Proposer() { stop(); }
  Proposer(const Proposer&) = delete;
  Proposer& operator=(const Proposer&) = delete;

  bool running() const { return child_ > 0; }

  Status start() {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0) return failed("no pipe");
    if (pipe2(from, O_CLOEXEC) != 0) {
      close(to[0]);
      close(to[1]);
      return failed("no pipe");
    }
    std::string shell = "/bin/sh", option = "-c", command = command_;
    char* argv[] = {shell.data(), option.data(), command.data(), nullptr};
    const pid_t parent = getpid();
    child_ = fork();
    if (child_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      run_guarded(parent, shell.c_str(), argv, "", "");
    }
    const int error = errno;
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
    if (child_ > 0) return {};
    child_ = 0;
    stop();
    errno = error;
    return failed("no process");
  }

  void stop() {
    if (to_ >= 0) close(to_);
    if (from_ >= 0) close(from_);
    to_ = from_ = -1;
    if (child_ > 0) {
      kill(child_, SIGTERM);  // its guard ends what it started
      while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    child_ = 0;
    buffer_.clear();
  }

  /// False when it does not listen any more.
  bool say(const json& message, double timeout) {
    const std::string line = json_text(message) + "\n";
    fcntl(to_, F_SETFL, O_NONBLOCK);
    const auto begin = Clock::now();
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t count = write(to_, line.data() + done, line.size() - done);
      if (count > 0) {
        done += static_cast<std::size_t>(count);
        continue;
      }
      if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
      const double waited = seconds_since(begin);
      if (waited > timeout) return false;
      pollfd waiting{to_, POLLOUT, 0};
      poll(&waiting, 1, 100);
    }
    return true;
  }

  /// The next line; or why there is none.
  Result<std::string> hear(double timeout, const std::function<bool()>& stop_asked) {
    const auto begin = Clock::now();
    for (;;) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (buffer_.size() > kMostBytes)
        return Status(StatusCode::invalid_argument,
                      fmt::format("a line of more than {} bytes", kMostBytes));
      const double left = timeout - seconds_since(begin);
      if (left <= 0)
        return Status(StatusCode::internal, fmt::format("no answer within {:g} s", timeout));
      if (stop_asked && stop_asked()) throw LabStopped{};
      pollfd waiting{from_, POLLIN, 0};
      if (poll(&waiting, 1, static_cast<int>(std::min(left, 0.2) * 1000) + 1) <= 0) continue;
      char bytes[8192];
      const ssize_t count = ::read(from_, bytes, sizeof bytes);
      if (count > 0) {
        buffer_.append(bytes, static_cast<std::size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        return Status(StatusCode::internal, "the proposer ended");
      }
    }
  }

 private:
  static Status failed(const char* what) {
    return {StatusCode::internal, fmt::format("--proposer: {}: {}", what, std::strerror(errno))};
  }

  std::string command_, buffer_;
  pid_t child_ = 0;
  int to_ = -1, from_ = -1;
};

std::string text_of(const fs::path& file) {
  auto text = read_file(file);
  if (!text) throw LabError(text.status());
  return std::move(*text);
}

class Evolution {
 public:
  Evolution(const EvolveOptions& options, Lab& lab)
      : options_(options),
        lab_(lab),
        folder_(options.folder),
        proposer_(options.proposer),
        base_{"c0", options.source, {}} {}

  json run() {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error)
      throw LabError(
          {StatusCode::internal, fmt::format("{}: {}", folder_.string(), error.message())});
    if (options_.compile_only) {
      lab_.compile({base_});
      if (const json& built = *lab_.find(base_.key, "compile"); !built["ok"].get<bool>())
        throw LabError({StatusCode::invalid_argument,
                        fmt::format("{}: {}", base_.key, built.value("reason", ""))});
    } else {
      lab_.time(base_, {}, 0);  // what there is must be right
    }
    const std::string base_text = text_of(base_.source);
    known_[sha256_hex(base_text)] = base_.key;
    speedups_[base_.key] = 1;
    right_.push_back(base_);
    json first = {{"id", base_.key}, {"parents", json::array()},
                  {"ok", true},      {"speedup", speedup_json(base_.key)},
                  {"note", ""},      {"sha256", sha256_hex(base_text)}};
    add_resources(first);
    (void)same_code(base_.key);
    history_.push_back(std::move(first));
    int lost = 0;
    for (int n = 1; n <= options_.candidates && lost < kPatience && !done_; ++n) {
      const std::string id = fmt::format("c{}", n);
      if (options_.lab.stop && options_.lab.stop()) throw LabStopped{};
      const json* kept = lab_.find(id, "proposal");
      if (kept == nullptr && options_.lab.simulate) break;  // there it ended
      if (kept == nullptr || options_.lab.simulate) {
        if (options_.lab.step) options_.lab.step(fmt::format("waiting for proposal {}", id));
        json proposal = ask(id);
        if (options_.lab.simulate) hold(id, *kept, proposal);
        if (done_) break;
        if (kept == nullptr) lab_.add(id, "proposal", std::move(proposal));
      }
      const json proposal = *lab_.find(id, "proposal");
      lost = proposal.value("lost", false) ? lost + 1 : 0;
      judge(id, proposal);
    }
    proposer_.stop();
    if (options_.compile_only) return {{"lineage", history_}, {"folder", folder_.string()}};
    return result();
  }

 private:
  json rejection(const std::string& reason, bool lost) {
    // Whatever it says next belongs to nobody's question.
    proposer_.stop();
    return {{"ok", false}, {"reason", reason}, {"lost", lost}};
  }

  /// That a simulated search's proposer answers as it did when the cache was made.
  void hold(const std::string& id, const json& kept, const json& now) const {
    if (!done_ && kept == now) return;
    const auto told = [](const json& one) {
      return one.value("ok", false)
                 ? fmt::format("source {} from {} ({})", one.value("sha256", "").substr(0, 8),
                               fmt::join(one["parents"].get<std::vector<std::string>>(), ", "),
                               one.value("note", ""))
                 : one.value("reason", "");
    };
    throw LabError({StatusCode::invalid_argument,
                    fmt::format("{}: {} was {}, and the proposer now answers {}: what is searched "
                                "from, or the proposer, has changed since",
                                options_.lab.cache.string(), id, told(kept),
                                done_ ? "that it is done" : told(now))});
  }

  json ask(const std::string& id) {
    if (!proposer_.running()) {
      if (Status status = proposer_.start(); !status) throw LabError(status);
      std::vector<std::string> problems;
      for (const NamedProblem& p : options_.lab.problems) problems.push_back(to_string(p.problem));
      if (!proposer_.say({{"type", "task"},
                          {"protocol", "greenfast.evolve/1"},
                          {"language", base_.source.extension().string().substr(1)},
                          {"source", text_of(base_.source)},
                          {"problems", problems},
                          {"policy", options_.lab.policy},
                          {"advice", options_.advice}},
                         options_.proposal_seconds))
        return rejection("the proposer does not listen", true);
    }
    json best = json::array();
    for (const LabCandidate& c : ranked())
      if (static_cast<int>(best.size()) < options_.shown)
        best.push_back(
            {{"id", c.key}, {"speedup", speedup_json(c.key)}, {"source", text_of(c.source)}});
    if (!proposer_.say({{"type", "propose"}, {"id", id}, {"best", best}, {"history", history_}},
                       options_.proposal_seconds))
      return rejection("the proposer does not listen", true);
    const auto line = proposer_.hear(options_.proposal_seconds, options_.lab.stop);
    if (!line) return rejection(line.status().message(), true);
    const json said = json::parse(*line, nullptr, false);
    if (said.is_discarded() || !said.is_object())
      return rejection(fmt::format("no JSON object: {}", clean_text(line->substr(0, 80))), false);
    const auto text = [&](const char* name) {
      const auto it = said.find(name);
      return it != said.end() && it->is_string() ? it->get<std::string>() : std::string();
    };
    const auto words = [&](const char* name) { return clean_text(text(name)); };
    if (text("type") == "done") {
      done_ = true;
      return {};
    }
    if (text("type") != "candidate" && text("type") != "pass")
      return rejection(
          fmt::format("type is '{}'; possible are candidate, pass, done", text("type")), false);
    if (text("id") != id)
      return rejection(fmt::format("answers '{}' where {} was asked for", text("id"), id), false);
    if (text("type") == "pass")  // whoever passes for ever is given up as the silent are
      return {{"ok", false}, {"reason", "the proposer passed: " + words("reason")}, {"lost", true}};
    const std::string source = text("source");
    if (source.empty()) return rejection("has no source", false);
    json parents = json::array();
    if (said.contains("parents") && said["parents"].is_array())
      for (const json& parent : said["parents"])
        if (parent.is_string()) parents.push_back(parent);
    const std::string file = id + base_.source.extension().string();
    if (Status status = write_file_atomically(folder_ / file, source); !status)
      throw LabError(status);
    return {{"ok", true},
            {"parents", parents},
            {"note", words("note").substr(0, 500)},
            {"file", file},
            {"sha256", sha256_hex(source)}};
  }

  void judge(const std::string& id, const json& proposal) {
    json told = {{"id", id},
                 {"parents", proposal.value("parents", json::array())},
                 {"ok", false},
                 {"speedup", speedup_json(id)},
                 {"note", proposal.value("note", "")}};
    if (!proposal["ok"].get<bool>()) {
      told["stage"] = "proposal";
      told["reason"] = proposal.value("reason", "");
    } else if (const auto same = known_.find(proposal.value("sha256", "")); same != known_.end()) {
      told["stage"] = "proposal";
      told["reason"] = "the same source as " + same->second;
    } else {
      told["sha256"] = proposal["sha256"];
      known_[proposal.value("sha256", "")] = id;
      const LabCandidate candidate{id, folder_ / proposal.value("file", ""), {}};
      bool good = false;
      if (options_.compile_only) {
        lab_.compile({candidate});
        good = lab_.find(id, "compile")->at("ok").get<bool>();
      } else {
        speedups_[id] = lab_.time(base_, {candidate}, 0).front();
        good = speedups_[id] > 0;
      }
      const std::string twin = same_code(id);
      good = good && twin.empty();
      told["ok"] = good;
      told["speedup"] = speedup_json(id);
      add_resources(told);
      if (good) {
        right_.push_back(candidate);
      } else {
        if (!twin.empty()) {
          told["stage"] = "compile";
          told["reason"] = "the same machine code as " + twin;
        }
        for (const char* stage : {"compile", "case", "time0"}) {
          const json* result = lab_.find(id, stage);
          if (result == nullptr || result->at("ok").get<bool>()) continue;
          told["stage"] = stage;
          told["reason"] = result->value("reason", "").substr(0, 2000);
          if (result->contains("fault")) told["fault"] = result->at("fault");
        }
      }
    }
    if (options_.lab.finished)
      options_.lab.finished(!told["ok"].get<bool>()
                                ? fmt::format("{}: rejected ({}): {}", id, told.value("stage", ""),
                                              told.value("reason", "").substr(0, 200))
                            : options_.compile_only
                                ? fmt::format("{}: compiles", id)
                                : fmt::format("{}: {:.3f}x", id, told["speedup"].get<double>()));
    history_.push_back(told);
    told["type"] = "result";
    // Who does not listen is found out at the next question.
    if (proposer_.running()) (void)proposer_.say(told, 1);
  }

  /// The earlier candidate with the same machine code, for which the lab times one alone.
  std::string same_code(const std::string& id) {
    const json* built = lab_.find(id, "compile");
    const std::string code = built != nullptr ? built->value("code_sha256", "") : "";
    if (code.empty() || !built->at("ok").get<bool>()) return {};
    const auto [first, fresh] = codes_.try_emplace(code, id);
    return fresh ? "" : first->second;
  }

  /// Null where nobody was timed.
  json speedup_json(const std::string& id) const {
    if (options_.compile_only) return nullptr;
    const auto it = speedups_.find(id);
    return it == speedups_.end() ? 0.0 : it->second;
  }

  /// What the compiled kernels of a CUDA candidate take.
  void add_resources(json& told) const {
    const json* built = lab_.find(told["id"].get<std::string>(), "compile");
    if (built == nullptr || !built->contains("registers")) return;
    told["resources"] = {{"registers", (*built)["registers"]},
                         {"local_bytes", (*built)["stack_bytes"]},
                         {"static_shared_bytes", (*built)["static_shared_bytes"]}};
  }

  std::vector<LabCandidate> ranked() const {
    std::vector<LabCandidate> out = right_;
    if (options_.compile_only) {  // the latest first: nobody knows which is fastest
      std::reverse(out.begin(), out.end());
      return out;
    }
    std::stable_sort(out.begin(), out.end(), [&](const LabCandidate& a, const LabCandidate& b) {
      return speedups_.at(a.key) > speedups_.at(b.key);
    });
    return out;
  }

  json result() {
    const Lab::Final final = lab_.decide(base_, ranked());
    json rejected = json::array();
    for (const json& row : history_)
      if (!row["ok"].get<bool>()) {
        rejected.push_back({{"key", row["id"]},
                            {"stage", row.value("stage", "")},
                            {"reason", row.value("reason", "")}});
        if (row.contains("fault")) rejected.back()["fault"] = row["fault"];
      }
    const json origin = lab_.origin();
    return {{"schema", "greenfast.evolve/1"},
            {"identity", origin["identity"]},
            {"measured", origin["measured"]},
            {"hand_set", base_.key},
            {"winner", final.winner.key},
            {"winner_file", (final.winner.key == base_.key
                                 ? base_.source.filename()
                                 : final.winner.source.lexically_relative(folder_.parent_path()))
                                .string()},
            {"finalists", final.finalists},
            {"confirmed", final.confirmed},
            {"lineage", history_},
            {"rejected", rejected}};
  }

  const EvolveOptions& options_;
  Lab& lab_;
  fs::path folder_;
  Proposer proposer_;
  LabCandidate base_;
  std::map<std::string, std::string> known_, codes_;  // digest of source, of machine code -> id
  std::map<std::string, double> speedups_;
  std::vector<LabCandidate> right_;
  json history_ = json::array();
  bool done_ = false;
};

}  // namespace

json evolve(const EvolveOptions& options) {
  auto lab = Lab::open(options.lab);
  if (!lab) throw LabError(lab.status());
  return Evolution(options, **lab).run();
}

}  // namespace greenfast::workbench
