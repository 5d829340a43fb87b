#include "cli/run/train/packing_choice.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "planner/request/notes.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

bool PlannedWithBorders(const TrainWork& work) {
  return work.plan && work.plan->lower.document_borders;
}

}  // namespace

void CheckPackingAsked(const TrainCommand& command, const TrainWork& work) {
  const Given<Packing>& asked = command.common.packing;
  const bool planned = PlannedWithBorders(work);
  if (!work.plan || !asked || (*asked == Packing::kDocuments) == planned) return;
  ThrowUsage(
      "--packing: {} is not allowed: {} was planned {} --packing documents; leave the option out, "
      "or plan again {} it",
      PackingName(*asked), command.plan, planned ? "with" : "without",
      planned ? "without" : "with");
}

Packing SettlePacking(const TrainCommand& command, Backend backend,
                      std::span<const std::string> data, TrainWork& work) {
  const auto settle = [&] {
    if (command.common.packing) return *command.common.packing;
    if (PlannedWithBorders(work)) return Packing::kDocuments;
    if (!TokenDataset::Open(data).has_mask()) return Packing::kStream;
    if (work.plan) {
      LogInfo(
          "Packing: off, one conversation a sequence, padded; {} was planned without --packing "
          "documents.",
          command.plan);
      return Packing::kOff;
    }
    if (backend == Backend::kCuda) {
      const std::string plain = PlainWithinDocuments(work.model, work.setup, work.hardware.gpu);
      if (!plain.empty()) {
        LogInfo("Packing: off, one conversation a sequence, padded, as {}.", plain);
        return Packing::kOff;
      }
    }
    LogInfo("Packing: documents, as the data is conversations; --packing off pads each instead.");
    return Packing::kDocuments;
  };
  const Packing packing = settle();
  work.lower.document_borders = packing == Packing::kDocuments;
  return packing;
}

}  // namespace zeroplan
