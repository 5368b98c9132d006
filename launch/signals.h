// SIGINT and SIGTERM as a flag that commands look at, so that files are closed properly.
#pragma once

namespace rollcast {

/// From now on the first SIGINT or SIGTERM only sets the flag; a second one ends the process.
/// SIGPIPE is ignored: a peer or a child that is gone shows as a failed write.
void CatchSignals();
/// The signal that has asked for an end; 0 when none has. Any thread.
int StopSignal();
/// "SIGINT" or "SIGTERM".
const char* SignalName(int signal);

}  // namespace rollcast
