// The NCCL of fake_nccl.cc as a test loads it.
#pragma once

#include <dlfcn.h>

#include "kernels/check.h"
#include "tests/testing/fake_nccl.h"

namespace rollcast::testing {

/// The controls of one built version; clean from the start.
class FakeNccl {
 public:
  explicit FakeNccl(const char* file) : handle_(dlopen(file, RTLD_NOW)) {
    RC_CHECK(handle_ != nullptr, dlerror());
    Reset();
  }
  ~FakeNccl() { Reset(); }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  void Inject(const char* what, int rank, int nth) {
    Find<decltype(fakeNcclInject)>("fakeNcclInject")(what, rank, nth);
  }
  void Reset() { Find<decltype(fakeNcclReset)>("fakeNcclReset")(); }
  int live_comms() { return Find<decltype(fakeNcclLiveComms)>("fakeNcclLiveComms")(); }
  int comms_made() { return Find<decltype(fakeNcclCommsMade)>("fakeNcclCommsMade")(); }
  int groups(int rank) { return Find<decltype(fakeNcclGroups)>("fakeNcclGroups")(rank); }

 private:
  template <class Function>
  Function* Find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  void* const handle_;
};

}  // namespace rollcast::testing
