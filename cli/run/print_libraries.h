// zeroplan-executor --print-libraries, which zeroplan doctor runs.
#pragma once

namespace zeroplan {

// Prints LibraryFacts as JSON. Returns the exit code.
int PrintLibraries();

}  // namespace zeroplan
