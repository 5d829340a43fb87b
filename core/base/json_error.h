// What nlohmann::json says of an error, for messages of ours.
#pragma once

#include <string_view>

namespace zeroplan {

// `what` of an exception without the name and number in brackets that it begins with.
inline std::string_view JsonErrorText(std::string_view what) {
  const size_t end = what.find("] ");
  return what.starts_with("[json.exception") && end != std::string_view::npos ? what.substr(end + 2)
                                                                              : what;
}

}  // namespace zeroplan
