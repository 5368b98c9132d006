// Ranks as processes under mpirun.
#pragma once

#include <memory>
#include <string>

#include "trainer_bridge/communicator.h"

namespace rollcast {

/// A failed MPI call: the expression, MPI's own words for the code, and the rank.
class MpiError : public Error {
 public:
  using Error::Error;
};

/// Whose process a session is in.
enum class MpiHost {
  kRollcast,  // nobody else calls MPI: MPI_THREAD_FUNNELED, the constructing thread is the bridge
              // thread
  kScript,    // a user's program, which may call MPI from other threads and may have initialised
              // it: then at least MPI_THREAD_SERIALIZED is needed, and the program ends MPI
};

/// Owner of MPI in this process: initialises it and ends it. At most one in a process. Must outlive
/// its communicator.
class MpiSession {
 public:
  /// True when this process was started by mpirun (or another launcher that Open MPI knows).
  static bool Launched();

  /// Throws MpiError when MPI cannot be had as `host` needs it. It starts when all processes of the
  /// job have come; where that takes longer than `start_limit`, this one says so and exits with 1.
  explicit MpiSession(MpiHost host = MpiHost::kRollcast,
                      std::chrono::duration<double> start_limit = std::chrono::hours(24));
  /// Without a Finalize before, e.g. while an exception unwinds, aborts the whole job with a
  /// non-zero status: no rank is left half alive. This ends the process too, so the exception must
  /// have been logged by then: catch it inside the session's scope.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Over MPI_COMM_WORLD; call once. No collective takes place after this call.
  std::unique_ptr<Communicator> MakeCommunicator(size_t bulk_piece_bytes = kBulkPieceBytes);

  /// Ends MPI together with all other ranks. Beside a dead peer MPI_Finalize may never return:
  /// after `limit` the process exits at once with `exit_status`, or with 1 where that is 0. The
  /// communicator must be gone (or abandoned) and everything worth keeping must be on disk. Does
  /// nothing where the host's program had initialised MPI.
  void Finalize(int exit_status, std::chrono::milliseconds limit = std::chrono::seconds(10));
  /// The same without a limit.
  void Finalize();
  /// Ends this process at once with `status` (not 0) and without MPI_Finalize: for a rank of a job
  /// that has failed. MPI_Finalize there waits for ranks that never come, and leaves mpirun with an
  /// unfinished fence; when it then loses or kills the ranks of that fence, the PMIx 4.2 inside
  /// Open MPI 4.1.4 releases it twice, and mpirun hangs for ever, or crashes, after all its ranks
  /// have ended.
  [[noreturn]] void Leave(int status);
  /// Ends every process of the job with `status`.
  [[noreturn]] void Abort(int status);

 private:
  int rank_ = 0;
  int size_ = 1;
  bool owned_ = true;  // this session has initialised MPI
  bool finalized_ = false;
  std::shared_ptr<void> unfinished_;  // memory of sends that MPI may still read
};

}  // namespace rollcast
