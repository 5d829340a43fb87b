// Where zeroplan keeps what it found out about this machine, so that it need not find out again.
#pragma once

#include <string>

namespace zeroplan {

// $ZEROPLAN_CACHE_DIR, else $XDG_CACHE_HOME/zeroplan, else ~/.cache/zeroplan; empty (keep nothing)
// if none of them is set. The folder need not be there.
std::string CacheFolder();

}  // namespace zeroplan
