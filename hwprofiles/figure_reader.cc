#include "hwprofiles/figure_reader.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

constexpr std::string_view kFigureForm =
    R"({"value": NUMBER, "unit": "...", "source": "datasheet|measured|derived", "reference": "..."})";

constexpr std::string_view kReferenceFix = "say which document, or what was run where";

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

}  // namespace

FigureReader::FigureReader(std::string_view text, std::string_view source)
    : root_(std::make_unique<ProfileJson>(ComposeProfile(ParseJson(text, source), source))),
      source_(source),
      read_{"$schema"} {}  // an editor's

FigureReader::~FigureReader() = default;

void FigureReader::Fail(const std::string& path, const std::string& message) const {
  ThrowUsage("{}: {}: {}", source_, path, message);
}

const ProfileJson* FigureReader::Find(const std::string& path) const {
  const ProfileJson* node = root_.get();
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (node->is_array()) {
      // Indices come from Items(); anything else asks an array for what only an object has.
      size_t index = 0;
      const auto [last, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc() || last != key.data() + key.size() || index >= node->size()) {
        return nullptr;
      }
      node = &(*node)[index];
    } else {
      if (!node->is_object() || !node->contains(key)) return nullptr;
      node = &(*node)[key];
    }
    begin = end + 1;
  }
  return node;
}

const ProfileJson& FigureReader::Need(const std::string& path) const {
  const ProfileJson* node = Find(path);
  if (node == nullptr) Fail(path, "missing; every profile needs it");
  return *node;
}

bool FigureReader::Has(const std::string& path) const { return Find(path) != nullptr; }

Figure FigureReader::Required(const std::string& path, const FigureRule& rule) {
  const ProfileJson* node = Find(path);
  if (node == nullptr) Fail(path, fmt::format("missing; add {}", kFigureForm));
  return Read(path, *node, rule);
}

std::optional<Figure> FigureReader::Optional(const std::string& path, const FigureRule& rule) {
  const ProfileJson* node = Find(path);
  if (node == nullptr) return std::nullopt;
  return Read(path, *node, rule);
}

std::string FigureReader::Member(const std::string& path, const ProfileJson& node, const char* key,
                                 std::string_view fix) {
  const auto found = node.find(key);
  if (found == node.end()) Fail(Join(path, key), fmt::format("missing; {}", fix));
  if (!found->is_string() || found->get_ref<const std::string&>().empty()) {
    Fail(Join(path, key), fmt::format("{} is not allowed; {}", found->dump(), fix));
  }
  read_.insert(Join(path, key));
  return found->get<std::string>();
}

double FigureReader::ReadUnit(const std::string& path, const ProfileJson& node, Dimension dimension,
                              std::string& unit) {
  const std::string allowed = fmt::format("use {}", AllowedUnits(dimension));
  unit = Member(path, node, "unit", allowed);
  const auto scale = UnitScale(dimension, unit);
  if (!scale) Fail(Join(path, "unit"), fmt::format("\"{}\" is not allowed; {}", unit, allowed));
  return *scale;
}

FigureSource FigureReader::ReadSource(const std::string& path, const ProfileJson& node) {
  constexpr std::string_view kSources = "use datasheet, measured or derived";
  const std::string source = Member(path, node, "source", kSources);
  for (const FigureSource known : kFigureSources) {
    if (source == FigureSourceName(known)) return known;
  }
  Fail(Join(path, "source"), fmt::format("\"{}\" is not allowed; {}", source, kSources));
}

TableText FigureReader::Table(const std::string& path, Dimension dimension,
                              const std::vector<std::string_view>& columns) {
  const ProfileJson& node = Need(path);
  if (!node.is_object()) {
    Fail(path, R"(is no table; write {"unit", "source", "reference", "columns", "rows"})");
  }
  TableText table;
  table.path = path;
  table.columns = columns;
  std::string unit;
  table.scale = ReadUnit(path, node, dimension, unit);
  table.source = ReadSource(path, node);
  table.reference = Member(path, node, "reference", kReferenceFix);
  const ProfileJson& named = Need(Join(path, "columns"));
  bool same = named.is_array() && named.size() == columns.size();
  for (size_t i = 0; same && i < columns.size(); ++i) {
    same = named[i].is_string() && named[i].get_ref<const std::string&>() == columns[i];
  }
  if (!same) {
    Fail(Join(path, "columns"), fmt::format("{} is not allowed; use [\"{}\"]", named.dump(),
                                            fmt::join(columns, "\", \"")));
  }
  const ProfileJson& rows = Need(Join(path, "rows"));
  if (!rows.is_array() || rows.empty()) {
    Fail(Join(path, "rows"), "must be a list with at least one row");
  }
  table.rows = &rows;
  table.row_count = rows.size();
  read_.insert(Join(path, "columns"));
  read_.insert(Join(path, "rows"));
  return table;
}

Figure FigureReader::Read(const std::string& path, const ProfileJson& node,
                          const FigureRule& rule) {
  if (!node.is_object()) {
    Fail(path, fmt::format("{} has no source; write {}", node.dump(), kFigureForm));
  }
  Figure figure;
  const auto value = node.find("value");
  if (value == node.end()) Fail(Join(path, "value"), "missing; give the number");
  if (!value->is_number()) {
    Fail(Join(path, "value"), fmt::format("{} is not a number", value->dump()));
  }
  read_.insert(Join(path, "value"));
  figure.written = value->get<double>();
  const double scale = ReadUnit(path, node, rule.dimension, figure.unit);
  figure.value = figure.written * scale;
  figure.source = ReadSource(path, node);
  figure.reference = Member(path, node, "reference", kReferenceFix);

  if (!(figure.value >= rule.low && figure.value <= rule.high)) {
    Fail(Join(path, "value"),
         fmt::format("{} {} is not physical; allowed is {} to {} {}", value->dump(), figure.unit,
                     rule.low / scale, rule.high / scale, figure.unit));
  }
  if (rule.dimension == Dimension::kCount && figure.value != std::floor(figure.value)) {
    Fail(Join(path, "value"), fmt::format("{} is not a whole number", value->dump()));
  }
  return figure;
}

std::string FigureReader::Text(const std::string& path) {
  const ProfileJson& node = Need(path);
  if (!node.is_string() || node.get_ref<const std::string&>().empty()) {
    Fail(path, fmt::format("{} is not allowed; give a text", node.dump()));
  }
  read_.insert(path);
  return node.get<std::string>();
}

bool FigureReader::Flag(const std::string& path) {
  const ProfileJson& node = Need(path);
  if (!node.is_boolean())
    Fail(path, fmt::format("{} is not allowed; use true or false", node.dump()));
  read_.insert(path);
  return node.get<bool>();
}

int64_t FigureReader::Integer(const std::string& path, int64_t low, int64_t high) {
  const ProfileJson& node = Need(path);
  if (!node.is_number_integer() || node.get<int64_t>() < low || node.get<int64_t>() > high) {
    Fail(path, fmt::format("{} is not allowed; use a whole number from {} to {}", node.dump(), low,
                           high));
  }
  read_.insert(path);
  return node.get<int64_t>();
}

std::vector<std::string> FigureReader::Items(const std::string& path) {
  const ProfileJson& node = Need(path);
  if (!node.is_array() || node.empty()) Fail(path, "must be a list with at least one entry");
  std::vector<std::string> items;
  for (size_t i = 0; i < node.size(); ++i) items.push_back(fmt::format("{}.{}", path, i));
  return items;
}

std::vector<std::string> FigureReader::Keys(const std::string& path) const {
  std::vector<std::string> keys;
  const ProfileJson* node = Find(path);
  if (node == nullptr || !node->is_object()) return keys;
  for (const auto& [key, value] : node->items()) keys.push_back(key);
  return keys;
}

void FigureReader::RefuseUnread() const { RefuseUnread(*root_, ""); }

void FigureReader::RefuseUnread(const ProfileJson& node, const std::string& path) const {
  if (read_.contains(path)) return;  // also a table's rows, which are read as a whole
  if (!node.is_structured() || node.empty()) {
    // The keys beside the unread one are what could have been meant.
    const size_t dot = path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot + 1);
    std::vector<std::string> known;
    for (const std::string& read : read_) {
      if (read.starts_with(parent)) {
        known.push_back(read.substr(parent.size(), read.find('.', parent.size()) - parent.size()));
      }
    }
    const std::string nearest = NearestName(path.substr(parent.size()), known);
    Fail(path, nearest.empty() ? "unknown key; remove it"
                               : fmt::format("unknown key; did you mean \"{}\"?", nearest));
  }
  if (node.is_array()) {
    for (size_t i = 0; i < node.size(); ++i) RefuseUnread(node[i], Join(path, std::to_string(i)));
    return;
  }
  for (const auto& [key, value] : node.items()) RefuseUnread(value, Join(path, key));
}

RowReader::RowReader(const FigureReader& reader, const TableText& table, size_t index)
    : reader_(reader),
      table_(table),
      path_(fmt::format("{}.rows.{}", table.path, index)),
      cells_((*table.rows)[index]) {
  if (!cells_.is_array() || cells_.size() != table.columns.size()) {
    reader.Fail(path_, fmt::format("{} is not a row; give {} values: {}", cells_.dump(),
                                   table.columns.size(), fmt::join(table.columns, ", ")));
  }
}

size_t RowReader::TakeWord(const std::vector<std::string_view>& words) {
  const ProfileJson& cell = cells_[column_];
  for (size_t i = 0; i < words.size(); ++i) {
    if (cell.is_string() && cell.get_ref<const std::string&>() == words[i]) {
      ++column_;
      return i;
    }
  }
  FailCell(fmt::format("use one of {}", fmt::join(words, ", ")));
}

int64_t RowReader::TakeWhole() {
  const ProfileJson& cell = cells_[column_];
  if (!cell.is_number_integer() || cell.get<int64_t>() < 1 || cell.get<int64_t>() > kMostWhole) {
    FailCell(fmt::format("use a whole number from 1 to {}", kMostWhole));
  }
  ++column_;
  return cell.get<int64_t>();
}

double RowReader::TakeNumber() {
  const ProfileJson& cell = cells_[column_];
  if (!cell.is_number() || !(cell.get<double>() >= kLeastCell && cell.get<double>() <= kMostCell)) {
    FailCell(fmt::format("use a number from {:g} to {:g}", kLeastCell, kMostCell));
  }
  ++column_;
  return cell.get<double>();
}

void RowReader::FailCell(const std::string& fix) const {
  reader_.Fail(path_, fmt::format("{}: {} is not allowed; {}", table_.columns[column_],
                                  cells_[column_].dump(), fix));
}

}  // namespace zeroplan
