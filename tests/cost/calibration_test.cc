#include "moesaic/cost/calibration.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/comm/thrown.h"
#include "tests/cost/calibrations.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

Json parsed(const Calibration& calibration) { return Json::parse(to_json(calibration)); }

std::string reading(const Json& json) {
  return thrown_by([&] { (void)calibration_from_json(json.dump(), "c.json"); });
}

TEST(CalibrationJson, GivesTheSameCalibrationBack) {
  Calibration calibration = round_calibration(Topology::from_nodes({0, 1, 1, 0, 2}));
  calibration.between.seconds_per_byte = 1.0 / 3;  // no short decimal
  calibration.rates_of(codec::Method::kResidual).decode.alone_bytes_per_s = 1e10 / 7;
  const Calibration back = calibration_from_json(to_json(calibration), "c.json");
  EXPECT_EQ(to_json(back), to_json(calibration));
  EXPECT_EQ(back.between.seconds_per_byte, 1.0 / 3);
  EXPECT_EQ(back.node_of_rank, (std::vector<int>{0, 1, 1, 0, 2}));
  EXPECT_EQ(back.rates_of(codec::Method::kResidual).decode.alone_bytes_per_s, 1e10 / 7);
}

TEST(CalibrationJson, EveryFieldMustBeThere) {
  const Json whole = parsed(round_calibration(Topology::one_node(2)));
  int fields = 0;
  const std::function<void(const Json::json_pointer&)> check = [&](const Json::json_pointer& at) {
    for (const auto& [key, value] : whole[at].items()) {
      Json less = whole;
      less[at].erase(key);
      std::string path = (at / key).to_string().substr(1);
      std::ranges::replace(path, '/', '.');
      EXPECT_EQ(reading(less), "CorruptData: c.json: " + path + " is missing");
      ++fields;
      if (value.is_object()) check(at / key);
    }
  };
  check(Json::json_pointer());
  EXPECT_EQ(fields, 10 + 2 + 2 + 2 + 6 * (1 + 3 + 4));
}

TEST(CalibrationJson, ForeignFieldsAreNamed) {
  for (const char* at : {"", "/inside", "/codec", "/codec/momentum/encode"}) {
    Json more = parsed(round_calibration(Topology::one_node(2)));
    more[Json::json_pointer(at)]["colour"] = 1;
    EXPECT_SAYS(reading(more), "colour is no field of a calibration");
  }
}

TEST(CalibrationJson, ValuesOutOfRangeAreNamed) {
  const struct {
    const char* at;
    Json value;
    const char* says;
  } cases[] = {
      {"/between/seconds_per_byte", -1e-9, "between.seconds_per_byte is -1e-09, expected a finite time"},
      {"/inside/seconds_per_message", "fast", "inside.seconds_per_message is string, expected a number"},
      {"/copy/alone_bytes_per_s", 0, "copy.alone_bytes_per_s is 0, expected a finite number above 0"},
      {"/codec/entropy/decode/together_bytes_per_s", -5, "codec.entropy.decode.together_bytes_per_s is -5"},
      {"/codec/int8/bits_per_word", nullptr, "codec.int8.bits_per_word is null, expected a number"},
      {"/gradients/encode/alone_bytes_per_s", 0, "gradients.encode.alone_bytes_per_s is 0"},
      {"/codec/residual", 3, "codec.residual is number, expected an object"},
      {"/cores", 0, "cores is 0, expected at least 1"},
      {"/cores", 1e40, "cores is number, expected an integer"},
      {"/cores", std::numeric_limits<std::uint64_t>::max(), "expected an integer up to"},
      {"/node_of_rank", Json::array(), "node_of_rank is empty"},
      {"/node_of_rank", Json::array({0, 2}), "node"},
      {"/node_of_rank", Json::array({0, "h1"}), "an element of node_of_rank is string"},
      {"/between_measured", 1, "between_measured is number, expected true or false"},
      {"/version", 1, "version is 1, expected 2; calibrate again"},
      {"/format", "song", "format is 'song', expected 'moesaic calibration'"},
  };
  for (const auto& wrong : cases) {
    Json json = parsed(round_calibration(Topology::one_node(2)));
    json[Json::json_pointer(wrong.at)] = wrong.value;
    const std::string said = reading(json);
    EXPECT_TRUE(said.starts_with("CorruptData: c.json: ")) << said;
    EXPECT_SAYS(said, wrong.says);
  }
  EXPECT_SAYS(reading(Json::array()), "the whole is array, expected an object");
}

}  // namespace
}  // namespace moesaic
