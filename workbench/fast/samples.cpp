#include "workbench/fast/samples.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "workbench/base/checkpoint.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

/// A value that is not what the schema says, with its JSON path.
struct SchemaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A JSON value that knows its path, so that a refusal can name the place.
class Node {
 public:
  Node(const json& value, std::string path) : value_(value), path_(std::move(path)) {}

  Node at(const char* key) const {
    if (!value_.is_object()) refuse("expected an object");
    const auto found = value_.find(key);
    if (found == value_.end()) throw SchemaError(fmt::format("{}/{}: missing", path_, key));
    return {*found, fmt::format("{}/{}", path_, key)};
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  std::vector<Node> list() const {
    if (!value_.is_array()) refuse("expected a list");
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < value_.size(); ++i) {
      nodes.emplace_back(value_[i], fmt::format("{}/{}", path_, i));
    }
    return nodes;
  }
  std::string text() const {
    if (!value_.is_string()) refuse("expected a string");
    return value_.get<std::string>();
  }
  double number() const {
    if (!value_.is_number()) refuse("expected a number");
    const double number = value_.get<double>();
    if (!std::isfinite(number)) refuse("expected a finite number");
    return number;
  }
  double positive() const {
    const double value = number();
    if (!(value > 0)) refuse("expected a number above 0");
    return value;
  }
  std::int64_t integer(std::int64_t lowest, std::int64_t highest) const {
    if (!value_.is_number_integer()) refuse("expected an integer");
    if (value_.is_number_unsigned() &&
        value_.get<std::uint64_t>() > static_cast<std::uint64_t>(highest)) {
      refuse(fmt::format("expected an integer of at most {}", highest));
    }
    const auto number = value_.get<std::int64_t>();
    if (number < lowest || number > highest) {
      refuse(fmt::format("expected an integer from {} to {}", lowest, highest));
    }
    return number;
  }
  std::uint64_t unsigned_integer() const {
    if (!value_.is_number_unsigned()) refuse("expected an integer of at least 0");
    return value_.get<std::uint64_t>();
  }
  const json& raw() const { return value_; }
  const std::string& path() const { return path_; }
  [[noreturn]] void refuse(const std::string& what) const {
    throw SchemaError(fmt::format("{}: {}", path_.empty() ? "/" : path_, what));
  }

 private:
  const json& value_;
  std::string path_;
};

json telemetry_json(const Telemetry& telemetry) {
  json out = json::object();
  if (telemetry.sm_mhz) out["sm_mhz"] = *telemetry.sm_mhz;
  if (telemetry.memory_mhz) out["memory_mhz"] = *telemetry.memory_mhz;
  if (telemetry.watts) out["watts"] = *telemetry.watts;
  if (telemetry.celsius) out["celsius"] = *telemetry.celsius;
  if (!telemetry.throttle_reasons.empty()) out["throttle_reasons"] = telemetry.throttle_reasons;
  return out;
}

Telemetry telemetry_of(const Node& node) {
  Telemetry telemetry;
  const auto read = [&](const char* key, std::optional<double>& to) {
    if (node.has(key)) to = node.at(key).number();
  };
  read("sm_mhz", telemetry.sm_mhz);
  read("memory_mhz", telemetry.memory_mhz);
  read("watts", telemetry.watts);
  read("celsius", telemetry.celsius);
  if (node.has("throttle_reasons")) {
    for (const Node& reason : node.at("throttle_reasons").list()) {
      telemetry.throttle_reasons.push_back(reason.text());
    }
  }
  return telemetry;
}

json shape_json(const Samples& samples) {
  json sides = json::array();
  for (const Side& side : samples.sides) {
    json entry = {{"id", side.id}, {"batch", side.batch}};
    if (!side.variant.empty()) entry["variant"] = side.variant;
    if (!side.refused.empty()) entry["refused"] = side.refused;
    if (!side.errors.empty()) entry["errors"] = side.errors;
    write_correctness(entry, side.correctness);
    if (!side.output_sha256.empty()) entry["output_sha256"] = side.output_sha256;
    if (side.threads_used > 0)
      entry["cpu"] = {{"threads", side.threads_used},
                      {"between_seconds", side.cpu_between_seconds}};
    if (side.held_bytes >= 0)
      entry["memory"] = {{"held_bytes", side.held_bytes}, {"grown_bytes", side.grown_bytes}};
    sides.push_back(std::move(entry));
  }
  json blocks = json::array();
  for (const Block& block : samples.blocks) {
    json order = json::array(), seconds = json::array(), waited = json::array();
    json with = json::array(), alone = json::array();
    bool any_waited = false;
    for (const Sample& sample : block.samples) {
      order.push_back(sample.side);
      seconds.push_back(sample.seconds);
      waited.push_back(sample.waited);
      with.push_back(sample.seconds + sample.neighbour_alone);
      alone.push_back(sample.neighbour_alone);
      any_waited = any_waited || sample.waited > 0;
    }
    json entry = {{"process", block.process}, {"order", order}, {"seconds", seconds}};
    if (any_waited) entry["waited"] = std::move(waited);
    if (!samples.neighbour.empty()) {
      entry["with_neighbour"] = std::move(with);
      entry["neighbour_alone"] = std::move(alone);
    }
    if (block.pulse > 0) entry["pulse"] = block.pulse;
    if (block.other_work > 0) entry["other_work"] = block.other_work;
    if (!block.dropped.empty()) entry["dropped"] = block.dropped;
    if (json telemetry = telemetry_json(block.telemetry); !telemetry.empty()) {
      entry["telemetry"] = std::move(telemetry);
    }
    blocks.push_back(std::move(entry));
  }
  json out = {{"name", samples.name},
              {"problem", samples.problem},
              {"flops", samples.flops},
              {"device", {{"kind", name_of(samples.device)}, {"name", samples.device_name}}},
              {"timer", samples.timer},
              {"tick_seconds", samples.tick_seconds},
              {"cache", name_of(samples.cache)},
              {"seed", samples.seed},
              {"sides", std::move(sides)},
              {"blocks", std::move(blocks)}};
  if (!samples.way.empty()) out["way"] = samples.way;
  if (!samples.neighbour.empty()) out["neighbour"] = samples.neighbour;
  if (samples.metric != CallMetric::back_to_back) out["metric"] = name_of(samples.metric);
  // A string: readers of JSON may hold numbers in 53 bits.
  if (samples.draw != 0) out["draw"] = fmt::format("{:016x}", samples.draw);
  return out;
}

/// Records of greenfast_bench.ab from before 2026-11-25 name a side's kernel in the harness' own
/// member alone: /ab/engines/ID/variant.
std::string variant_of_old_side(const json& shape, const std::string& id) {
  const json* at = &shape;
  for (const std::string& key : {std::string("ab"), std::string("engines"), id}) {
    const auto found = at->is_object() ? at->find(key) : at->end();
    if (!at->is_object() || found == at->end()) return {};
    at = &*found;
  }
  return at->is_object() && at->contains("variant") && at->at("variant").is_string()
             ? at->at("variant").get<std::string>()
             : std::string();
}

/// Both readings that a time is the difference of, where a neighbour stood before each call.
void read_neighbours(const Node& entry, bool between, Block& block) {
  constexpr double kRounding = 1e-9;  // of readings that went through a unit and text
  for (const char* key : {"with_neighbour", "neighbour_alone"}) {
    if (!between && entry.has(key))
      entry.at(key).refuse("the shape says of no neighbour; expected its name beside \"cache\"");
    if (between && entry.at(key).list().size() != block.samples.size())
      entry.refuse(fmt::format("order has {} entries, {} {}; expected as many",
                               block.samples.size(), key, entry.at(key).list().size()));
  }
  if (!between) return;
  const std::vector<Node> with = entry.at("with_neighbour").list(),
                          alone = entry.at("neighbour_alone").list();
  for (std::size_t i = 0; i < with.size(); ++i) {
    Sample& sample = block.samples[i];
    sample.neighbour_alone = alone[i].positive();
    const double difference = with[i].positive() - sample.neighbour_alone;
    if (!(std::fabs(difference - sample.seconds) <= kRounding * with[i].number()))
      with[i].refuse(fmt::format("less the neighbours alone it is {:.6g}, and seconds says {:.6g}",
                                 difference, sample.seconds));
  }
}

Samples shape_of(const Node& node) {
  Samples samples;
  samples.name = node.at("name").text();
  samples.problem = node.at("problem").text();
  samples.flops = node.has("flops") ? node.at("flops").number() : 0;
  const Node device = node.at("device");
  const std::string kind = device.at("kind").text();
  if (kind == name_of(DeviceKind::cpu)) {
    samples.device = DeviceKind::cpu;
  } else if (kind == name_of(DeviceKind::cuda)) {
    samples.device = DeviceKind::cuda;
  } else {
    device.at("kind").refuse("expected \"cpu\" or \"cuda\"");
  }
  samples.device_name = device.at("name").text();
  samples.timer = node.at("timer").text();
  samples.tick_seconds = node.at("tick_seconds").positive();
  const std::string cache = node.at("cache").text();
  if (cache != "cold" && cache != "hot") node.at("cache").refuse("expected \"cold\" or \"hot\"");
  samples.cache = cache == "cold" ? CacheState::cold : CacheState::hot;
  if (node.has("way")) samples.way = node.at("way").text();
  if (node.has("neighbour")) {
    samples.neighbour = node.at("neighbour").text();
    if (samples.neighbour.empty()) node.at("neighbour").refuse("expected what it is, in words");
  }
  if (node.has("metric")) {
    const std::string metric = node.at("metric").text();
    if (metric == name_of(CallMetric::after_pause)) {
      samples.metric = CallMetric::after_pause;
    } else if (metric != name_of(CallMetric::back_to_back)) {
      node.at("metric").refuse("expected \"back_to_back\" or \"after_pause\"");
    }
  }
  if (node.has("seed")) samples.seed = node.at("seed").unsigned_integer();
  if (node.has("draw")) {
    const std::string draw = node.at("draw").text();
    const auto end = std::from_chars(draw.data(), draw.data() + draw.size(), samples.draw, 16);
    if (end.ec != std::errc() || end.ptr != draw.data() + draw.size())
      node.at("draw").refuse("expected a hexadecimal number");
  }

  for (const Node& entry : node.at("sides").list()) {
    Side side;
    side.id = entry.at("id").text();
    if (samples.side(side.id) >= 0) entry.at("id").refuse("a side appears twice");
    side.batch = static_cast<int>(entry.at("batch").integer(1, std::numeric_limits<int>::max()));
    side.variant = entry.has("variant") ? entry.at("variant").text()
                                        : variant_of_old_side(node.raw(), side.id);
    if (entry.has("refused")) side.refused = entry.at("refused").text();
    const auto known = read_correctness(entry.raw());
    if (!known) entry.at("verdict").refuse("expected \"GREEN\", \"RED\" or \"SKIPPED\"");
    side.correctness = *known;
    if (entry.has("output_sha256")) side.output_sha256 = entry.at("output_sha256").text();
    if (entry.has("cpu")) {
      side.threads_used = entry.at("cpu").at("threads").number();
      side.cpu_between_seconds = entry.at("cpu").at("between_seconds").number();
    }
    if (entry.has("memory")) {
      constexpr std::int64_t kMost = std::int64_t{1} << 50;
      side.held_bytes = entry.at("memory").at("held_bytes").integer(0, kMost);
      side.grown_bytes = entry.at("memory").at("grown_bytes").integer(0, kMost);
    }
    if (entry.has("errors")) {
      const Node errors = entry.at("errors");
      if (!errors.raw().is_object()) errors.refuse("expected an object of numbers");
      for (const auto& item : errors.raw().items()) {
        side.errors[item.key()] = errors.at(item.key().c_str()).number();
      }
    }
    samples.sides.push_back(std::move(side));
  }
  if (samples.sides.empty()) node.at("sides").refuse("expected at least one side");

  for (const Node& entry : node.at("blocks").list()) {
    Block block;
    if (entry.has("process")) {
      block.process = static_cast<int>(entry.at("process").integer(0, 1'000'000));
    }
    if (entry.has("pulse")) block.pulse = entry.at("pulse").number();
    if (entry.has("other_work")) {
      block.other_work = entry.at("other_work").number();
      if (!(block.other_work >= 0 && block.other_work <= 1))
        entry.at("other_work").refuse("expected a share from 0 to 1");
    }
    if (entry.has("dropped")) block.dropped = entry.at("dropped").text();
    if (entry.has("telemetry")) block.telemetry = telemetry_of(entry.at("telemetry"));
    const std::vector<Node> order = entry.at("order").list(), seconds = entry.at("seconds").list();
    if (order.size() != seconds.size()) {
      entry.refuse(fmt::format("order has {} entries, seconds {}; expected as many", order.size(),
                               seconds.size()));
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto side = order[i].integer(0, static_cast<std::int64_t>(samples.sides.size()) - 1);
      block.samples.push_back({static_cast<int>(side), seconds[i].positive()});
    }
    read_neighbours(entry, !samples.neighbour.empty(), block);
    if (entry.has("waited")) {
      const std::vector<Node> waited = entry.at("waited").list();
      if (waited.size() != order.size())
        entry.refuse(fmt::format("order has {} entries, waited {}; expected as many", order.size(),
                                 waited.size()));
      for (std::size_t i = 0; i < waited.size(); ++i) {
        Sample& sample = block.samples[i];
        sample.waited = waited[i].number();
        if (!(sample.waited >= 0 && sample.waited < sample.seconds))
          waited[i].refuse("expected seconds from 0 to those of the sample");
      }
    }
    samples.blocks.push_back(std::move(block));
  }
  return samples;
}

}  // namespace

std::string_view name_of(CacheState state) noexcept {
  return state == CacheState::cold ? "cold" : "hot";
}

std::string_view name_of(CallMetric metric) noexcept {
  return metric == CallMetric::after_pause ? "after_pause" : "back_to_back";
}

int Samples::side(std::string_view id) const noexcept {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

json to_json(const std::vector<Samples>& shapes) {
  json list = json::array();
  for (const Samples& samples : shapes) list.push_back(shape_json(samples));
  return {{"schema", kSamplesSchema}, {"shapes", std::move(list)}};
}

Result<std::vector<Samples>> samples_from_json(const json& document) {
  try {
    const Node root(document, "");
    const std::string schema = root.at("schema").text();
    if (schema != kSamplesSchema) {
      return Status(
          StatusCode::invalid_argument,
          fmt::format("/schema: \"{}\"; this version reads \"{}\"", schema, kSamplesSchema));
    }
    std::vector<Samples> shapes;
    for (const Node& node : root.at("shapes").list()) shapes.push_back(shape_of(node));
    return shapes;
  } catch (const SchemaError& error) {
    return Status(StatusCode::invalid_argument, error.what());
  }
}

Result<std::vector<Samples>> read_samples(const std::filesystem::path& file) {
  const Result<json> document = read_record(file);
  if (!document) return document.status();
  auto shapes = samples_from_json(*document);
  if (!shapes) {
    return Status(shapes.status().code(),
                  fmt::format("{}: {}", file.string(), shapes.status().message()));
  }
  return shapes;
}

}  // namespace greenfast::workbench
