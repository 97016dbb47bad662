// Steps of the gate through JSON and back, and what is none of them.
#include "workbench/verdict/step_results.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "workbench/verdict/decide.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  bool coin() { return below(2) == 0; }
  double real() { return std::ldexp(static_cast<double>(random_() >> 11), -40) + 1e-9; }
  std::string word() {
    static const char* const kWords[] = {"mission",    "plugin:x", "a \"quoted\" one",
                                         "crashed: 7", "\xc3\xa9", "RED: no verdict",
                                         "line\nline"};
    return kWords[below(7)];
  }
  template <class T>
  std::optional<T> maybe(const std::function<T()>& make) {
    return coin() ? std::optional<T>(make()) : std::nullopt;
  }
  Plan plan() {
    Plan plan;
    plan.variant = word();
    plan.kernel = word();
    plan.grid = {1 + below(9), 1, 1 + below(9)};
    plan.block = {128, 1, 1};
    plan.shared_bytes = below(1 << 18);
    plan.workspace_bytes = below(1 << 30);
    return plan;
  }
  GreenTally tally() {
    GreenTally tally;
    tally.green = below(50);
    tally.skipped = below(3);
    tally.first_red = maybe<RedCase>([&] {
      static constexpr Fault kFaults[] = {Fault::launch, Fault::numerics, Fault::integrity};
      const Fault fault = kFaults[below(3)];
      return RedCase{word(), static_cast<std::uint64_t>(below(9)),
                     fault == Fault::launch ? "launch" : "rel_fro", fault, word()};
    });
    tally.cases = tally.green + tally.skipped + (tally.first_red ? 1 : 0);
    tally.worst = {{"rel_fro", real()}, {"max_err", coin() ? std::nan("") : real()}};
    tally.digests = {{"0", "ab12"}};
    if (coin()) tally.refused = {{"long_rows", word()}};
    tally.rows_checked = below(1000);
    tally.rows_total = tally.rows_checked + below(1000);
    return tally;
  }
  Samples samples(int sides) {
    Samples out;
    out.name = "mission";
    out.problem = "1x8x512x64 fp32";
    out.flops = 1e9;
    out.device_name = word();
    out.timer = "t";
    out.tick_seconds = 1e-8;
    for (int i = 0; i < sides; ++i)
      out.sides.emplace_back().id = std::string(1, static_cast<char>('a' + i));
    for (int b = 0; b < 4; ++b) {
      Block& block = out.blocks.emplace_back();
      for (int s = 0; s < sides; ++s) block.samples.push_back({s, real()});
    }
    return out;
  }

  BuildStep build() {
    BuildStep step;
    step.dtype = "bf16";
    step.device.kind = coin() ? DeviceKind::cpu : DeviceKind::cuda;
    step.device.name = word();
    step.device.arch = below(100);
    step.device.multiprocessors = 1 + below(132);
    for (int i = 0, n = 1 + below(3); i < n; ++i)
      step.shapes.push_back({word(), word(), i == 0, coin() ? "" : word(),
                             maybe<Plan>([&] { return plan(); }),
                             maybe<Plan>([&] { return plan(); })});
    step.no_op = coin() ? "" : word();
    return step;
  }
  GreenStep green() { return {tally(), tally(), {{"rel_fro", real()}}}; }
  ClaimsStep claims() {
    ClaimsStep step;
    for (int i = 0, n = 1 + below(4); i < n; ++i) {
      Claim& claim = step.claims.emplace_back();
      claim.kind = word();
      claim.problem = word();
      if (coin())
        claim.refused = word();
      else
        claim.tally = tally();
    }
    return step;
  }
  FastStep fast() {
    FastStep step;
    const int sides = 2 + below(2);
    step.samples = samples(sides);
    for (int i = 0; i < sides; ++i) {
      SideCheck& check = step.checks.emplace_back();
      check.fault = coin() ? Fault::none : Fault::integrity;
      if (check.fault != Fault::none) check.failure = word();
      check.impossible = coin();
      check.judged = below(100);
      check.floor_seconds = real();
    }
    step.stopped = "width";
    step.peak = {real(), real(), word()};
    return step;
  }
  PeersStep peers() {
    PeersStep step;
    if (coin()) {
      step.skipped = word();
      return step;
    }
    step.shape = word();
    for (int i = 0, n = 1 + below(3); i < n; ++i) {
      PeerSide& side = step.sides.emplace_back();
      side.id = word();
      if (coin()) side.correctness = {Verdict::green, ""};
      if (coin()) side.correctness = {Verdict::red, word()};
      side.errors = {{"rel_fro", real()}};
      if (coin()) {
        side.refused = word();
        continue;
      }
      side.p50 = real();
      side.p90 = real();
      side.samples = 1 + below(100);
      side.speedup = maybe<Interval>([&] { return Interval{real(), real(), real()}; });
    }
    step.notes = {word()};
    step.samples = maybe<Samples>([&] { return samples(2); });
    step.best = coin() ? "" : word();
    step.skipped = coin() ? "" : word();
    return step;
  }

 private:
  std::mt19937_64 random_;
};

template <class Step>
void returns(const Step& step) {
  const json words = json::parse(step_json(Result<Step>(step)).dump());
  const auto read = step_of_json<Step>(words);
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(json::parse(json_of(*read).dump()), words) << words.dump(1);
}

TEST(StepResults, ReturnFromJsonAsTheyWere) {
  Draw draw(7);
  for (int i = 0; i < 200; ++i) {
    returns(draw.build());
    returns(draw.green());
    returns(draw.claims());
    returns(draw.fast());
    returns(draw.peers());
  }
  for (const StatusCode code : {StatusCode::invalid_argument, StatusCode::internal}) {
    const Result<GreenStep> failed(Status(code, "no room"));
    const auto read = step_of_json<GreenStep>(step_json(failed));
    ASSERT_FALSE(read);
    EXPECT_EQ(read.status().code(), code);
    EXPECT_EQ(read.status().message(), "no room");
  }
}

/// Each member in turn taken out, and replaced by what it cannot be.
template <class Step>
int holes(const Step& step, const std::set<std::string>& optional, const std::string& below) {
  const json whole = json::parse(json_of(step).dump());
  int seen = 0;
  const auto wrong = [&](const json& changed, const std::string& where) {
    ++seen;
    EXPECT_THROW((void)step_of_json<Step>(changed), json::exception) << where;
  };
  std::vector<std::string> todo = {""};
  while (!todo.empty()) {
    const json::json_pointer at(todo.back());
    todo.pop_back();
    const json& here = whole.at(at);
    // Samples have a codec and tests of their own.
    if (at.to_string() == below + "/samples") continue;
    if (here.is_array() && !here.empty()) todo.push_back((at / 0).to_string());
    if (!here.is_object()) continue;
    for (const auto& [key, value] : here.items()) {
      const auto member = at / key;
      if (key != "samples" || value.is_number()) todo.push_back(member.to_string());
      json changed = whole;
      changed[member] = value.is_boolean() ? json("yes") : json(true);
      wrong(changed, member.to_string());
      const std::string in = at.empty() ? "" : at.back();
      if (optional.contains(key) || in == "worst" || in == "limits" || in == "digests" ||
          in == "errors")
        continue;
      changed = whole;
      changed[at].erase(key);
      wrong(changed, member.to_string() + " taken out");
    }
  }
  return seen;
}

TEST(StepResults, WhatIsMissingOrOfAnotherKindIsRefused) {
  Draw draw(3);
  BuildStep build = draw.build();
  build.no_op = build.shapes[0].refused = "why";
  build.shapes[0].baseline = draw.plan();
  build.shapes[0].candidate = draw.plan();
  EXPECT_GT(holes(build, {"no_op", "refused", "baseline", "candidate"}, ""), 30);

  GreenStep green = draw.green();
  green.candidate.first_red = RedCase{"normal", 1, "launch", Fault::launch, "died"};
  green.candidate.cases = green.candidate.green + green.candidate.skipped + 1;
  EXPECT_GT(holes(green, {}, ""), 30);

  ClaimsStep claims;
  claims.claims.push_back({"LSE", "1x2", "", green.candidate});
  EXPECT_GT(holes(claims, {}, ""), 15);

  FastStep fast = draw.fast();
  EXPECT_GT(holes(fast, {}, ""), 10);

  PeersStep peers;
  peers.shape = "mission";
  PeerSide& side = peers.sides.emplace_back();
  side.id = "peer:x";
  side.correctness.verdict = Verdict::green;
  side.errors["rel_fro"] = 1e-7;
  side.p50 = side.p90 = 1;
  side.samples = 3;
  side.speedup = Interval{1, 1, 1};
  EXPECT_GT(holes(peers, {"speedup", "sides"}, ""), 10);
}

TEST(StepResults, WhatSaysTwoThingsIsRefused) {
  Draw draw(11);
  const auto refused = [](auto step, const std::function<void(json&)>& change) {
    json words = json_of(step);
    change(words);
    EXPECT_THROW((void)step_of_json<decltype(step)>(words), json::exception) << words.dump(1);
  };
  GreenStep green;
  green.candidate.cases = green.candidate.green = 3;
  refused(green, [](json& w) { w["candidate"]["green"] = 2; });
  refused(green, [](json& w) { w["candidate"]["cases"] = -3; });
  refused(green, [](json& w) { w["candidate"]["cases"] = 3.0; });
  green.candidate.first_red = RedCase{"normal", 0, "launch", Fault::launch, "died"};
  green.candidate.cases = 4;
  refused(green, [](json& w) { w["candidate"]["first_red"]["integrity"] = false; });
  FastStep fast = draw.fast();
  fast.checks[0].fault = Fault::none;
  fast.checks[0].failure = "";
  refused(fast, [](json& w) { w["checks"][0]["failure"] = "died"; });
  refused(fast, [](json& w) { w["checks"][0]["fault"] = "integrity"; });
  refused(fast, [](json& w) { w["checks"][0]["fault"] = "gravity"; });
  refused(fast, [](json& w) { w["checks"].push_back(w["checks"][0]); });
  ClaimsStep claims;
  claims.claims.push_back({"LSE", "1x2", "takes no LSE", {}});
  refused(claims, [](json& w) { w["claims"][0]["candidate"] = json_of(GreenTally()); });
  refused(claims, [](json& w) { w["claims"] = json::array(); });
  refused(draw.build(), [](json& w) { w["device"]["kind"] = "tpu"; });
  refused(draw.build(), [](json& w) { w["shapes"] = json::array(); });
  refused(draw.build(), [](json& w) { w = {{"failed", {{"code", 0}, {"message", "ok?"}}}}; });
}

TEST(ReasonCodes, HaveOneNameAndOneExitCodeEach) {
  for (int i = 0; i <= static_cast<int>(ReasonCode::no_op); ++i) {
    const auto code = static_cast<ReasonCode>(i);
    EXPECT_EQ(parse_reason_code(name_of(code)), code);
    EXPECT_EQ(rejects(code), code < ReasonCode::below_gate);
  }
  EXPECT_FALSE(parse_reason_code("PROMOTE"));
  EXPECT_EQ(exit_code_of(reason_of(Fault::launch)), exit_code_of(Fault::launch));
  EXPECT_EQ(exit_code_of(reason_of(Fault::numerics)), exit_code_of(Fault::numerics));
  EXPECT_EQ(exit_code_of(reason_of(Fault::integrity)), exit_code_of(Fault::integrity));
}

}  // namespace
}  // namespace greenfast::workbench::test
