// NCCL, loaded at run time: ranks of another patch version refuse each other, and a trainer brings
// its own (PyTorch's).
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "kernels/check.h"

namespace rollcast::nccl {

// Our own declarations of what is used of nccl.h, which has kept these names, numbers and layouts
// since NCCL 2.18 (seen in the headers of 2.28.9 and 2.32.3).
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
constexpr int kUint8 = 1;  // ncclDataType_t

struct UniqueId {
  char internal[128];
};
using Comm = struct Opaque*;  // ncclComm_t

/// ncclConfig_t as of 2.18. The library takes `size` bytes of it and what came later from its own
/// defaults; INT_MIN and null stand for "not set".
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;  // of this layout
  int blocking = INT_MIN;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int padding = INT_MIN;  // a field of later versions lies here
};

/// 2.28.9 for 22809.
std::string VersionText(int version);

/// One loaded library; never unloaded. Thread-safe as far as NCCL is.
struct Library {
  /// `file`: a path, or a name that the dynamic linker finds. One that this process has loaded
  /// already is taken. Throws Error, saying what to do, when there is none or it is older than
  /// 2.18.
  static std::shared_ptr<const Library> Load(const std::string& file);

  /// Throws Error with NCCL's own words unless `result` is a success or in progress.
  void Check(Result result, const char* call, Comm comm = nullptr) const;
  /// NCCL's words for a failure.
  std::string Explain(Result result, const char* call, Comm comm) const;

  std::string file;  // where it was found
  int version = 0;   // 22809
  Result (*get_version)(int* version) = nullptr;
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank,
                                  Config* config) = nullptr;
  Result (*comm_abort)(Comm comm) = nullptr;
  Result (*comm_get_async_error)(Comm comm, Result* error) = nullptr;
  Result (*broadcast)(const void* send, void* receive, size_t count, int type, int root, Comm comm,
                      void* stream) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  const char* (*get_error_string)(Result result) = nullptr;
  const char* (*get_last_error)(Comm comm) = nullptr;
};

}  // namespace rollcast::nccl
