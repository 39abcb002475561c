#include "moesaic/core/schema.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <sstream>

#include "moesaic/core/edit_distance.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

std::string nearest_section(const Schema& schema, std::string_view name) {
  const auto nearest = std::ranges::min_element(
      schema, {}, [&](const SchemaSection& section) { return edit_distance(section.name, name); });
  return nearest == schema.end() ? "" : nearest->name;
}

// A right key in the wrong section costs 1: closer than any other misspelling of two letters.
std::string nearest_key(const Schema& schema, std::string_view section_name, std::string_view key) {
  std::string best;
  auto best_distance = std::numeric_limits<std::size_t>::max();
  for (const SchemaSection& section : schema) {
    for (const SchemaField& field : section.fields) {
      const std::size_t distance = edit_distance(field.key, key) + (section.name == section_name ? 0 : 1);
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = section.name + "." + field.key;
    }
  }
  return best;
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04X}", byte);
    } else {
      result += c;
    }
  }
  result += '"';
  return result;
}

std::string quoted_list(const std::vector<std::string>& values) {
  std::string result;
  for (const std::string& value : values)
    fmt::format_to(std::back_inserter(result), "{}{}", result.empty() ? "" : ", ", quoted(value));
  return result;
}

std::string render(double value) {
  const std::string shortest = fmt::format("{}", value);  // reads back to the same bits
  return shortest.find_first_of(".en") == std::string::npos ? shortest + ".0" : shortest;
}

std::string render(const SchemaTarget& target) {
  return std::visit(Overloaded{
                        [](const std::int64_t* value) { return std::to_string(*value); },
                        [](const double* value) { return render(*value); },
                        [](const bool* value) { return std::string(*value ? "true" : "false"); },
                        [](const std::string* value) { return quoted(*value); },
                        [](const ListTarget& list) {
                          if (list.or_one && list.values->size() == 1) return quoted(list.values->front());
                          return fmt::format("[{}]", quoted_list(*list.values));
                        },
                        [](const std::vector<double>* values) {
                          std::string text;
                          for (const double value : *values)
                            text += (text.empty() ? "" : ", ") + render(value);
                          return "[" + text + "]";
                        },
                        [](const EnumTarget& choice) { return quoted(choice.names.at(choice.get())); },
                    },
                    target);
}

std::string type_name(const SchemaTarget& target) {
  return std::visit(Overloaded{
                        [](const std::int64_t*) { return "integer"; },
                        [](const double*) { return "float"; },
                        [](const bool*) { return "boolean"; },
                        [](const std::string*) { return "string"; },
                        [](const ListTarget& list) {
                          return list.or_one ? "string or array of strings" : "array of strings";
                        },
                        [](const std::vector<double>*) { return "array of floats"; },
                        [](const EnumTarget&) { return "string"; },
                    },
                    target);
}

const std::vector<std::string>& allowed_words(const SchemaField& field) {
  const auto* choice = std::get_if<EnumTarget>(&field.target);
  return choice != nullptr ? choice->names : field.allowed;
}

// "one of "a", "b"", ">= 1", "> 0 and <= 1"; empty where anything goes.
std::string allowed_text(const SchemaField& field) {
  if (const auto& words = allowed_words(field); !words.empty())
    return fmt::format("one of {}", quoted_list(words));
  std::string text;
  if (std::isfinite(field.min)) text += fmt::format("{} {}", field.above_min ? ">" : ">=", field.min);
  if (std::isfinite(field.max)) text += fmt::format("{}<= {}", text.empty() ? "" : " and ", field.max);
  return text;
}

// Where a value comes from, for messages: "demo.toml:12" or "--set moe.top_k=3".
struct Origin {
  std::string_view source;
  bool has_lines = true;
  std::string at(const toml::node& node) const {
    return has_lines ? fmt::format("{}:{}", source, node.source().begin.line) : std::string(source);
  }
};

// Type and value as a person would write them.
std::string describe(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (const auto value = node.value_exact<double>()) return fmt::format("float {}", render(*value));
  if (const auto value = node.value_exact<std::string>()) return fmt::format("string {}", quoted(*value));
  if (const toml::array* array = node.as_array()) {
    std::string elements;
    for (const toml::node& element : *array)
      elements += fmt::format("{}{}", elements.empty() ? "" : ", ", describe(element));
    return fmt::format("array [{}]", elements);
  }
  std::ostringstream text;
  text << node.type() << " ";
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

[[noreturn]] void refuse(const SchemaField& field, const std::string& path, const toml::node& node,
                         const Origin& origin) {
  const std::string allowed = allowed_text(field);
  const auto number = node.value_exact<double>();
  throw InvalidArgument(fmt::format("{}: {} is {}; expected {}{}{}{}", origin.at(node), path, describe(node),
                                    number && !std::isfinite(*number) ? "finite " : "",
                                    type_name(field.target), allowed.empty() ? "" : " ", allowed));
}

bool in_range(const SchemaField& field, double value) {
  return std::isfinite(value) && (field.above_min ? value > field.min : value >= field.min) &&
         value <= field.max;
}

bool is_allowed(const SchemaField& field, const std::string& value) {
  return field.allowed.empty() || std::ranges::find(field.allowed, value) != field.allowed.end();
}

// A number in the field's range, also one written without a point.
std::optional<double> number_in(const SchemaField& field, const toml::node& node) {
  if (!node.is_number()) return std::nullopt;
  const double value = node.is_integer() ? static_cast<double>(*node.value_exact<std::int64_t>())
                                         : *node.value_exact<double>();
  return in_range(field, value) ? std::optional(value) : std::nullopt;
}

// False when the value has the wrong type or is not allowed.
bool assign(const SchemaField& field, const toml::node& node) {
  const auto text = node.value_exact<std::string>();
  return std::visit(Overloaded{
                        [&](std::int64_t* target) {
                          const auto value = node.value_exact<std::int64_t>();
                          if (!value || !in_range(field, static_cast<double>(*value))) return false;
                          *target = *value;
                          return true;
                        },
                        [&](double* target) {
                          const auto value = number_in(field, node);
                          if (value) *target = *value;
                          return value.has_value();
                        },
                        [&](bool* target) {
                          const auto value = node.value_exact<bool>();
                          if (value) *target = *value;
                          return value.has_value();
                        },
                        [&](std::string* target) {
                          if (!text || !is_allowed(field, *text)) return false;
                          *target = *text;
                          return true;
                        },
                        [&](const ListTarget& list) {
                          std::vector<std::string> values;
                          if (text && list.or_one) values.push_back(*text);
                          if (const toml::array* array = node.as_array()) {
                            for (const toml::node& element : *array) {
                              const auto value = element.value_exact<std::string>();
                              if (!value) return false;
                              values.push_back(*value);
                            }
                          } else if (values.empty()) {
                            return false;
                          }
                          for (const std::string& value : values) {
                            if (!is_allowed(field, value)) return false;
                          }
                          *list.values = std::move(values);
                          return true;
                        },
                        [&](std::vector<double>* target) {
                          const toml::array* array = node.as_array();
                          if (array == nullptr) return false;
                          std::vector<double> values;
                          for (const toml::node& element : *array) {
                            const auto value = number_in(field, element);
                            if (!value) return false;
                            values.push_back(*value);
                          }
                          *target = std::move(values);
                          return true;
                        },
                        [&](const EnumTarget& choice) {
                          const auto found =
                              text ? std::ranges::find(choice.names, *text) : choice.names.end();
                          if (found == choice.names.end()) return false;
                          choice.set(static_cast<std::size_t>(found - choice.names.begin()));
                          return true;
                        },
                    },
                    field.target);
}

// `where` starts the message when there is no such name.
const SchemaSection& find_section(const Schema& schema, std::string_view name, const std::string& where) {
  const auto found = std::ranges::find(schema, name, &SchemaSection::name);
  require(found != schema.end(), "{}: unknown section [{}]; did you mean [{}]?", where, name,
          nearest_section(schema, name));
  return *found;
}

const SchemaField& find_field(const Schema& schema, const SchemaSection& section, std::string_view key,
                              const std::string& where) {
  const auto found = std::ranges::find(section.fields, key, &SchemaField::key);
  require(found != section.fields.end(), "{}: unknown key {}.{}; did you mean {}?", where, section.name, key,
          nearest_key(schema, section.name, key));
  return *found;
}

void apply_table(const Schema& schema, const toml::table& root, const Origin& origin) {
  for (const auto& [section_key, section_node] : root) {
    const std::string_view name = section_key.str();
    const toml::table* table = section_node.as_table();
    if (table == nullptr) {
      const bool known = std::ranges::find(schema, name, &SchemaSection::name) != schema.end();
      const std::string hint = known ? fmt::format("{} is a section: write [{}]", name, name)
                                     : fmt::format("did you mean {}?", nearest_key(schema, "", name));
      throw InvalidArgument(fmt::format("{}: key {} ({}) is outside any section; {}", origin.at(section_node),
                                        name, describe(section_node), hint));
    }
    const SchemaSection& section = find_section(schema, name, origin.at(section_node));
    for (const auto& [key, node] : *table) {
      const SchemaField& field = find_field(schema, section, key.str(), origin.at(node));
      if (!assign(field, node)) refuse(field, section.name + "." + field.key, node, origin);
    }
  }
}

std::string escaped_for_table(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace

void apply_toml(const Schema& schema, std::string_view text, std::string_view source) {
  toml::table root;
  try {
    root = toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(fmt::format("{}:{}: {}", source, error.source().begin.line, error.description()));
  }
  apply_table(schema, root, {source});
}

void apply_override(const Schema& schema, std::string_view assignment, std::string_view origin) {
  const std::string source = fmt::format("{} {}", origin, assignment);
  const std::size_t equals = assignment.find('=');
  const std::string_view path = assignment.substr(0, equals);
  const std::size_t dot = path.find('.');
  require(
      equals != std::string_view::npos && dot != std::string_view::npos && dot > 0 && dot + 1 < path.size(),
      "{}: expected section.key=value", source);
  const SchemaSection& section = find_section(schema, path.substr(0, dot), source);
  const SchemaField& field = find_field(schema, section, path.substr(dot + 1), source);

  std::string value(assignment.substr(equals + 1));
  const bool textual = std::holds_alternative<std::string*>(field.target) ||
                       std::holds_alternative<ListTarget>(field.target) ||
                       std::holds_alternative<EnumTarget>(field.target);
  const bool bare = value.empty() || (value[0] != '"' && value[0] != '\'' && value[0] != '[');
  if (textual && bare) value = quoted(value);
  toml::table table;
  try {
    table = toml::parse(fmt::format("value = {}", value), source);
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(fmt::format("{}: {}", source, error.description()));
  }
  const toml::node* node = table.get("value");
  require(table.size() == 1 && node != nullptr, "{}: expected one value", source);
  if (!assign(field, *node)) refuse(field, std::string(path), *node, {source, false});
}

std::string render_toml(const Schema& schema) {
  std::string text;
  for (const SchemaSection& section : schema) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const SchemaField& field : section.fields)
      text += fmt::format("{} = {}\n", field.key, render(field.target));
  }
  return text;
}

std::string render_value(const SchemaField& field) { return render(field.target); }

std::string render_reference(const Schema& schema) {
  std::string text;
  for (const SchemaSection& section : schema) {
    text += fmt::format(
        "## [{}]\n\n{}\n\n| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n",
        section.name, section.doc);
    for (const SchemaField& field : section.fields) {
      const std::string unit = field.unit.empty() ? "" : fmt::format(" ({})", field.unit);
      text += fmt::format("| `{}` | {} | `{}` | {} | {}{} |\n", field.key, type_name(field.target),
                          render(field.target), escaped_for_table(allowed_text(field)),
                          escaped_for_table(field.doc), unit);
    }
    text += "\n";
  }
  return text;
}

}  // namespace moesaic
