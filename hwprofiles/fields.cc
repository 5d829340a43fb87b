#include "hwprofiles/fields.h"

#include "core/base/error.h"

namespace zeroplan {
namespace {

// Scale of "", K, M, G, T, P (powers of 1000) or Ki, Mi, Gi, Ti (powers of 1024).
std::optional<double> PrefixScale(std::string_view prefix, bool binary_allowed) {
  constexpr std::string_view kLetters = "KMGTP";
  if (prefix.empty()) return 1.0;
  const size_t index = kLetters.find(prefix[0]);
  if (index == std::string_view::npos) return std::nullopt;
  const bool binary = prefix.size() == 2 && prefix[1] == 'i' && binary_allowed && index < 4;
  if (prefix.size() != 1 && !binary) return std::nullopt;
  double scale = 1;
  for (size_t i = 0; i <= index; ++i) scale *= binary ? 1024.0 : 1000.0;
  return scale;
}

enum class Prefixes : uint8_t { kNone, kDecimal, kAll };
struct Unit {
  Dimension dimension;
  std::string_view name;  // behind its prefix
  double scale;
  Prefixes prefixes;
};
constexpr Unit kUnits[] = {{Dimension::kBytes, "B", 1, Prefixes::kAll},
                           {Dimension::kBytesPerSecond, "B/s", 1, Prefixes::kAll},
                           {Dimension::kBytesPerSecond, "b/s", 1.0 / 8, Prefixes::kDecimal},
                           {Dimension::kFlopsPerSecond, "FLOP/s", 1, Prefixes::kDecimal},
                           {Dimension::kHertz, "Hz", 1, Prefixes::kDecimal},
                           {Dimension::kSeconds, "s", 1, Prefixes::kNone},
                           {Dimension::kSeconds, "ms", 1e-3, Prefixes::kNone},
                           {Dimension::kSeconds, "us", 1e-6, Prefixes::kNone},
                           {Dimension::kSeconds, "ns", 1e-9, Prefixes::kNone},
                           {Dimension::kWatts, "W", 1, Prefixes::kNone},
                           {Dimension::kJoules, "J", 1, Prefixes::kNone},
                           {Dimension::kJoules, "nJ", 1e-9, Prefixes::kNone},
                           {Dimension::kJoules, "pJ", 1e-12, Prefixes::kNone},
                           {Dimension::kRatio, "ratio", 1, Prefixes::kNone},
                           {Dimension::kCount, "count", 1, Prefixes::kNone}};

}  // namespace

std::optional<double> UnitScale(Dimension dimension, std::string_view unit) {
  for (const Unit& known : kUnits) {
    if (known.dimension != dimension || !unit.ends_with(known.name)) continue;
    const std::string_view prefix = unit.substr(0, unit.size() - known.name.size());
    if (known.prefixes == Prefixes::kNone && !prefix.empty()) continue;
    const auto scale = PrefixScale(prefix, known.prefixes == Prefixes::kAll);
    return scale ? std::optional(*scale * known.scale) : std::nullopt;
  }
  return std::nullopt;
}

std::string_view AllowedUnits(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes:
      return "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB";
    case Dimension::kBytesPerSecond:
      return "GB/s, TB/s, GiB/s (bytes) or Gb/s (bits)";
    case Dimension::kFlopsPerSecond:
      return "GFLOP/s, TFLOP/s or PFLOP/s";
    case Dimension::kHertz:
      return "MHz or GHz";
    case Dimension::kSeconds:
      return "s, ms, us or ns";
    case Dimension::kWatts:
      return "W";
    case Dimension::kJoules:
      return "J, nJ or pJ";
    case Dimension::kRatio:
      return "ratio";
    case Dimension::kCount:
      return "count";
  }
  return "";
}

namespace {

class KeyFinder {
 public:
  explicit KeyFinder(const zeroplan::Figure& wanted) : wanted_(&wanted) {}

  const std::string& key() const { return key_; }

  void Figure(std::string_view path, const FigureRule&, const zeroplan::Figure& figure) {
    if (&figure == wanted_) key_ = path;
  }
  void Figure(std::string_view path, const FigureRule& rule,
              const std::optional<zeroplan::Figure>& figure) {
    if (figure) Figure(path, rule, *figure);
  }
  void Peak(std::string_view path, const FigureRule& rule,
            const std::map<Dtype, zeroplan::Figure>& figures, Dtype dtype) {
    const auto found = figures.find(dtype);
    if (found != figures.end()) Figure(path, rule, found->second);
  }
  template <typename T>
  bool Section(std::string_view, const std::optional<T>& section) {
    return section.has_value();
  }
  void Runtimes(std::string_view, const FigureRule&, const std::vector<RuntimeOverhead>&) {}
  void Text(std::string_view, const auto&) {}
  void Flag(std::string_view, bool) {}
  template <typename T>
  void Word(std::string_view, std::span<const T>, T) {}
  template <typename Row>
  void Table(std::string_view, const std::optional<Measured<Row>>&) {}

 private:
  const zeroplan::Figure* wanted_;
  std::string key_;
};

}  // namespace

std::string FigureKey(const HardwareProfile& profile, const Figure& figure) {
  KeyFinder finder(figure);
  ForEachField(profile, finder);
  ZEROPLAN_CHECK(!finder.key().empty(), "no figure of this profile");
  return finder.key();
}

}  // namespace zeroplan
