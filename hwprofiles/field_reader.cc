#include "hwprofiles/field_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace zeroplan {
namespace {

constexpr int64_t kMaxWorldSize = 1'000'000;

template <typename T>
std::vector<std::string_view> WordsOf(std::span<const T> values) {
  std::vector<std::string_view> words;
  for (const T value : values) words.push_back(WordOf(value));
  return words;
}

struct ColumnNames {
  std::vector<std::string_view> names;

  template <typename T>
  void Word(std::string_view column, std::span<const T>, T) {
    names.push_back(column);
  }
  template <typename T>
  void Whole(std::string_view column, T) {
    names.push_back(column);
  }
  void Bytes(std::string_view column, double) { names.push_back(column); }
  void Measured(std::string_view column, double) { names.push_back(column); }
};

// `about`: the cells that say what the row is about; words by their index.
struct CellReader {
  RowReader& row;
  std::vector<double> about;

  template <typename T>
  void Word(std::string_view, std::span<const T> values, T& value) {
    const size_t index = row.TakeWord(WordsOf(values));
    value = values[index];
    about.push_back(static_cast<double>(index));
  }
  template <typename T>
  void Whole(std::string_view, T& value) {
    value = static_cast<T>(row.TakeWhole());
    about.push_back(static_cast<double>(value));
  }
  void Bytes(std::string_view, double& value) {
    value = row.TakeNumber();
    about.push_back(value);
  }
  void Measured(std::string_view, double& value) { value = row.TakeMeasured(); }
};

class FieldReader {
 public:
  explicit FieldReader(FigureReader& reader) : reader_(reader) {}

  void Text(const std::string& path, std::string& text) { text = reader_.Text(path); }
  void Figure(const std::string& path, const FigureRule& rule, zeroplan::Figure& figure) {
    figure = reader_.Required(path, rule);
  }
  void Figure(const std::string& path, const FigureRule& rule,
              std::optional<zeroplan::Figure>& figure) {
    figure = reader_.Optional(path, rule);
  }
  void Flag(const std::string& path, bool& flag) { flag = reader_.Flag(path); }
  template <typename T>
  void Word(const std::string& path, std::span<const T> values, T& value) {
    const std::string text = reader_.Text(path);
    const auto found =
        std::find_if(values.begin(), values.end(), [&](T known) { return WordOf(known) == text; });
    if (found == values.end()) {
      reader_.Fail(path, fmt::format("\"{}\" is not allowed; use {}", text,
                                     fmt::join(WordsOf(values), " or ")));
    }
    value = *found;
  }
  void Peak(const std::string& path, const FigureRule& rule,
            std::map<Dtype, zeroplan::Figure>& figures, Dtype dtype) {
    const auto figure = reader_.Optional(path, rule);
    if (!figure) return;
    const std::string sparsity = reader_.Text(path + ".sparsity");
    if (sparsity != "dense") {
      reader_.Fail(path + ".sparsity",
                   fmt::format("\"{}\" is not allowed; give the dense peak (half of NVIDIA's "
                               "figure with sparsity) and \"dense\"",
                               sparsity));
    }
    figures[dtype] = *figure;
  }
  template <typename Row>
  void Table(const std::string& path, std::optional<Measured<Row>>& table) {
    if (reader_.Has(path)) table = ReadTable<Row>(path);
  }
  template <typename T>
  bool Section(const std::string& path, std::optional<T>& section) {
    if (!reader_.Has(path)) return false;
    section.emplace();
    return true;
  }
  void Runtimes(const std::string& path, const FigureRule& rule,
                std::vector<RuntimeOverhead>& entries) {
    for (const std::string& item : reader_.Items(path)) {
      RuntimeOverhead entry;
      entry.world_size = static_cast<int>(reader_.Integer(item + ".world_size", 1, kMaxWorldSize));
      entry.bytes = reader_.Required(item, rule);
      entry.communicator = reader_.Optional(item + ".communicator", rule);
      if (entry.communicator && entry.communicator->value > entry.bytes.value / 2) {
        reader_.Fail(item + ".communicator", "more than half of the entry, which counts two");
      }
      if (!entries.empty() && entries.back().world_size >= entry.world_size) {
        reader_.Fail(item + ".world_size",
                     fmt::format("{} does not rise; sort the entries by world_size, each once",
                                 entry.world_size));
      }
      entries.push_back(std::move(entry));
    }
  }

 private:
  template <typename Row>
  Measured<Row> ReadTable(const std::string& path) {
    ColumnNames columns;
    ForEachCell(std::as_const(kEmpty<Row>), columns);
    const TableText text = reader_.Table(path, UnitOf(kEmpty<Row>).dimension, columns.names);
    Measured<Row> table;
    table.source = text.source;
    table.reference = text.reference;
    std::vector<std::pair<std::vector<double>, size_t>> seen;
    for (size_t i = 0; i < text.row_count; ++i) {
      RowReader row(reader_, text, i);
      CellReader cells{row, {}};
      ForEachCell(table.rows.emplace_back(), cells);
      seen.emplace_back(std::move(cells.about), i);
    }
    std::sort(seen.begin(), seen.end());
    for (size_t i = 1; i < seen.size(); ++i) {
      if (seen[i].first != seen[i - 1].first) continue;
      reader_.Fail(
          fmt::format("{}.rows.{}", path, seen[i].second),
          fmt::format("says again what row {} is about; keep one of them", seen[i - 1].second));
    }
    return table;
  }

  template <typename Row>
  static constexpr Row kEmpty{};

  FigureReader& reader_;
};

// What NVIDIA prints first is the sparse figure, so somebody will give it.
void RefuseSparsePeaks(const FigureReader& reader) {
  for (const std::string& key : reader.Keys("gpu.peaks")) {
    const std::string path = "gpu.peaks." + key + ".sparse";
    if (reader.Has(path)) {
      reader.Fail(path, "training is dense; remove it and give the dense peak as \"dense\"");
    }
  }
}

}  // namespace

void ReadFields(FigureReader& reader, HardwareProfile& profile) {
  RefuseSparsePeaks(reader);
  ForEachField(profile, FieldReader(reader));
  // No field: MatchGpu (detect.h) reads it of the built-in parts. Checked here.
  if (reader.Has("gpu.driver_names")) {
    for (const std::string& path : reader.Items("gpu.driver_names")) reader.Text(path);
  }
}

void ReadFields(FigureReader& reader, NetworkProfile& network) {
  ForEachNetworkField(network, FieldReader(reader));
}

}  // namespace zeroplan
