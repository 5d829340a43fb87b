#include "executor/train/run_agreement.h"

#include <sstream>

#include "core/base/error.h"

namespace zeroplan {

void AgreeOnFacts(ProcessGroup& group, const RunFacts& facts) {
  std::string mine;
  for (const auto& [name, value] : facts) mine += value + "\n";
  const std::vector<std::string> all = group.AllGather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    std::istringstream first(all[0]), other(all[rank]);
    for (const auto& [name, value] : facts) {
      std::string of_first, of_other;
      std::getline(first, of_first);
      std::getline(other, of_other);
      if (of_first == of_other) continue;
      ThrowUsage(
          "{}: rank {} has {}, rank 0 {}; give all ranks the same command line, files and "
          "version of zeroplan",
          name, rank, of_other, of_first);
    }
  }
}

}  // namespace zeroplan
