// JSON Schemas (draft 2020-12) of the files that zeroplan reads and writes, for editors: made of
// the lists and calls by which its readers and writers go, so that both know the same keys.
#pragma once

#include <string>

namespace zeroplan {

// A DeepSpeed config as `config check --strict` takes it: its keys, the types and ranges of their
// values, and why some have no effect. What hangs on several keys (the batch's arithmetic) only the
// reader knows. Of Hjson, which the reader takes, a schema sees what an editor makes of it.
std::string ConfigSchema();

// A hardware profile (hwprofiles/), its parts by name, changed or in full.
std::string ProfileSchema();

// What `plan --plan-out` and `plan --format json` write.
std::string PlanSchema();

// A line of `train --metrics`, any event.
std::string MetricsSchema();

}  // namespace zeroplan
