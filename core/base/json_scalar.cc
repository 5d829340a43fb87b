#include "core/base/json_scalar.h"

#include <nlohmann/json.hpp>

namespace zeroplan {

std::string JsonScalar::Dump() const {
  const nlohmann::json json =
      std::visit([](const auto& value) { return nlohmann::json(value); }, value_);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<JsonScalar> ParseJsonScalar(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  switch (json.type()) {
    case nlohmann::json::value_t::null:
      return JsonScalar();
    case nlohmann::json::value_t::boolean:
      return JsonScalar(JsonScalar::Value(json.get<bool>()));
    case nlohmann::json::value_t::number_integer:
      return JsonScalar(JsonScalar::Value(json.get<int64_t>()));
    case nlohmann::json::value_t::number_unsigned:
      return JsonScalar(JsonScalar::Value(json.get<uint64_t>()));
    case nlohmann::json::value_t::number_float:
      return JsonScalar(JsonScalar::Value(json.get<double>()));
    case nlohmann::json::value_t::string:
      return JsonScalar(json.get<std::string>());
    default:
      return std::nullopt;
  }
}

}  // namespace zeroplan
