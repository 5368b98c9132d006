// What the tests tell the NCCL of fake_nccl.cc; look the functions up in the loaded library.
#pragma once

extern "C" {

/// What goes wrong from here until fakeNcclReset. `rank` is that of the communicator, `nth` counts
/// its groups over all communicators since the last reset, from 1:
///   "join"  it never joins, so nobody's initialisation ends (nth = 1)
///   "hang"  its nth group never ends
///   "fail"  its nth group ends with a remote error
void fakeNcclInject(const char* what, int rank, int nth);
void fakeNcclReset();
/// Communicators that have been made and not been aborted.
int fakeNcclLiveComms();
/// Communicators that have been made since the last reset.
int fakeNcclCommsMade();
/// Groups that have been launched by rank `rank` since the last reset.
int fakeNcclGroups(int rank);
}
