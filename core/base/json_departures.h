// Finds where a text that ParseJsonText accepts departs from JSON (RFC 8259).
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

// Each departure as "SOURCE:LINE:COLUMN: ..."; columns count bytes from 1. "" for none.
struct JsonDepartures {
  // The first missing comma between members or elements, in a text that is JSON apart from comments
  // and superfluous commas: most likely a slip.
  std::string broken;
  // The first departure of any kind: Hjson but not JSON.
  std::string hjson;
};

// Throws the errors of ParseJsonText.
JsonDepartures FindJsonDepartures(std::string_view text, std::string_view source);

}  // namespace zeroplan
