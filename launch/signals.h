// SIGINT and SIGTERM as a flag that commands look at, so that files are closed properly.
#pragma once

#include <cstdint>

#include "kernels/check.h"

namespace rollcast {

/// Thrown where a signal has asked for an end: "stopped by SIGINT".
class Stopped : public Error {
 public:
  explicit Stopped(int signal);
};

/// Who sends a second signal. A user means it, a quarter of a second after the first or later.
/// mpirun sends one for each reason to end that it finds (its own signal, then a rank that has
/// gone), a moment after the first, and kills for good itself.
enum class SecondSignal : uint8_t { kEndsProcess, kIsIgnored };

/// From now on the first SIGINT or SIGTERM only sets the flag, for an orderly end. SIGPIPE is
/// ignored: a peer or a child that is gone shows as a failed write.
void CatchSignals(SecondSignal second = SecondSignal::kEndsProcess);
/// The signal that has asked for an end; 0 when none has. Any thread.
int StopSignal();
/// "SIGINT" or "SIGTERM".
const char* SignalName(int signal);

}  // namespace rollcast
