#include "moesaic/cost/calibration.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "moesaic/comm/topology.h"
#include "moesaic/core/error.h"
#include "moesaic/core/json.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "moesaic calibration";
constexpr int kVersion = 2;

void require_time(double value, std::string_view field) {
  require(std::isfinite(value) && value >= 0, "calibration: {} is {}, expected a finite time of at least 0 s",
          field, value);
}

void require_rate(double value, std::string_view field) {
  require(std::isfinite(value) && value > 0, "calibration: {} is {}, expected a finite number above 0", field,
          value);
}

void require_valid(const Link& link, std::string_view name) {
  require_time(link.seconds_per_message, fmt::format("{}.seconds_per_message", name));
  require_time(link.seconds_per_byte, fmt::format("{}.seconds_per_byte", name));
}

void require_valid(const Rate& rate, std::string_view name) {
  require_rate(rate.alone_bytes_per_s, fmt::format("{}.alone_bytes_per_s", name));
  require_rate(rate.together_bytes_per_s, fmt::format("{}.together_bytes_per_s", name));
}

void require_valid(const CodecRates& rates, const std::string& name) {
  require_valid(rates.encode, name + ".encode");
  require_valid(rates.decode, name + ".decode");
  require_rate(rates.bits_per_word, name + ".bits_per_word");
}

Json to_json(const Link& link) {
  return {{"seconds_per_message", link.seconds_per_message}, {"seconds_per_byte", link.seconds_per_byte}};
}

Json to_json(const Rate& rate) {
  return {{"alone_bytes_per_s", rate.alone_bytes_per_s}, {"together_bytes_per_s", rate.together_bytes_per_s}};
}

Json to_json(const CodecRates& rates) {
  return {{"encode", to_json(rates.encode)},
          {"decode", to_json(rates.decode)},
          {"bits_per_word", rates.bits_per_word}};
}

// One object of the text: every field is asked for once, and what nobody asked for is an error.
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string_view source, std::string path)
      : value_(value), source_(source), path_(std::move(path)) {
    if (!value.is_object()) fail("{} is {}, expected an object", here(), value.type_name());
  }

  const nlohmann::json& at(const std::string& key) {
    seen_.insert(key);
    const auto found = value_.find(key);
    if (found == value_.end()) fail("{} is missing", name(key));
    return *found;
  }
  double number(const std::string& key) {
    const nlohmann::json& found = at(key);
    if (!found.is_number()) fail("{} is {}, expected a number", name(key), found.type_name());
    return found.get<double>();
  }
  int integer(const std::string& key) { return integer(at(key), name(key)); }
  int integer(const nlohmann::json& found, const std::string& where) {
    constexpr std::int64_t kMost = 1 << 30;
    if (!found.is_number_integer()) fail("{} is {}, expected an integer", where, found.type_name());
    if (found.is_number_unsigned() ? found.get<std::uint64_t>() > kMost
                                   : std::abs(found.get<double>()) > static_cast<double>(kMost))
      fail("{} is {}, expected an integer up to {}", where, found.dump(), kMost);
    return found.get<int>();
  }
  bool boolean(const std::string& key) {
    const nlohmann::json& found = at(key);
    if (!found.is_boolean()) fail("{} is {}, expected true or false", name(key), found.type_name());
    return found.get<bool>();
  }
  std::string text(const std::string& key) {
    const nlohmann::json& found = at(key);
    if (!found.is_string()) fail("{} is {}, expected a string", name(key), found.type_name());
    return found.get<std::string>();
  }
  Fields object(const std::string& key) { return {at(key), source_, name(key)}; }
  Link link(const std::string& key) {
    Fields fields = object(key);
    const Link link{fields.number("seconds_per_message"), fields.number("seconds_per_byte")};
    fields.require_no_others();
    return link;
  }
  Rate rate(const std::string& key) {
    Fields fields = object(key);
    const Rate rate{fields.number("alone_bytes_per_s"), fields.number("together_bytes_per_s")};
    fields.require_no_others();
    return rate;
  }
  CodecRates codec_rates(const std::string& key) {
    Fields fields = object(key);
    const CodecRates rates{.encode = fields.rate("encode"),
                           .decode = fields.rate("decode"),
                           .bits_per_word = fields.number("bits_per_word")};
    fields.require_no_others();
    return rates;
  }
  void require_no_others() const {
    for (const auto& [key, value] : value_.items()) {
      if (!seen_.contains(key)) fail("{} is no field of a calibration", name(key));
    }
  }
  std::string name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw CorruptData(fmt::format("{}: {}", source_, fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  std::string here() const { return path_.empty() ? "the whole" : path_; }

  const nlohmann::json& value_;
  std::string_view source_;
  std::string path_;
  std::set<std::string> seen_;
};

}  // namespace

void require_valid(const Calibration& calibration) {
  require(calibration.cores >= 1, "calibration: cores is {}, expected at least 1", calibration.cores);
  require(!calibration.node_of_rank.empty(), "calibration: node_of_rank is empty, expected a node per rank");
  (void)Topology::from_nodes(calibration.node_of_rank);
  require_valid(calibration.inside, "inside");
  require_valid(calibration.between, "between");
  require_valid(calibration.copy, "copy");
  for (const codec::Method method : codec::kMethods) {
    if (method == codec::Method::kRaw) continue;
    require_valid(calibration.rates_of(method), fmt::format("codec.{}", codec::name_of(method)));
  }
  require_valid(calibration.gradients, "gradients");
}

std::string to_json(const Calibration& calibration) {
  Json methods = Json::object();
  for (const codec::Method method : codec::kMethods) {
    if (method == codec::Method::kRaw) continue;
    methods[std::string(codec::name_of(method))] = to_json(calibration.rates_of(method));
  }
  const Json all = {{"format", kFormat},
                    {"version", kVersion},
                    {"machine", calibration.machine},
                    {"cores", calibration.cores},
                    {"node_of_rank", calibration.node_of_rank},
                    {"between_measured", calibration.between_measured},
                    {"inside", to_json(calibration.inside)},
                    {"between", to_json(calibration.between)},
                    {"copy", to_json(calibration.copy)},
                    {"codec", methods},
                    {"gradients", to_json(calibration.gradients)}};
  return all.dump(1) + "\n";
}

Calibration calibration_from_json(std::string_view text, std::string_view source) {
  constexpr int kMaxDepth = 8;
  const nlohmann::json parsed = parse_json(text, source, kMaxDepth);
  Fields all(parsed, source, "");
  if (const std::string format = all.text("format"); format != kFormat)
    all.fail("format is '{}', expected '{}'", format, kFormat);
  if (const int version = all.integer("version"); version != kVersion)
    all.fail("version is {}, expected {}; calibrate again", version, kVersion);
  Calibration result;
  result.machine = all.text("machine");
  result.cores = all.integer("cores");
  const nlohmann::json& nodes = all.at("node_of_rank");
  if (!nodes.is_array()) all.fail("node_of_rank is {}, expected an array", nodes.type_name());
  for (const nlohmann::json& node : nodes) {
    result.node_of_rank.push_back(all.integer(node, "an element of node_of_rank"));
  }
  result.between_measured = all.boolean("between_measured");
  result.inside = all.link("inside");
  result.between = all.link("between");
  result.copy = all.rate("copy");
  Fields methods = all.object("codec");
  for (const codec::Method method : codec::kMethods) {
    if (method == codec::Method::kRaw) continue;
    result.rates_of(method) = methods.codec_rates(std::string(codec::name_of(method)));
  }
  methods.require_no_others();
  result.gradients = all.codec_rates("gradients");
  all.require_no_others();
  try {
    require_valid(result);
  } catch (const InvalidArgument& error) {
    throw CorruptData(fmt::format("{}: {}", source, error.what()));
  }
  return result;
}

}  // namespace moesaic
