#include "cli/run/print_libraries.h"

#include "cli/common/output.h"
#include "cli/doctor/facts_json.h"
#include "core/base/version.h"
#include "executor/measure/measure_device.h"

namespace zeroplan {

int PrintLibraries() {
#ifdef ZEROPLAN_WITH_CUDA
  const LibraryFacts facts = QueryLibraries();
#else
  LibraryFacts facts;
  facts.version = kVersion;
#endif
  WriteOutput("", LibrariesAsJson(facts) + "\n");
  return 0;
}

}  // namespace zeroplan
