#include "hwprofiles/prices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {

constexpr std::string_view kPriceSchema = "zeroplan.prices/1";
// In dollars: what is outside is a slip of the keys. A dollar is up to so many units of another
// currency.
constexpr double kLeastPerHour = 1e-4, kMostPerHour = 1000;
constexpr double kUnitsOfADollar = 100'000;

void RefuseUnknownKeys(const JsonSection& section) {
  for (const std::string& key : section.Unknown()) {
    const std::string nearest = NearestName(key, section.known());
    section.Fail(key, "unknown key{}; use {}",
                 nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest),
                 fmt::join(section.known(), ", "));
  }
}

// "2026-05" or "2026-05-31".
bool IsDate(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-dd";
  if (text.size() != 7 && text.size() != kForm.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    if (kForm[i] == 'd' ? !digit : text[i] != kForm[i]) return false;
  }
  const auto at = [&](size_t i) { return (text[i] - '0') * 10 + text[i + 1] - '0'; };
  return at(5) >= 1 && at(5) <= 12 && (text.size() == 7 || (at(8) >= 1 && at(8) <= 31));
}

bool IsCurrency(std::string_view text) {
  return text.size() == 3 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

// The day on which a file was written; today for what is no file of its own, as a pipe.
std::string DayOf(const std::string& file) {
  namespace chrono = std::chrono;
  std::error_code error;
  auto written = chrono::system_clock::now();
  if (std::filesystem::is_regular_file(file, error)) {
    const auto time = std::filesystem::last_write_time(file, error);
    if (!error) written = chrono::file_clock::to_sys(time);
  }
  const chrono::year_month_day day(chrono::floor<chrono::days>(written));
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(day.year()),
                     static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()));
}

std::optional<double> PriceAt(JsonSection& entry, std::string_view key,
                              const std::string& currency) {
  const double most = currency == "USD" ? kMostPerHour : kMostPerHour * kUnitsOfADollar;
  return entry.Number(key, kLeastPerHour, most,
                      fmt::format("the price of one GPU for an hour in {}, from {:g} to {:g}",
                                  currency, kLeastPerHour, most));
}

}  // namespace

PriceBook PriceBook::Parse(std::string_view text, const std::string& source,
                           const std::string& day) {
  const JsonNode root_node = ParseJsonText(text, source);
  JsonSection root(&root_node, "", source);
  const std::optional<std::string> schema = root.String("schema");
  if (schema != kPriceSchema) root.FailValue("schema", fmt::format("\"{}\"", kPriceSchema));
  const std::string currency = root.String("currency").value_or("USD");
  if (!IsCurrency(currency)) root.FailValue("currency", "three capital letters, as \"USD\"");
  const JsonNode* prices = root.Value("prices");
  RefuseUnknownKeys(root);
  if (prices == nullptr || !prices->is_array() || prices->elements.empty()) {
    root.FailValue("prices", "a list with at least one entry {\"hw\": ..., \"on_demand\": ...}");
  }

  PriceBook book;
  const std::vector<std::string> machines = ProfileNames();
  for (size_t i = 0; i < prices->elements.size(); ++i) {
    JsonSection entry(&prices->elements[i], fmt::format("prices.{}", i), source);
    const std::string name = entry.String("hw").value_or("");
    if (name.empty()) entry.FailValue("hw", "a card or a machine of 'zeroplan hw list'");
    const bool whole_node =
        entry.Word("rented_by", {"gpu", "node"}, "\"gpu\" or \"node\"").value_or("gpu") == "node";
    const std::string date = entry.String("date").value_or(day);
    if (!IsDate(date))
      entry.FailValue("date", "a month or a day, as \"2026-05\" or \"2026-05-31\"");
    std::string said_by = entry.String("source").value_or(source);
    if (said_by.empty()) entry.FailValue("source", "who says so, as \"https://...\"");
    const std::optional<double> amounts[] = {PriceAt(entry, "on_demand", currency),
                                             PriceAt(entry, "spot", currency)};
    RefuseUnknownKeys(entry);
    if (!amounts[0] && !amounts[1]) {
      entry.Fail("hw", "\"{}\" has no price; add \"on_demand\", \"spot\" or both", name);
    }

    std::string where = entry.Where("hw");
    where.resize(where.size() - 2);  // without ": "
    // Profiles take a while to put together, so those that are named in full stay apart.
    const bool in_full = std::find(machines.begin(), machines.end(), name) != machines.end();
    const std::string meant = in_full ? name : FindProfile(name, 0, where).profile.name;
    MachinePrices& machine = book.of_machine_[meant];
    for (const bool spot : {false, true}) {
      if (!amounts[spot]) continue;
      const char* key = spot ? "spot" : "on_demand";
      std::optional<GpuHourPrice>& price = spot ? machine.spot : machine.on_demand;
      if (price) {
        entry.Fail(key, "{} has a price before this one; leave one of them out", meant);
      }
      price = GpuHourPrice{*amounts[spot], currency, date, said_by, whole_node};
    }
  }
  // A card has one price in every machine that has none itself.
  for (const KnownGpu& gpu : KnownGpus()) {
    const auto card = book.of_machine_.find(gpu.part);
    if (card != book.of_machine_.end()) book.of_card_[gpu.name] = card->second;
  }
  return book;
}

const PriceBook& PriceBook::BuiltIn() {
  static const PriceBook book =
      Parse(EmbeddedText("prices", "prices"), "built-in prices", std::string());
  return book;
}

PriceBook PriceBook::Read(const std::string& file) {
  PriceBook book = Parse(ReadTextFile(file), file, DayOf(file));
  book.file_ = file;
  return book;
}

MachinePrices PriceBook::Of(const HardwareProfile& profile) const {
  if (const auto machine = of_machine_.find(profile.name); machine != of_machine_.end()) {
    return machine->second;
  }
  return OfCard(profile.gpu.name);
}

MachinePrices PriceBook::OfCard(const std::string& gpu_name) const {
  const auto card = of_card_.find(gpu_name);
  return card == of_card_.end() ? MachinePrices{} : card->second;
}

}  // namespace zeroplan
