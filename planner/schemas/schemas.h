// JSON Schemas (draft 2020-12) of the files that zeroplan reads and writes, for editors. They are
// generated from the lists and calls that its readers and writers use, so that both know the same
// keys.
#pragma once

#include <string>

namespace zeroplan {

// A DeepSpeed config as `config check --strict` accepts it: its keys, the types and ranges of their
// values, and why some have no effect. Only the reader checks rules over several keys (the batch's
// arithmetic). For Hjson, which the reader accepts, a schema checks an editor's interpretation of
// it.
std::string ConfigSchema();

// A hardware profile (hwprofiles/), its parts by name, changed or in full.
std::string ProfileSchema();

// The output of `plan --plan-out` and `plan --format json`.
std::string PlanSchema();

// A line of `train --metrics`, any event.
std::string MetricsSchema();

}  // namespace zeroplan
