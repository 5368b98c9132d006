// MPI in a process that is a user's program, such as a Python script.
#pragma once

#include <chrono>

#include "trainer_bridge/mpi_communicator.h"

namespace rollcast {

/// Initialises MPI or takes over what the program has initialised. MPI is one in a process, so is
/// what this returns, and it lives as long as the process. Throws Error when mpirun has not started
/// the process, on the second call, and when MPI cannot be had.
///
/// A program that ends without LeaveScriptMpi is one whose job has failed, and ends without
/// MPI_Finalize: that would wait for ranks that never come. mpirun then takes any status for a
/// failure.
MpiSession& EnterScriptMpi();

/// After a job that has ended well: ends MPI, so that the ranks, who are doing the same, can exit.
/// Waits for them at most `limit`; when that is over they are left to the end of the program, which
/// then exits with 1. The communicator must be gone.
void LeaveScriptMpi(std::chrono::milliseconds limit);

}  // namespace rollcast
