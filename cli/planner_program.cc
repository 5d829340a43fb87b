// zeroplan-planner: the commands of zeroplan that need no executor, so that they are there before
// it is compiled. The others are there in name only, in the place of their files.
#include "cli/app.h"
#include "cli/hw/hw_measure.h"
#include "core/base/error.h"

namespace zeroplan {
namespace {

void AddAbsent(Command& app, const char* name) {
  app.Add(name, "Not in zeroplan-planner: use zeroplan").Run([name] {
    ThrowUsage("{}: is not in zeroplan-planner, which only plans; use zeroplan, the whole program",
               name);
  });
}

}  // namespace

void RegisterData(Command& app) { AddAbsent(app, "data"); }
void RegisterTrain(Command& app) { AddAbsent(app, "train"); }
void RegisterGenerate(Command& app) { AddAbsent(app, "generate"); }
void RegisterHardwareMeasure(Command& hardware) { AddAbsent(hardware, "measure"); }

}  // namespace zeroplan
