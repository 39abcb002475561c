// schema.h: a configuration file as a list of declared fields: loading, rendering and documenting in one
// place.
//
// A section holds fields; a field ties "section.key" to a variable and says its meaning, unit and allowed
// values. The same list fills a struct from TOML and from "section.key=value" overrides, renders it back, and
// writes the reference page, so the three cannot disagree. Local. The targets are borrowed: they must outlive
// the schema.
//
// Every problem is an InvalidArgument that names the source (file or --set), line, key, the value got, what
// is allowed and, for unknown names, the nearest valid one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace moesaic {

// A variable of an enum type, through the position of its value in `names`.
struct EnumTarget {
  std::vector<std::string> names;
  std::function<std::size_t()> get;
  std::function<void(std::size_t)> set;
};

template <typename E>
EnumTarget enum_target(E* target, std::initializer_list<std::pair<const char*, E>> entries) {
  EnumTarget result;
  std::vector<E> values;
  for (const auto& [name, value] : entries) {
    result.names.emplace_back(name);
    values.push_back(value);
  }
  result.get = [target, values] {
    std::size_t at = 0;
    while (at < values.size() && values[at] != *target) ++at;
    return at;
  };
  result.set = [target, values](std::size_t at) { *target = values.at(at); };
  return result;
}

// A list of strings. `or_one`: a plain string stands for a list of one.
struct ListTarget {
  std::vector<std::string>* values = nullptr;
  bool or_one = false;
};

using SchemaTarget =
    std::variant<std::int64_t*, double*, bool*, std::string*, ListTarget, std::vector<double>*, EnumTarget>;

struct SchemaField {
  std::string key;
  SchemaTarget target;
  std::string doc = {};   // one line
  std::string unit = {};  // "s", "tokens"; empty where there is none
  // Bounds of numbers, also of a list's. Doubles must be finite whatever the bounds.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                 // min itself is not allowed
  std::vector<std::string> allowed = {};  // of strings and list elements; empty = any
};

struct SchemaSection {
  std::string name;
  std::string doc;  // one sentence
  std::vector<SchemaField> fields;
};

using Schema = std::vector<SchemaSection>;

// Sets the fields that `text` (TOML) mentions; the others keep their values. `source` names it in errors.
void apply_toml(const Schema& schema, std::string_view text, std::string_view source);

// Sets one field from "section.key=value"; the value is TOML, quotes around a string may be left out.
// `origin` stands before the assignment in errors.
void apply_override(const Schema& schema, std::string_view assignment, std::string_view origin = "--set");

// Every field with its current value as TOML. apply_toml() of the result gives the same values, doubles bit
// for bit.
std::string render_toml(const Schema& schema);

// One field's current value as TOML.
std::string render_value(const SchemaField& field);

// Tables in Markdown, one per section: key, type, current value (of a fresh struct: the default), allowed,
// meaning.
std::string render_reference(const Schema& schema);

}  // namespace moesaic
