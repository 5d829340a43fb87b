// How far a text that ParseJsonText reads, as people write it, is JSON (RFC 8259).
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

// Each as "SOURCE:LINE:COLUMN: ..."; columns count bytes from 1. "" for none.
struct JsonDepartures {
  // The first comma that is left out between members or elements, in a text that is JSON otherwise,
  // comments and commas too many apart: most likely a slip.
  std::string broken;
  // The first of all that is Hjson and not JSON.
  std::string hjson;
};

// Throws as ParseJsonText.
JsonDepartures FindJsonDepartures(std::string_view text, std::string_view source);

}  // namespace zeroplan
