// The request that options and a log come to together.
#pragma once

#include <string>
#include <vector>

#include "planner/why/why.h"

namespace zeroplan {

struct MergedRequest {
  Request common;
  std::vector<UsedFact> used;
  std::vector<std::string> conflicts, assumed;
  std::vector<MissingField> missing;
  // Says why the log's config or model config is no JSON; "": they are, or there are none.
  std::string unreadable;
  bool hardware_known = false;
};

// What a process may take of the GPU that a failure tells of: all but what others have. Unset: it
// does not tell.
std::optional<uint64_t> UsableOf(const OomMessage& gpu);

// Sets a field as an option does. False: there is none of that name, or it does not take the text.
bool SetField(Request& request, const std::string& field, const std::string& text);

MergedRequest MergeLog(const WhyRequest& request, const RunLog& log);

}  // namespace zeroplan
