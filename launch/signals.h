// SIGINT and SIGTERM as a flag that commands look at, so that files are closed properly.
#pragma once

#include "kernels/check.h"

namespace rollcast {

/// Thrown where a signal has asked for an end: "stopped by SIGINT".
class Stopped : public Error {
 public:
  explicit Stopped(int signal);
};

/// From now on the first SIGINT or SIGTERM only sets the flag; a second one ends the process.
/// SIGPIPE is ignored: a peer or a child that is gone shows as a failed write.
void CatchSignals();
/// The signal that has asked for an end; 0 when none has. Any thread.
int StopSignal();
/// "SIGINT" or "SIGTERM".
const char* SignalName(int signal);

}  // namespace rollcast
