#include "hwprofiles/figure_reader.h"

#include <charconv>
#include <cmath>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace zeroplan {
namespace {

constexpr std::string_view kFigureForm =
    R"({"value": NUMBER, "unit": "...", "source": "datasheet|measured|derived", "reference": "..."})";

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

}  // namespace

FigureReader::FigureReader(std::string_view json, std::string_view source) : source_(source) {
  // Profiles are a few levels deep; printing or walking a value recurses once a level.
  constexpr int kMaxDepth = 32;
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth)
      ThrowUsage("{}: values are nested more than {} deep", source_, kMaxDepth);
    return true;
  };
  try {
    root_ = nlohmann::json::parse(json, check_depth);
  } catch (const nlohmann::json::exception& error) {  // syntax, or a number out of range
    ThrowUsage("{}: not valid JSON: {}", source_, error.what());
  }
  if (!root_.is_object()) {
    ThrowUsage("{}: a hardware profile is a JSON object, this is {}", source_, root_.type_name());
  }
}

void FigureReader::Fail(const std::string& path, const std::string& message) const {
  ThrowUsage("{}: {}: {}", source_, path, message);
}

const nlohmann::json* FigureReader::Find(const std::string& path) const {
  const nlohmann::json* node = &root_;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (node->is_array()) {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc() || stop != key.data() + key.size() || index >= node->size()) {
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

const nlohmann::json& FigureReader::Need(const std::string& path) const {
  const nlohmann::json* node = Find(path);
  if (node == nullptr) Fail(path, "missing; every profile needs it");
  return *node;
}

bool FigureReader::Has(const std::string& path) const { return Find(path) != nullptr; }

Figure FigureReader::Required(const std::string& path, const FigureRule& rule) {
  const nlohmann::json* node = Find(path);
  if (node == nullptr) Fail(path, fmt::format("missing; add {}", kFigureForm));
  return Read(path, *node, rule);
}

std::optional<Figure> FigureReader::Optional(const std::string& path, const FigureRule& rule) {
  const nlohmann::json* node = Find(path);
  if (node == nullptr) return std::nullopt;
  return Read(path, *node, rule);
}

Figure FigureReader::Read(const std::string& path, const nlohmann::json& node,
                          const FigureRule& rule) {
  if (!node.is_object()) {
    Fail(path, fmt::format("{} has no source; write {}", node.dump(), kFigureForm));
  }
  auto text = [&](const char* key, std::string_view fix) -> std::string {
    const auto found = node.find(key);
    if (found == node.end()) Fail(Join(path, key), fmt::format("missing; {}", fix));
    if (!found->is_string() || found->get_ref<const std::string&>().empty()) {
      Fail(Join(path, key), fmt::format("{} is not allowed; {}", found->dump(), fix));
    }
    read_.insert(Join(path, key));
    return found->get<std::string>();
  };
  Figure figure;
  const auto value = node.find("value");
  if (value == node.end()) Fail(Join(path, "value"), "missing; give the number");
  if (!value->is_number()) {
    Fail(Join(path, "value"), fmt::format("{} is not a number", value->dump()));
  }
  read_.insert(Join(path, "value"));
  figure.written = value->get<double>();

  const std::string allowed = fmt::format("use {}", AllowedUnits(rule.dimension));
  figure.unit = text("unit", allowed);
  const auto scale = UnitScale(rule.dimension, figure.unit);
  if (!scale)
    Fail(Join(path, "unit"), fmt::format("\"{}\" is not allowed; {}", figure.unit, allowed));
  figure.value = figure.written * *scale;

  constexpr std::string_view kSources = "use datasheet, measured or derived";
  const std::string source = text("source", kSources);
  if (source == "datasheet") {
    figure.source = FigureSource::kDatasheet;
  } else if (source == "measured") {
    figure.source = FigureSource::kMeasured;
  } else if (source == "derived") {
    figure.source = FigureSource::kDerived;
  } else {
    Fail(Join(path, "source"), fmt::format("\"{}\" is not allowed; {}", source, kSources));
  }
  figure.reference = text("reference", "say which document, or what was run where");

  if (!(figure.value >= rule.low && figure.value <= rule.high)) {
    Fail(Join(path, "value"),
         fmt::format("{} {} is not physical; allowed is {} to {} {}", value->dump(), figure.unit,
                     rule.low / *scale, rule.high / *scale, figure.unit));
  }
  if (rule.dimension == Dimension::kCount && figure.value != std::floor(figure.value)) {
    Fail(Join(path, "value"), fmt::format("{} is not a whole number", value->dump()));
  }
  return figure;
}

std::string FigureReader::Text(const std::string& path) {
  const nlohmann::json& node = Need(path);
  if (!node.is_string() || node.get_ref<const std::string&>().empty()) {
    Fail(path, fmt::format("{} is not allowed; give a text", node.dump()));
  }
  read_.insert(path);
  return node.get<std::string>();
}

bool FigureReader::Flag(const std::string& path) {
  const nlohmann::json& node = Need(path);
  if (!node.is_boolean())
    Fail(path, fmt::format("{} is not allowed; use true or false", node.dump()));
  read_.insert(path);
  return node.get<bool>();
}

int64_t FigureReader::Integer(const std::string& path, int64_t low, int64_t high) {
  const nlohmann::json& node = Need(path);
  if (!node.is_number_integer() || node.get<int64_t>() < low || node.get<int64_t>() > high) {
    Fail(path, fmt::format("{} is not allowed; use a whole number from {} to {}", node.dump(), low,
                           high));
  }
  read_.insert(path);
  return node.get<int64_t>();
}

std::vector<std::string> FigureReader::Items(const std::string& path) {
  const nlohmann::json& node = Need(path);
  if (!node.is_array() || node.empty()) Fail(path, "must be a list with at least one entry");
  std::vector<std::string> items;
  for (size_t i = 0; i < node.size(); ++i) items.push_back(fmt::format("{}.{}", path, i));
  return items;
}

std::vector<std::string> FigureReader::Keys(const std::string& path) const {
  std::vector<std::string> keys;
  const nlohmann::json* node = Find(path);
  if (node == nullptr || !node->is_object()) return keys;
  for (const auto& [key, value] : node->items()) keys.push_back(key);
  return keys;
}

void FigureReader::RefuseUnread() const { RefuseUnread(root_, ""); }

void FigureReader::RefuseUnread(const nlohmann::json& node, const std::string& path) const {
  if (!node.is_structured() || node.empty()) {
    if (read_.contains(path)) return;
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

}  // namespace zeroplan
