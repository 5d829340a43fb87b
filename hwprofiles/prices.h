// What GPUs cost for an hour: the built-in prices (hwprofiles/prices/prices.json), each with its
// source and date, or those of a file of one's own.
//
// A file is {"schema": "zeroplan.prices/1", "currency": "USD", "prices": [ENTRY, ...]}, an entry
//
//   {"hw": "h100-80gb-sxm", "on_demand": 3.99, "spot": 2.1, "rented_by": "gpu",
//    "date": "2026-11-09", "source": "https://..."}
//
// `hw` is a card or a machine, named as --hw names them. Prices are those of one GPU for one hour,
// also of a machine that is rented as a whole ("rented_by": "node"). docs/machines.md has the rest.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"

namespace zeroplan {

// What one GPU costs for an hour.
struct GpuHourPrice {
  double amount = 0;        // of one GPU and hour, in `currency`
  std::string currency;     // "USD"
  std::string date;         // "2026-05" or "2026-05-31"; never empty
  std::string source;       // who says so; never empty
  bool whole_node = false;  // rented by the node alone: all its GPUs are paid for

  bool operator==(const GpuHourPrice&) const = default;
};

// Unset: not known.
struct MachinePrices {
  std::optional<GpuHourPrice> on_demand, spot;

  bool operator==(const MachinePrices&) const = default;
};

class PriceBook {
 public:
  static const PriceBook& BuiltIn();
  // A file in that format. An entry that does not say so has the day of the file and its path as
  // date and source. Throws Error(kUsage) that names file, line, key, value and fix: for another
  // schema, keys and machines that are not known, values of a wrong type, a price that no GPU has
  // (0 or less, over 1000 dollars), and a second price of a kind for one machine.
  static PriceBook Read(const std::string& file);

  // Those of the machine by the profile's name ("p4d-24xlarge"), or else of its card, whichever
  // machine it is in. A machine that has an entry takes nothing from its card's: where its cloud's
  // spot price is not known, another cloud's says nothing of it.
  MachinePrices Of(const HardwareProfile& profile) const;
  // Those of a card, by GpuProfile::name, whichever machine it is in.
  MachinePrices OfCard(const std::string& gpu_name) const;

  // The file that was read; "" for the built-in prices.
  const std::string& file() const { return file_; }

 private:
  static PriceBook Parse(std::string_view text, const std::string& source, const std::string& day);

  std::map<std::string, MachinePrices> of_machine_;  // by HardwareProfile::name
  std::map<std::string, MachinePrices> of_card_;     // by GpuProfile::name
  std::string file_;
};

}  // namespace zeroplan
