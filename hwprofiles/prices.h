// Prices of GPUs for an hour: the built-in ones (hwprofiles/prices/prices.json), each with its
// source and date, or those of a user's file.
//
// A file is {"schema": "zeroplan.prices/1", "currency": "USD", "prices": [ENTRY, ...]}, an entry
//
//   {"hw": "h100-80gb-sxm", "on_demand": 3.99, "spot": 2.1, "rented_by": "gpu",
//    "date": "2026-11-09", "source": "https://..."}
//
// `hw` is a card or a machine, in --hw's spelling. Prices are those of one GPU for one hour, also
// for a machine that is rented as a whole ("rented_by": "node"). docs/machines.md has the rest.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"

namespace zeroplan {

// The price of one GPU for an hour.
struct GpuHourPrice {
  double amount = 0;        // for one GPU and hour, in `currency`
  std::string currency;     // "USD"
  std::string date;         // "2026-05" or "2026-05-31"; never empty
  std::string source;       // the publisher of the price; never empty
  bool whole_node = false;  // only whole nodes are rented: all GPUs of a node are paid for

  bool operator==(const GpuHourPrice&) const = default;
};

// Unset: unknown.
struct MachinePrices {
  std::optional<GpuHourPrice> on_demand, spot;

  bool operator==(const MachinePrices&) const = default;
};

class PriceBook {
 public:
  static const PriceBook& BuiltIn();
  // Reads a file in that format. An entry without date or source gets the file's day and path.
  // Throws Error(kUsage) that names file, line, key, value and fix: for another schema, unknown
  // keys and machines, values of a wrong type, a price that no GPU has (0 or less, over 1000
  // dollars), and a second price of a kind for one machine.
  static PriceBook Read(const std::string& file);

  // The prices of the machine by the profile's name ("p4d-24xlarge"), or else of its card in any
  // machine. A machine with an entry uses nothing of its card's entry: if its cloud's spot price is
  // unknown, another cloud's spot price is no substitute.
  MachinePrices Of(const HardwareProfile& profile) const;
  // The prices of a card, by GpuProfile::name, in any machine.
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
