// Signals that would end a run without a word, or without saving.
#pragma once

namespace zeroplan {

// For the rest of the process. A terminal that goes away (SIGHUP) asks for a stop as SIGTERM does,
// once, however many come; with nohup it does nothing.
void TakeRunSignals();

}  // namespace zeroplan
