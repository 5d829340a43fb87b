#include "hwprofiles/fields.h"

#include "core/base/error.h"

namespace zeroplan {
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
  void Text(std::string_view, const std::string&) {}
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
