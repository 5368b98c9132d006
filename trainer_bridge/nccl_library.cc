#include "trainer_bridge/nccl_library.h"

#include <dlfcn.h>

namespace rollcast::nccl {

namespace {

constexpr int kOldest = 21800;  // non-blocking communicators with a stable ncclConfig_t

template <class Function>
void Find(void* handle, const std::string& file, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(handle, name));
  if (function == nullptr)
    throw Error(StrCat("NCCL: ", file, " has no function ", name,
                       "; set sync.nccl_library to an NCCL of at least ", VersionText(kOldest)));
}

}  // namespace

std::string VersionText(int version) {
  return StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::shared_ptr<const Library> Library::Load(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    throw Error(StrCat("NCCL: ", file, " cannot be loaded: ", why == nullptr ? "?" : why,
                       "; install NCCL, set sync.nccl_library to its file (libnccl.so.2), or set "
                       "sync.transport to mpi"));
  }
  auto library = std::make_shared<Library>();
  library->file = file;
  Find(handle, file, "ncclGetVersion", library->get_version);
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(library->get_version), &info) != 0 &&
      info.dli_fname != nullptr)
    library->file = info.dli_fname;
  Find(handle, file, "ncclGetErrorString", library->get_error_string);
  library->Check(library->get_version(&library->version), "ncclGetVersion");
  if (library->version < kOldest)
    throw Error(StrCat("NCCL: ", library->file, " is version ", VersionText(library->version),
                       ", expected at least ", VersionText(kOldest),
                       "; set sync.nccl_library to a newer one"));
  Find(handle, file, "ncclGetLastError", library->get_last_error);
  Find(handle, file, "ncclGetUniqueId", library->get_unique_id);
  Find(handle, file, "ncclCommInitRankConfig", library->comm_init_rank_config);
  Find(handle, file, "ncclCommAbort", library->comm_abort);
  Find(handle, file, "ncclCommGetAsyncError", library->comm_get_async_error);
  Find(handle, file, "ncclBroadcast", library->broadcast);
  Find(handle, file, "ncclGroupStart", library->group_start);
  Find(handle, file, "ncclGroupEnd", library->group_end);
  return library;
}

std::string Library::Explain(Result result, const char* call, Comm comm) const {
  const char* last = get_last_error == nullptr ? nullptr : get_last_error(comm);
  return StrCat(call, ": ", get_error_string(result),
                last == nullptr || *last == '\0' ? "" : StrCat(" (", last, ")"), " [NCCL ",
                VersionText(version), ", ", file, "]");
}

void Library::Check(Result result, const char* call, Comm comm) const {
  if (result != kSuccess && result != kInProgress) throw Error(Explain(result, call, comm));
}

}  // namespace rollcast::nccl
