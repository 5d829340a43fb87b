// The schema of hardware profiles, from the one list of their fields (hwprofiles/fields.h).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "hwprofiles/fields.h"
#include "hwprofiles/parts.h"
#include "planner/schemas/schema_json.h"
#include "planner/schemas/schemas.h"

namespace zeroplan {
namespace {

SchemaJson NonEmptyText() { return {{"type", "string"}, {"minLength", 1}}; }

// Where a number comes from.
void AddSource(SchemaJson& object) {
  std::vector<std::string_view> sources;
  for (const FigureSource source : kFigureSources) sources.push_back(FigureSourceName(source));
  AddKey(object, "source", OneOf(sources), true);
  AddKey(object, "reference", NonEmptyText(), true);
}

// What the reader takes, of every spelling there is.
std::vector<std::string> UnitsOf(Dimension dimension) {
  std::vector<std::string> units;
  const auto add = [&](const std::string& unit) {
    if (UnitScale(dimension, unit)) units.push_back(unit);
  };
  for (const char* suffix : {"B", "B/s", "b/s", "FLOP/s", "Hz"}) {
    for (const char* prefix : {"", "K", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti"}) {
      add(std::string(prefix) + suffix);
    }
  }
  for (const char* unit : {"s", "ms", "us", "ns", "W", "J", "nJ", "pJ", "ratio", "count"}) {
    add(unit);
  }
  return units;
}

SchemaJson UnitWords(const std::vector<std::string>& units) {
  return OneOf(std::vector<std::string_view>(units.begin(), units.end()));
}

// A number with unit and source. Its range is the unit's: each unit has its own limits.
SchemaJson FigureForm(const FigureRule& rule) {
  SchemaJson object = ClosedObject();
  AddKey(object, "value", {{"type", rule.dimension == Dimension::kCount ? "integer" : "number"}},
         true);
  const std::vector<std::string> units = UnitsOf(rule.dimension);
  AddKey(object, "unit", UnitWords(units), true);
  AddSource(object);
  for (const std::string& unit : units) {
    const double scale = UnitScale(rule.dimension, unit).value();
    object["allOf"].push_back(
        {{"if", {{"properties", {{"unit", {{"const", unit}}}}}, {"required", {"unit"}}}},
         {"then",
          {{"properties",
            {{"value", {{"minimum", rule.low / scale}, {"maximum", rule.high / scale}}}}}}}});
  }
  return object;
}

// A row's cells from left to right.
struct CellSchema {
  std::vector<std::string> columns;
  SchemaJson cells = SchemaJson::array();

  void Add(std::string_view column, SchemaJson cell) {
    columns.emplace_back(column);
    cells.push_back(std::move(cell));
  }
  template <typename T>
  void Word(std::string_view column, std::span<const T> values, T) {
    std::vector<std::string_view> words;
    for (const T value : values) words.push_back(WordOf(value));
    Add(column, OneOf(words));
  }
  template <typename T>
  void Whole(std::string_view column, T) {
    Add(column, {{"type", "integer"}, {"minimum", 1}, {"maximum", kMostWhole}});
  }
  void Bytes(std::string_view column, double) { Measured(column, 0); }
  void Measured(std::string_view column, double) {
    Add(column, {{"type", "number"}, {"minimum", kLeastCell}, {"maximum", kMostCell}});
  }
};

template <typename Row>
SchemaJson TableOf() {
  const Row row{};
  CellSchema cells;
  ForEachCell(row, cells);
  SchemaJson object = ClosedObject();
  AddKey(object, "unit", UnitWords(UnitsOf(UnitOf(row).dimension)), true);
  AddSource(object);
  AddKey(object, "columns", {{"const", cells.columns}}, true);
  const size_t count = cells.columns.size();
  AddKey(object, "rows",
         {{"type", "array"},
          {"minItems", 1},
          {"items",
           {{"type", "array"},
            {"prefixItems", std::move(cells.cells)},
            {"minItems", count},
            {"maxItems", count}}}},
         true);
  return object;
}

// Puts each field at its dotted path.
class ProfileFieldSchema {
 public:
  explicit ProfileFieldSchema(SchemaJson& root) : root_(root) {}

  SchemaJson definitions = SchemaJson::object();

  void Text(std::string_view path, const std::string&) { Put(path, NonEmptyText(), true); }
  void Text(std::string_view path, const std::optional<std::string>&) {
    Put(path, {{"type", "string"}}, false);
  }
  void Figure(std::string_view path, const FigureRule& rule, const zeroplan::Figure&) {
    Put(path, Named(rule), true);
  }
  void Figure(std::string_view path, const FigureRule& rule,
              const std::optional<zeroplan::Figure>&) {
    Put(path, Named(rule), false);
  }
  void Flag(std::string_view path, bool) { Put(path, {{"type", "boolean"}}, true); }
  template <typename T>
  void Word(std::string_view path, std::span<const T> values, T) {
    std::vector<std::string_view> words;
    for (const T value : values) words.push_back(WordOf(value));
    Put(path, OneOf(words), true);
  }
  void Peak(std::string_view path, const FigureRule& rule, const std::map<Dtype, zeroplan::Figure>&,
            Dtype) {
    SchemaJson figure = FigureForm(rule);
    AddKey(figure, "sparsity", {{"const", "dense"}}, true);
    Put(path, std::move(figure), false);
  }
  template <typename Row>
  void Table(std::string_view path, const std::optional<Measured<Row>>&) {
    Put(path, TableOf<Row>(), false);
  }
  template <typename T>
  bool Section(std::string_view path, const std::optional<T>&) {
    optional_.emplace_back(path);
    return true;
  }
  void Runtimes(std::string_view path, const FigureRule& rule,
                const std::vector<RuntimeOverhead>&) {
    SchemaJson entry = FigureForm(rule);
    AddKey(entry, "world_size", {{"type", "integer"}, {"minimum", 1}}, true);
    AddKey(entry, "communicator", Named(rule), false);
    Put(path, {{"type", "array"}, {"minItems", 1}, {"items", std::move(entry)}}, true);
  }

 private:
  // Figures of one rule are one definition.
  SchemaJson Named(const FigureRule& rule) {
    const auto [at, added] = rules_.try_emplace({rule.dimension, rule.low, rule.high},
                                                fmt::format("figure{}", rules_.size() + 1));
    if (added) definitions[at->second] = FigureForm(rule);
    return {{"$ref", "#/$defs/" + at->second}};
  }

  // A section is required if something in it is, unless it is optional itself.
  void Put(std::string_view path, SchemaJson value, bool required) {
    bool needed = required;
    for (const std::string& section : optional_) {
      needed = needed && !path.starts_with(section + ".");
    }
    SchemaJson* object = &root_;
    size_t begin = 0;
    for (size_t dot; (dot = path.find('.', begin)) != std::string_view::npos; begin = dot + 1) {
      const std::string key(path.substr(begin, dot - begin));
      if (!(*object)["properties"].contains(key)) AddKey(*object, key, ClosedObject(), false);
      SchemaJson& names = (*object)["required"];
      const bool inside_optional = std::any_of(
          optional_.begin(), optional_.end(),
          [&](const std::string& section) { return path.substr(0, dot).starts_with(section); });
      const bool mark = required && (needed || !inside_optional);
      if (mark && std::find(names.begin(), names.end(), key) == names.end()) names.push_back(key);
      if (names.empty()) object->erase("required");
      object = &(*object)["properties"][key];
    }
    AddKey(*object, std::string(path.substr(begin)), std::move(value), required);
  }

  SchemaJson& root_;
  std::vector<std::string> optional_;
  std::map<std::tuple<Dimension, double, double>, std::string> rules_;
};

// The same without any "required": what a changed part may hold; null takes a key away.
SchemaJson Partial(SchemaJson object) {
  object.erase("required");
  for (auto& [key, value] : object["properties"].items()) {
    const bool section = value.contains("properties") && !value["properties"].contains("value") &&
                         !value["properties"].contains("rows");
    value = OrNull(section ? Partial(std::move(value)) : std::move(value));
  }
  return object;
}

}  // namespace

std::string ProfileSchema() {
  SchemaJson root = SchemaHead("profile", "Hardware profile of zeroplan");
  root.update(ClosedObject());
  AddKey(root, "schema", {{"const", kProfileSchema}}, true);
  HardwareProfile profile;
  profile.gpu.power.emplace();
  profile.network.emplace();
  ProfileFieldSchema fields(root);
  ForEachField(std::as_const(profile), fields);
  // A part is a built-in one's name, that with changes, or in full.
  for (const PartKind& kind : PartKinds()) {
    const std::string section(kind.section);
    SchemaJson& whole = root["properties"][section];
    SchemaJson names = SchemaJson::array();
    for (const std::string& name : EmbeddedNames(kind.folder)) names.push_back(name);
    SchemaJson forms = SchemaJson::array();
    forms.push_back({{"enum", names}});
    if (whole["type"] == "object") {
      SchemaJson changed = Partial(whole);
      AddKey(changed, "base", {{"enum", names}}, true);
      forms.push_back(std::move(changed));
    }
    forms.push_back(std::move(whole));
    whole = {{"anyOf", std::move(forms)}};
  }
  SchemaJson other = ClosedObject();
  AddKey(other, "gpus", {{"$ref", "#/properties/gpus"}}, true);
  AddKey(other, "gpu", {{"$ref", "#/properties/gpu"}}, true);
  AddKey(root, kOtherGpus, {{"type", "array"}, {"minItems", 1}, {"items", std::move(other)}},
         false);
  root["properties"]["$schema"] = {{"type", "string"}};
  root["$defs"] = fields.definitions;
  return SchemaText(root);
}

}  // namespace zeroplan
