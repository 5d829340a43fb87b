// The limit of open files, which the connections of a large run exceed.
#pragma once

namespace zeroplan {

// Raises this process's soft limit so that `more` files can be opened besides those that are, up to
// the hard limit. Returns how many more can be: `more` or less.
int RaiseOpenFileLimit(int more);

// The same, and Error(kRuntime) naming `what`, the limit and `ulimit -n` where it does not suffice.
void NeedOpenFiles(int more, const char* what);

}  // namespace zeroplan
