// Prices of GPUs: what is built in says where it is from; files of one's own; their errors.
#include "hwprofiles/prices.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

PriceBook ReadPrices(const TempDir& folder, const std::string& text) {
  std::ofstream(folder.path("prices.json")) << text;
  return PriceBook::Read(folder.path("prices.json"));
}

std::string Listed(const std::string& entries) {
  return R"({"schema": "zeroplan.prices/1", "prices": [)" + entries + "]}";
}

bool LooksLikeDay(const std::string& date) {
  return (date.size() == 7 || date.size() == 10) && date[4] == '-' && date.starts_with("20");
}

TEST_CASE("every built-in price is of a known machine and says whose it is and of when") {
  const nlohmann::json file = nlohmann::json::parse(EmbeddedText("prices", "prices"));
  const std::vector<std::string> names = ProfileNames();
  for (const nlohmann::json& entry : file.at("prices")) {
    const auto name = entry.at("hw").get<std::string>();
    CAPTURE(name);
    // As it stands, not as it may be understood.
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
    CHECK(LooksLikeDay(entry.at("date").get<std::string>()));
    CHECK(entry.at("source").get<std::string>().find("https://") != std::string::npos);
    // No price of a single GPU is one of a node.
    if (entry.value("rented_by", "") == "node") {
      const double gpus = LoadProfile(name).node.gpus.value;
      const bool card = !EmbeddedText("gpus", name).empty();
      CHECK((gpus > 1 || card));
    }
    const MachinePrices prices = PriceBook::BuiltIn().Of(LoadProfile(name));
    for (const char* key : {"on_demand", "spot"}) {
      if (!entry.contains(key)) continue;
      const auto& price = std::string(key) == "spot" ? prices.spot : prices.on_demand;
      REQUIRE(price.has_value());
      CHECK(price->amount == entry.at(key).get<double>());
      CHECK(price->currency == "USD");
      CHECK(price->date == entry.at("date").get<std::string>());
      CHECK(price->source == entry.at("source").get<std::string>());
    }
    if (prices.spot && prices.on_demand) CHECK(prices.spot->amount < prices.on_demand->amount);
  }
  CHECK(PriceBook::BuiltIn().file().empty());
}

TEST_CASE("a machine has its own price, or else that of its card") {
  const PriceBook& book = PriceBook::BuiltIn();
  const MachinePrices card = book.Of(LoadProfile("h100-80gb-sxm"));
  REQUIRE(card.on_demand.has_value());
  CHECK_FALSE(card.on_demand->whole_node);
  CHECK(book.Of(LoadProfile("dgx-h100")) == card);
  CHECK(book.Of(FindProfile("8x h100").profile) == card);
  // In a host that no built-in profile has.
  CHECK(book.Of(FindProfile("8x3090").profile) == book.Of(LoadProfile("rtx3090")));
  // A cloud that rents nodes: the price of one GPU of one, and nothing from elsewhere.
  const MachinePrices aws = book.Of(LoadProfile("p5-48xlarge"));
  REQUIRE(aws.on_demand.has_value());
  CHECK(aws.on_demand->amount == doctest::Approx(55.04 / 8));
  CHECK(aws.on_demand->whole_node);
  CHECK_FALSE(book.Of(LoadProfile("p4d-24xlarge")).spot.has_value());
  // Two entries, of two days.
  const MachinePrices h200 = book.Of(LoadProfile("hgx-h200"));
  REQUIRE(h200.on_demand.has_value());
  REQUIRE(h200.spot.has_value());
  CHECK(h200.on_demand->date != h200.spot->date);
  // No evidence, no price.
  CHECK(book.Of(LoadProfile("rtx3070")) == MachinePrices{});
  HardwareProfile own = LoadProfile("rtx4090");
  own.name = "desk";
  CHECK(book.Of(own) == book.Of(LoadProfile("rtx4090")));
  own.gpu.name = "a card of next year";
  CHECK(book.Of(own) == MachinePrices{});
}

TEST_CASE("a file of one's own names machines as --hw does, and replaces what is built in") {
  const TempDir folder;
  const PriceBook book = ReadPrices(folder, R"({
    "schema": "zeroplan.prices/1",
    "currency": "EUR",
    "prices": [
      {"hw": "RTX 4090", "on_demand": 0.35},
      {"hw": "8xh100", "on_demand": 2.5, "spot": 1.5, "rented_by": "node", "date": "2026-05",
       "source": "our contract"},
    ],
  })");
  CHECK(book.file() == folder.path("prices.json"));
  const MachinePrices desk = book.Of(LoadProfile("2x-rtx4090"));
  REQUIRE(desk.on_demand.has_value());
  CHECK(desk.on_demand->amount == 0.35);
  CHECK(desk.on_demand->currency == "EUR");
  // What it does not say is said of the file.
  CHECK(desk.on_demand->source == book.file());
  CHECK(LooksLikeDay(desk.on_demand->date));
  CHECK_FALSE(desk.spot.has_value());
  const MachinePrices node = book.Of(LoadProfile("dgx-h100"));
  CHECK(node.on_demand == GpuHourPrice{2.5, "EUR", "2026-05", "our contract", true});
  CHECK(node.spot == GpuHourPrice{1.5, "EUR", "2026-05", "our contract", true});
  // That machine's alone, and nothing that is built in.
  CHECK(book.Of(LoadProfile("h100-80gb-sxm")) == MachinePrices{});
  CHECK(book.Of(LoadProfile("l4")) == MachinePrices{});
}

TEST_CASE("a file of one's own may price a profile of one's own") {
  const TempDir folder;
  nlohmann::json profile = nlohmann::json::parse(ProfileText("2x-rtx4090"));
  profile["name"] = "our-box";
  std::ofstream(folder.path("box.json")) << profile;
  const PriceBook book =
      ReadPrices(folder, Listed(R"({"hw": ")" + folder.path("box.json") + R"(", "spot": 0.1})"));
  CHECK(book.Of(LoadProfile(folder.path("box.json"))).spot->amount == 0.1);
  CHECK(book.Of(LoadProfile("2x-rtx4090")) == MachinePrices{});
}

TEST_CASE("what is wrong in a file of prices is named with its place, value and fix") {
  const TempDir folder;
  struct Wrong {
    std::string text;
    std::vector<std::string> said;
  };
  for (const Wrong& wrong : {
           Wrong{R"({"prices": []})", {":1: schema: ", "nothing", "\"zeroplan.prices/1\""}},
           Wrong{R"({"schema": "zeroplan.prices/2"})", {"schema: ", "zeroplan.prices/2"}},
           Wrong{R"({"schema": "zeroplan.prices/1"})", {"prices: ", "nothing", "a list"}},
           Wrong{Listed(""), {"prices: ", "at least one entry"}},
           Wrong{R"({"schema": "zeroplan.prices/1", "currency": "dollars", "prices": []})",
                 {"currency: \"dollars\"", "\"USD\""}},
           Wrong{R"({"schema": "zeroplan.prices/1", "price": []})",
                 {"price: unknown key (did you mean \"prices\"?)", "currency"}},
           Wrong{Listed("3"), {"prices.0: 3 is not allowed", "{...}"}},
           Wrong{Listed(R"({"on_demand": 1})"), {"prices.0.hw: nothing", "hw list"}},
           Wrong{Listed(R"({"hw": "rtx4090"})"), {"prices.0.hw: \"rtx4090\" has no price", "spot"}},
           Wrong{Listed(R"({"hw": "h100-80gb-smx", "spot": 1})"),
                 {"prices.json:1: prices.0.hw: \"h100-80gb-smx\" is no built-in",
                  "did you mean h100-80gb-sxm?"}},
           Wrong{Listed(R"({"hw": "MI300X", "spot": 1})"), {"prices.0.hw: \"MI300X\" is AMD's"}},
           Wrong{Listed(R"({"hw": "./none.json", "spot": 1})"),
                 {"prices.0.hw: cannot read \"./none.json\""}},
           Wrong{Listed(R"({"hw": "l4", "on_demand": 0})"),
                 {"prices.0.on_demand: 0 is not allowed", "one GPU for an hour in USD", "1000"}},
           Wrong{Listed(R"({"hw": "l4", "spot": -1})"), {"prices.0.spot: -1 is not allowed"}},
           Wrong{Listed(R"({"hw": "l4", "on_demand": 21957})"), {"prices.0.on_demand: 21957"}},
           Wrong{Listed(R"({"hw": "l4", "on_demand": "cheap"})"), {"on_demand: \"cheap\""}},
           Wrong{Listed(R"({"hw": "l4", "spot": 1, "rented_by": "rack"})"),
                 {"rented_by: \"rack\"", "\"gpu\" or \"node\""}},
           Wrong{Listed(R"({"hw": "l4", "spot": 1, "date": "May 2026"})"),
                 {"date: \"May 2026\"", "\"2026-05\""}},
           Wrong{Listed(R"({"hw": "l4", "spot": 1, "date": "2026-13"})"), {"date: \"2026-13\""}},
           Wrong{Listed(R"({"hw": "l4", "spot": 1, "source": ""})"), {"source: \"\""}},
           Wrong{Listed(R"({"hw": "l4", "spots": 1})"),
                 {"spots: unknown key (did you mean \"spot\"?)"}},
           Wrong{Listed("{\"hw\": \"rtx4090\", \"spot\": 1},\n{\"hw\": \"4090\", \"spot\": 2}"),
                 {":2: prices.1.spot: rtx4090 has a price before this one"}},
       }) {
    CAPTURE(wrong.text);
    std::string said;
    try {
      ReadPrices(folder, wrong.text);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      said = error.what();
    }
    CHECK(said.find(folder.path("prices.json")) == 0);
    for (const std::string& part : wrong.said) {
      CHECK_MESSAGE(said.find(part) != std::string::npos, said);
    }
  }
  CHECK_THROWS_WITH_AS(PriceBook::Read(folder.path("none.json")), doctest::Contains("none.json"),
                       Error);
  // A dear currency and a spot market above the list price are possible.
  CHECK_NOTHROW(ReadPrices(folder, Listed(R"({"hw": "l4", "on_demand": 1, "spot": 2})")));
  CHECK_NOTHROW(ReadPrices(folder, R"({"schema": "zeroplan.prices/1", "currency": "KRW",
                  "prices": [{"hw": "l4", "on_demand": 1200}]})"));
}

}  // namespace
}  // namespace zeroplan
