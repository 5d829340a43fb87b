// Reads a profile's fields (fields.h) out of its JSON. Not by JsonSection (core/base): parts are
// merged before they are read, so that no line of a file stands for a value, and numbers are taken
// as numbers alone.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "hwprofiles/fields.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/sanity.h"
#include "hwprofiles/unequal.h"

namespace zeroplan {
namespace {

constexpr int64_t kMaxWorldSize = 1'000'000;
constexpr std::string_view kFigureForm =
    R"({"value": NUMBER, "unit": "...", "source": "datasheet|measured|derived|given", "reference": "..."})";

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

bool IsText(const ProfileJson& json) {
  return json.is_string() && !json.get_ref<const std::string&>().empty();
}

bool IsWholeFrom(const ProfileJson& json, int64_t low, int64_t high) {
  return json.is_number_integer() && json.get<int64_t>() >= low && json.get<int64_t>() <= high;
}

template <typename T>
std::vector<std::string_view> WordsOf(std::span<const T> values) {
  std::vector<std::string_view> words;
  for (const T value : values) words.push_back(WordOf(value));
  return words;
}

// What ForEachField and ForEachNetworkField visit with. Paths are dotted ("gpu.peaks.bf16.dense"),
// entries of a list by their index. It remembers which paths were read: what is left over is
// refused as unknown.
class ProfileReader {
 public:
  // Throws Error(kUsage) if the text is not a JSON object.
  ProfileReader(std::string_view text, std::string_view source)
      : root_(ComposeProfile(ParseJson(text, source), source)), source_(source) {}

  // Throws Error(kUsage) "SOURCE: PATH: MESSAGE".
  [[noreturn]] void Fail(const std::string& path, const std::string& message) const {
    ThrowUsage("{}: {}: {}", source_, path, message);
  }

  void Text(const std::string& path, std::string& text) {
    const ProfileJson& node = Need(path);
    if (!IsText(node)) Fail(path, fmt::format("{} is not allowed; give a text", node.dump()));
    read_.insert(path);
    text = node.get<std::string>();
  }
  void Text(const std::string& path, std::optional<std::string>& text) {
    const ProfileJson* node = Find(path);
    if (node == nullptr) return;
    if (!node->is_string()) Fail(path, fmt::format("{} is not allowed; give a text", node->dump()));
    read_.insert(path);
    text = node->get<std::string>();
  }
  void Figure(const std::string& path, const FigureRule& rule, zeroplan::Figure& figure) {
    const ProfileJson* node = Find(path);
    if (node == nullptr) Fail(path, fmt::format("missing; add {}", kFigureForm));
    figure = Read(path, *node, rule);
  }
  void Figure(const std::string& path, const FigureRule& rule,
              std::optional<zeroplan::Figure>& figure) {
    if (const ProfileJson* node = Find(path)) figure = Read(path, *node, rule);
  }
  void Flag(const std::string& path, bool& flag) {
    const ProfileJson& node = Need(path);
    if (!node.is_boolean()) {
      Fail(path, fmt::format("{} is not allowed; use true or false", node.dump()));
    }
    read_.insert(path);
    flag = node.get<bool>();
  }
  template <typename T>
  void Word(const std::string& path, std::span<const T> values, T& value) {
    std::string text;
    Text(path, text);
    const auto found =
        std::find_if(values.begin(), values.end(), [&](T known) { return WordOf(known) == text; });
    if (found == values.end()) {
      Fail(path,
           fmt::format("\"{}\" is not allowed; use {}", text, fmt::join(WordsOf(values), " or ")));
    }
    value = *found;
  }
  void Peak(const std::string& path, const FigureRule& rule,
            std::map<Dtype, zeroplan::Figure>& figures, Dtype dtype) {
    std::optional<zeroplan::Figure> figure;
    Figure(path, rule, figure);
    if (!figure) return;
    std::string sparsity;
    Text(path + ".sparsity", sparsity);
    if (sparsity != "dense") {
      Fail(path + ".sparsity",
           fmt::format("\"{}\" is not allowed; give the dense peak (half of NVIDIA's figure with "
                       "sparsity) and \"dense\"",
                       sparsity));
    }
    figures[dtype] = *figure;
  }
  template <typename Row>
  void Table(const std::string& path, std::optional<Measured<Row>>& table) {
    if (Find(path) != nullptr) table = ReadTable<Row>(path);
  }
  template <typename T>
  bool Section(const std::string& path, std::optional<T>& section) {
    if (Find(path) == nullptr) return false;
    section.emplace();
    return true;
  }
  void Runtimes(const std::string& path, const FigureRule& rule,
                std::vector<RuntimeOverhead>& entries) {
    for (const std::string& item : Items(path)) {
      RuntimeOverhead entry;
      const std::string size = item + ".world_size";
      const ProfileJson& world_size = Need(size);
      if (!IsWholeFrom(world_size, 1, kMaxWorldSize)) {
        Fail(size, fmt::format("{} is not allowed; use a whole number from 1 to {}",
                               world_size.dump(), kMaxWorldSize));
      }
      read_.insert(size);
      entry.world_size = world_size.get<int>();
      Figure(item, rule, entry.bytes);
      Figure(item + ".communicator", rule, entry.communicator);
      if (entry.communicator && entry.communicator->value > entry.bytes.value / 2) {
        Fail(item + ".communicator", "more than half of the entry, which counts two");
      }
      if (!entries.empty() && entries.back().world_size >= entry.world_size) {
        Fail(size, fmt::format("{} does not rise; sort the entries by world_size, each once",
                               entry.world_size));
      }
      entries.push_back(std::move(entry));
    }
  }

  // What NVIDIA prints first is the sparse figure, so somebody will give it.
  void RefuseSparsePeaks() const {
    const ProfileJson* peaks = Find("gpu.peaks");
    if (peaks == nullptr || !peaks->is_object()) return;
    for (const auto& [key, peak] : peaks->items()) {
      if (!peak.is_object() || !peak.contains("sparse")) continue;
      Fail("gpu.peaks." + key + ".sparse",
           "training is dense; remove it and give the dense peak as \"dense\"");
    }
  }
  // No field: MatchGpu (machine/detect.h) reads it of the built-in parts. Checked here.
  void CheckDriverNames() {
    if (Find("gpu.driver_names") == nullptr) return;
    std::string name;
    for (const std::string& path : Items("gpu.driver_names")) Text(path, name);
  }

  // Of kOtherGpus; empty without it.
  std::vector<GpuKind> OtherGpus() {
    std::vector<GpuKind> kinds;
    if (Find(kOtherGpus) == nullptr) return kinds;
    for (const std::string& item : Items(kOtherGpus)) {
      GpuKind& kind = kinds.emplace_back();
      Figure(item + ".gpus", figure_rules::kGpusPerNode, kind.gpus);
      const std::string at = item + ".gpu";
      ProfileJson alone = ProfileJson::object();
      alone["gpu"] = Need(at);
      ProfileReader part(alone.dump(), fmt::format("{}: {}", source_, item));
      part.RefuseSparsePeaks();
      ForEachGpuField(kind.gpu, part);
      part.CheckDriverNames();
      part.RefuseUnread();
      read_.insert(at);
    }
    return kinds;
  }

  // Throws for the first key that nothing has read.
  void RefuseUnread() const { RefuseUnread(root_, ""); }

 private:
  const ProfileJson* Find(const std::string& path) const {
    std::string pointer = "/" + path;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const ProfileJson::json_pointer at(pointer);
    return root_.contains(at) ? &root_.at(at) : nullptr;
  }

  const ProfileJson& Need(const std::string& path) const {
    const ProfileJson* node = Find(path);
    if (node == nullptr) Fail(path, "missing; every profile needs it");
    return *node;
  }

  // Entries of a list, as paths ("runtime.0", ...).
  std::vector<std::string> Items(const std::string& path) const {
    const ProfileJson& node = Need(path);
    if (!node.is_array() || node.empty()) Fail(path, "must be a list with at least one entry");
    std::vector<std::string> items;
    for (size_t i = 0; i < node.size(); ++i) items.push_back(fmt::format("{}.{}", path, i));
    return items;
  }

  // A member that must be a text; `fix` says what to give.
  std::string Member(const std::string& path, const ProfileJson& node, const char* key,
                     std::string_view fix) {
    const auto found = node.find(key);
    if (found == node.end()) Fail(Join(path, key), fmt::format("missing; {}", fix));
    if (!IsText(*found)) {
      Fail(Join(path, key), fmt::format("{} is not allowed; {}", found->dump(), fix));
    }
    read_.insert(Join(path, key));
    return found->get<std::string>();
  }

  // What figures and tables say alike. Returns the unit's scale.
  template <typename Said>
  double ReadOrigin(const std::string& path, const ProfileJson& node, Dimension dimension,
                    std::string& unit, Said& said) {
    const std::string units = fmt::format("use {}", AllowedUnits(dimension));
    unit = Member(path, node, "unit", units);
    const auto scale = UnitScale(dimension, unit);
    if (!scale) Fail(Join(path, "unit"), fmt::format("\"{}\" is not allowed; {}", unit, units));
    constexpr std::string_view kSources = "use datasheet, measured, derived or given";
    const std::string source = Member(path, node, "source", kSources);
    const auto known =
        std::find_if(std::begin(kFigureSources), std::end(kFigureSources),
                     [&](FigureSource one) { return source == FigureSourceName(one); });
    if (known == std::end(kFigureSources)) {
      Fail(Join(path, "source"), fmt::format("\"{}\" is not allowed; {}", source, kSources));
    }
    said.source = *known;
    said.reference = Member(path, node, "reference", "say which document, or what was run where");
    return *scale;
  }

  zeroplan::Figure Read(const std::string& path, const ProfileJson& node, const FigureRule& rule) {
    if (!node.is_object()) {
      Fail(path, fmt::format("{} has no source; write {}", node.dump(), kFigureForm));
    }
    const std::string at = Join(path, "value");
    zeroplan::Figure figure;
    const auto value = node.find("value");
    if (value == node.end()) Fail(at, "missing; give the number");
    if (!value->is_number()) Fail(at, fmt::format("{} is not a number", value->dump()));
    read_.insert(at);
    figure.written = value->get<double>();
    const double scale = ReadOrigin(path, node, rule.dimension, figure.unit, figure);
    figure.value = figure.written * scale;
    if (!(figure.value >= rule.low && figure.value <= rule.high)) {
      Fail(at, fmt::format("{} {} is not physical; allowed is {} to {} {}", value->dump(),
                           figure.unit, rule.low / scale, rule.high / scale, figure.unit));
    }
    if (rule.dimension == Dimension::kCount && figure.value != std::floor(figure.value)) {
      Fail(at, fmt::format("{} is not a whole number", value->dump()));
    }
    return figure;
  }

  // One row of a table, cell by cell from left to right.
  struct CellReader {
    const ProfileReader& reader;
    const ProfileJson& cells;
    std::string path;
    double scale;
    std::vector<double> about{};  // the cells that say what it is about; words by their index
    size_t next = 0;

    [[noreturn]] void FailCell(std::string_view column, const std::string& fix) const {
      reader.Fail(path, fmt::format("{}: {} is not allowed; {}", column, cells[next].dump(), fix));
    }
    template <typename T>
    void Word(std::string_view column, std::span<const T> values, T& value) {
      const ProfileJson& cell = cells[next];
      const auto found = std::find_if(values.begin(), values.end(), [&](T known) {
        return cell.is_string() && cell.get_ref<const std::string&>() == WordOf(known);
      });
      if (found == values.end()) {
        FailCell(column, fmt::format("use one of {}", fmt::join(WordsOf(values), ", ")));
      }
      value = *found;
      about.push_back(static_cast<double>(found - values.begin()));
      ++next;
    }
    template <typename T>
    void Whole(std::string_view column, T& value) {
      if (!IsWholeFrom(cells[next], 1, kMostWhole)) {
        FailCell(column, fmt::format("use a whole number from 1 to {}", kMostWhole));
      }
      value = cells[next++].get<T>();
      about.push_back(static_cast<double>(value));
    }
    double TakeNumber(std::string_view column) {
      const ProfileJson& cell = cells[next];
      if (!cell.is_number() ||
          !(cell.get<double>() >= kLeastCell && cell.get<double>() <= kMostCell)) {
        FailCell(column, fmt::format("use a number from {:g} to {:g}", kLeastCell, kMostCell));
      }
      ++next;
      return cell.get<double>();
    }
    void Bytes(std::string_view column, double& value) {
      value = TakeNumber(column);
      about.push_back(value);
    }
    void Measured(std::string_view column, double& value) { value = TakeNumber(column) * scale; }
  };

  template <typename Row>
  Measured<Row> ReadTable(const std::string& path) {
    const ProfileJson& node = Need(path);
    if (!node.is_object()) {
      Fail(path, R"(is no table; write {"unit", "source", "reference", "columns", "rows"})");
    }
    Measured<Row> table;
    std::string unit;
    const double scale = ReadOrigin(path, node, UnitOf(Row{}).dimension, unit, table);
    const std::vector<std::string> columns = ColumnsOf<Row>();
    if (const ProfileJson& named = Need(Join(path, "columns")); named != ProfileJson(columns)) {
      Fail(Join(path, "columns"), fmt::format("{} is not allowed; use [\"{}\"]", named.dump(),
                                              fmt::join(columns, "\", \"")));
    }
    const ProfileJson& rows = Need(Join(path, "rows"));
    if (!rows.is_array() || rows.empty()) {
      Fail(Join(path, "rows"), "must be a list with at least one row");
    }
    read_.insert(Join(path, "columns"));
    read_.insert(Join(path, "rows"));
    std::vector<std::pair<std::vector<double>, size_t>> seen;
    for (size_t i = 0; i < rows.size(); ++i) {
      CellReader cells{*this, rows[i], fmt::format("{}.rows.{}", path, i), scale};
      if (!rows[i].is_array() || rows[i].size() != columns.size()) {
        Fail(cells.path, fmt::format("{} is not a row; give {} values: {}", rows[i].dump(),
                                     columns.size(), fmt::join(columns, ", ")));
      }
      ForEachCell(table.rows.emplace_back(), cells);
      seen.emplace_back(std::move(cells.about), i);
    }
    std::sort(seen.begin(), seen.end());
    for (size_t i = 1; i < seen.size(); ++i) {
      if (seen[i].first != seen[i - 1].first) continue;
      Fail(fmt::format("{}.rows.{}", path, seen[i].second),
           fmt::format("says again what row {} is about; keep one of them", seen[i - 1].second));
    }
    return table;
  }

  void RefuseUnread(const ProfileJson& node, const std::string& path) const {
    if (read_.contains(path)) return;  // also a table's rows, which are read as a whole
    if (!node.is_structured() || node.empty()) {
      // The keys beside the unread one are what could have been meant.
      const size_t dot = path.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot + 1);
      std::vector<std::string> known;
      for (const std::string& read : read_) {
        if (!read.starts_with(parent)) continue;
        known.push_back(read.substr(parent.size(), read.find('.', parent.size()) - parent.size()));
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

  const ProfileJson root_;
  const std::string source_;
  std::set<std::string> read_{"$schema"};  // an editor's
};

}  // namespace

HardwareProfile ParseProfile(std::string_view json, std::string_view source) {
  ProfileReader reader(json, source);
  std::string schema;
  reader.Text("schema", schema);
  if (schema != kProfileSchema) {
    reader.Fail("schema", fmt::format("\"{}\" is not allowed; use \"{}\"", schema, kProfileSchema));
  }
  HardwareProfile profile;
  profile.source = source;
  reader.RefuseSparsePeaks();
  ForEachField(profile, reader);
  reader.CheckDriverNames();
  profile.kinds = reader.OtherGpus();
  reader.RefuseUnread();
  if (const auto problem = FindContradiction(profile)) reader.Fail(problem->key, problem->message);
  if (profile.kinds.empty()) return profile;
  GpuKind first{profile.gpu, profile.node.gpus};
  for (size_t i = 0; i < profile.kinds.size(); ++i) {
    HardwareProfile other = profile;
    other.gpu = profile.kinds[i].gpu;
    if (const auto problem = FindContradiction(other)) {
      reader.Fail(fmt::format("{}.{}.{}", kOtherGpus, i, problem->key), problem->message);
    }
    first.gpus.value -= profile.kinds[i].gpus.value;
  }
  if (first.gpus.value < 1) {
    reader.Fail("gpus.value",
                fmt::format("{:.0f} are all GPUs of a node, and {} has as many or more; use their "
                            "sum with those of \"gpu\"",
                            profile.node.gpus.value, kOtherGpus));
  }
  first.gpus.written = first.gpus.value;
  profile.kinds.insert(profile.kinds.begin(), std::move(first));
  TakeSlowest(profile);
  return profile;
}

NetworkProfile LoadNetwork(const std::string& name) {
  NetworkProfile network;
  ForEachNetworkField(network,
                      ProfileReader(fmt::format(R"({{"network": "{}"}})", name), "built in"));
  return network;
}

}  // namespace zeroplan
