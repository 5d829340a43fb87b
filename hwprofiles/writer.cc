#include "hwprofiles/writer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "hwprofiles/fields.h"
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {

// Whole numbers without a fraction, as people write them.
ProfileJson Number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::abs(value) < kExact) return static_cast<int64_t>(value);
  return value;
}

ProfileJson FigureJson(const Figure& figure) {
  return {{"value", Number(figure.written)},
          {"unit", figure.unit},
          {"source", FigureSourceName(figure.source)},
          {"reference", figure.reference}};
}

// A rate that says that it is no sparse one.
ProfileJson PeakJson(const Figure& figure) {
  return {{"value", Number(figure.written)},
          {"unit", figure.unit},
          {"sparsity", "dense"},
          {"source", FigureSourceName(figure.source)},
          {"reference", figure.reference}};
}

// The shortest number that times `scale` gives exactly `value`, as the loader computes it; nothing
// if rounding leaves none.
std::optional<double> InUnit(double value, double scale) {
  for (int digits = 1; digits <= 17; ++digits) {
    const double number =
        std::strtod(fmt::format("{:.{}g}", value / scale, digits).c_str(), nullptr);
    if (number * scale == value) return number;
  }
  const double nearest = value / scale;
  for (const double number : {std::nextafter(nearest, 0.0), std::nextafter(nearest, 2 * nearest)}) {
    if (number * scale == value) return number;
  }
  return std::nullopt;
}

// A row's cells as they are written.
struct CellWriter {
  ProfileJson about = ProfileJson::array();
  std::vector<double> measured;

  template <typename T>
  void Word(std::string_view, std::span<const T>, T value) {
    about.push_back(WordOf(value));
  }
  template <typename T>
  void Whole(std::string_view, T value) {
    about.push_back(value);
  }
  void Bytes(std::string_view, double value) { about.push_back(Number(value)); }
  void Measured(std::string_view, double value) { measured.push_back(value); }
};

class FieldWriter {
 public:
  explicit FieldWriter(ProfileJson& json) : json_(json) {}

  void Text(std::string_view path, const std::string& text) { At(path) = text; }
  void Text(std::string_view path, const std::optional<std::string>& text) {
    if (text) At(path) = *text;
  }
  void Figure(std::string_view path, const FigureRule&, const zeroplan::Figure& figure) {
    At(path) = FigureJson(figure);
  }
  void Figure(std::string_view path, const FigureRule&,
              const std::optional<zeroplan::Figure>& figure) {
    if (figure) At(path) = FigureJson(*figure);
  }
  void Flag(std::string_view path, bool flag) { At(path) = flag; }
  template <typename T>
  void Word(std::string_view path, std::span<const T>, T value) {
    At(path) = WordOf(value);
  }
  void Peak(std::string_view path, const FigureRule&,
            const std::map<Dtype, zeroplan::Figure>& figures, Dtype dtype) {
    const auto found = figures.find(dtype);
    if (found != figures.end()) At(path) = PeakJson(found->second);
  }
  template <typename Row>
  void Table(std::string_view path, const std::optional<Measured<Row>>& table) {
    if (table) At(path) = TableJson(*table);
  }
  template <typename T>
  bool Section(std::string_view, const std::optional<T>& section) {
    return section.has_value();
  }
  void Runtimes(std::string_view path, const FigureRule&,
                const std::vector<RuntimeOverhead>& entries) {
    ProfileJson& list = At(path) = ProfileJson::array();
    for (const RuntimeOverhead& entry : entries) {
      ProfileJson item = {{"world_size", entry.world_size}};
      item.update(FigureJson(entry.bytes));
      if (entry.communicator) item["communicator"] = FigureJson(*entry.communicator);
      list.push_back(std::move(item));
    }
  }

 private:
  // The value at a dotted path; objects on the way are made.
  ProfileJson& At(std::string_view path) {
    ProfileJson* node = &json_;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      node = &(*node)[std::string(path.substr(begin, end - begin))];
      begin = end + 1;
    }
    return *node;
  }

  template <typename Row>
  static ProfileJson TableJson(const Measured<Row>& table) {
    std::vector<CellWriter> rows(table.rows.size());
    for (size_t i = 0; i < rows.size(); ++i) ForEachCell(table.rows[i], rows[i]);
    const MeasuredUnit& unit = UnitOf(Row{});
    const double usual = UnitScale(unit.dimension, unit.usual).value();
    bool survives = true;
    for (const CellWriter& row : rows) {
      for (const double value : row.measured) survives = survives && InUnit(value, usual);
    }
    ProfileJson cells = ProfileJson::array();
    for (CellWriter& row : rows) {
      for (const double value : row.measured) {
        row.about.push_back(survives ? *InUnit(value, usual) : value);
      }
      cells.push_back(std::move(row.about));
    }
    return {{"unit", survives ? unit.usual : unit.base},
            {"source", FigureSourceName(table.source)},
            {"reference", table.reference},
            {"columns", ColumnsOf<Row>()},
            {"rows", std::move(cells)}};
  }

  ProfileJson& json_;
};

}  // namespace

std::string WriteProfile(const HardwareProfile& profile) {
  ProfileJson json = {{"schema", kProfileSchema}};
  HardwareProfile written = profile;
  if (!profile.kinds.empty()) written.gpu = profile.kinds.front().gpu;
  ForEachField(std::as_const(written), FieldWriter(json));
  for (size_t i = 1; i < profile.kinds.size(); ++i) {
    const GpuKind& kind = profile.kinds[i];
    ProfileJson other = {{"gpus", FigureJson(kind.gpus)}};
    ForEachGpuField(kind.gpu, FieldWriter(other));
    json[kOtherGpus].push_back(std::move(other));
  }
  return FormatProfileJson(json);
}

}  // namespace zeroplan
