// The request that results from options and a log.
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
  // The reason why the log's config or model config cannot be read as JSON; "": they can, or there
  // are none.
  std::string unreadable;
  bool hardware_known = false;
  bool gpu_unknown = false;  // a host failed, and the memory of its GPUs is unknown
};

// The GPU memory that a process may use according to a failure's message: all except what other
// processes use. Unset: the message lacks it.
std::optional<uint64_t> UsableOf(const OomMessage& gpu);

// Sets a field as an option does. False: the field is unknown, or does not accept the text.
bool SetField(Request& request, const std::string& field, const std::string& text);

MergedRequest MergeLog(const WhyRequest& request, const RunLog& log);

}  // namespace zeroplan
