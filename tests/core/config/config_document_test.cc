#include "core/config/config_document.h"

#include <doctest/doctest.h>

#include <fstream>

#include "core/base/error.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

TEST_CASE("config document: no config sets nothing") {
  const ConfigDocument none;
  CHECK_FALSE(none.given());
  CHECK(none.name().empty());
  CHECK(none.root().is_null());
  CHECK_FALSE(none.Says("zero_optimization"));
}

TEST_CASE("config document: a key counts as set unless it is absent, null or auto") {
  const ConfigDocument config(
      R"({"train_batch_size": "auto", "optimizer": {"params": {"lr": 1e-4, "eps": null}}})", "ds");
  CHECK(config.given());
  CHECK(config.name() == "ds");
  CHECK(config.Says("optimizer.params.lr"));
  CHECK(config.Says("optimizer.params"));
  for (const char* key : {"train_batch_size", "optimizer.params.eps", "optimizer.lr", "zero"}) {
    CAPTURE(key);
    CHECK_FALSE(config.Says(key));
  }
  const ConfigDocument copy = config;
  CHECK(&copy.root() == &config.root());
}

TEST_CASE("config document: a file that changes after it was read changes nothing") {
  const TempDir folder;
  const std::string path = folder.path("ds.json");
  std::ofstream(path) << R"({"zero_optimization": {"stage": 2}})";
  const ConfigDocument config = ConfigDocument::FromFile(path);
  std::ofstream(path) << "{}";
  CHECK(config.name() == path);
  CHECK(config.Says("zero_optimization.stage"));
  CHECK(config.root().Dump() == R"({"zero_optimization":{"stage":2}})");
}

TEST_CASE("config document: what is no JSON is refused with its name and line") {
  const std::string error =
      ErrorOf(ExitCode::kUsage, [] { ConfigDocument("{\n\"a\": }", "log (config, line 3)"); });
  CHECK(Has(error, wording::kLogConfigLine));
}

}  // namespace
}  // namespace zeroplan
