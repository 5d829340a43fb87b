#include "cli/train/packing_choice.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/data/token_dataset.h"

namespace zeroplan {
namespace {

bool PlannedWithBorders(const TrainWork& work) {
  return work.plan && work.plan->lower.document_borders;
}

}  // namespace

void CheckPackingAsked(const TrainCommand& command, const TrainWork& work, Backend backend) {
  const Option<Packing>& asked = command.common.packing;
  const bool planned = PlannedWithBorders(work);
  if (backend == Backend::kCuda && (asked == Packing::kDocuments || planned)) {
    ThrowUsage(
        "--packing: documents{} is not allowed: attention within documents runs on the CPU backend "
        "only so far; on GPUs use off (one document a sequence, padded) or stream{}",
        planned ? fmt::format(" (of {})", command.plan) : "",
        planned ? ", and plan again without it" : "");
  }
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
    if (backend == Backend::kCuda) {
      LogInfo(
          "Packing: off, one conversation a sequence, padded; attention within packed documents "
          "runs on the CPU backend only so far.");
      return Packing::kOff;
    }
    if (work.plan) {
      LogInfo(
          "Packing: off, one conversation a sequence, padded; {} was planned without --packing "
          "documents.",
          command.plan);
      return Packing::kOff;
    }
    LogInfo("Packing: documents, as the data is conversations; --packing off pads each instead.");
    return Packing::kDocuments;
  };
  const Packing packing = settle();
  work.lower.document_borders = packing == Packing::kDocuments;
  return packing;
}

}  // namespace zeroplan
