// A shared library with the C names of NCCL that broadcasts between threads of one process, on host
// memory. A call never blocks: ncclCommGetAsyncError moves things on. Built once a version.
#include "tests/testing/fake_nccl.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

enum Result { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemote = 6, kInProgress = 7 };

struct UniqueId {
  char internal[128];
};

struct Op {
  const void* send;
  void* receive;
  size_t count;
};

struct Clique {
  int ranks = 0;
  std::set<int> joined;
  bool hopeless = false;                // a rank never joins
  std::vector<std::vector<Op>> groups;  // of rank 0, in order
  std::vector<int> taken;               // ranks that have copied each of them
};

struct Injection {
  std::string what;
  int rank;
  int nth;
};

struct World {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by unique id
  std::vector<Injection> injections;
  std::map<int, int> groups;  // launched, by rank
  int live = 0, made = 0;
  int next_id = 1;
};

World& TheWorld() {
  static World world;
  return world;
}

bool Injected(const World& world, const char* what, int rank, int nth) {
  return std::any_of(world.injections.begin(), world.injections.end(), [&](const Injection& i) {
    return i.what == what && i.rank == rank && i.nth == nth;
  });
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool running = false;  // a group
  std::vector<Op> ops;   // of it
  size_t launched = 0;   // groups so far
  bool hang = false, fail = false;
};

namespace {
thread_local int depth = 0;
thread_local std::map<ncclComm*, std::vector<Op>> pending;  // of the group that is open
}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &world.next_id, sizeof world.next_id);
  ++world.next_id;
  return kSuccess;
}

Result ncclCommInitRankConfig(ncclComm** comm, int ranks, UniqueId id, int rank,
                              const void* config) {
  // The layout of ncclConfig_t: size, magic, version, blocking.
  unsigned int magic;
  int blocking;
  std::memcpy(&magic, static_cast<const char*>(config) + 8, 4);
  std::memcpy(&blocking, static_cast<const char*>(config) + 16, 4);
  if (magic != 0xcafebeef || blocking != 0) return kInvalidArgument;
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  auto& clique = world.cliques[std::string(id.internal, sizeof id.internal)];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  if (!clique->joined.insert(rank).second) return kInvalidUsage;  // an id serves once
  clique->ranks = ranks;
  clique->hopeless |= Injected(world, "join", rank, 1);
  *comm = new ncclComm{clique, rank, false, {}, 0, false, false};
  ++world.live;
  ++world.made;
  return kInProgress;
}

Result ncclCommAbort(ncclComm* comm) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  comm->clique->hopeless = true;
  delete comm;
  --world.live;
  return kSuccess;
}

Result ncclCommGetAsyncError(ncclComm* comm, Result* error) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  Clique& clique = *comm->clique;
  *error = kInProgress;
  if (clique.hopeless || clique.joined.size() < static_cast<size_t>(clique.ranks)) return kSuccess;
  *error = kSuccess;
  if (!comm->running) return kSuccess;
  *error = kInProgress;
  if (comm->hang) return kSuccess;
  if (comm->fail) {
    *error = kRemote;
    return kSuccess;
  }
  const size_t at = comm->launched - 1;
  if (comm->rank != 0) {
    if (clique.groups.size() <= at) return kSuccess;  // the root is not there yet
    const std::vector<Op>& sent = clique.groups[at];
    bool same = sent.size() == comm->ops.size();
    for (size_t i = 0; same && i < sent.size(); ++i) same = sent[i].count == comm->ops[i].count;
    if (!same) {
      *error = kInvalidUsage;
      return kSuccess;
    }
    for (size_t i = 0; i < sent.size(); ++i)
      std::memcpy(comm->ops[i].receive, sent[i].send, sent[i].count);
    ++clique.taken[at];
  } else if (clique.taken[at] + 1 < clique.ranks) {
    return kSuccess;
  }
  comm->running = false;
  *error = kSuccess;
  return kSuccess;
}

Result ncclGroupStart() {
  ++depth;
  return kSuccess;
}

Result ncclBroadcast(const void* send, void* receive, size_t count, int type, int root,
                     ncclComm* comm, void*) {
  if (type != 1 || root != 0 || depth != 1) return kInvalidUsage;
  pending[comm].push_back({send, receive, count});
  return kInProgress;
}

Result ncclGroupEnd() {
  if (--depth > 0) return kSuccess;
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  for (auto& [comm, ops] : pending) {
    if (comm->running) return kInvalidUsage;
    comm->running = true;
    comm->ops = std::move(ops);
    ++comm->launched;
    const int nth = ++world.groups[comm->rank];
    comm->hang = Injected(world, "hang", comm->rank, nth);
    comm->fail = Injected(world, "fail", comm->rank, nth);
    if (comm->rank == 0) {
      comm->clique->groups.push_back(comm->ops);
      comm->clique->taken.push_back(0);
    }
  }
  pending.clear();
  return kInProgress;
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemote:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown";
}

const char* ncclGetLastError(ncclComm*) { return "told by the fake"; }

void fakeNcclInject(const char* what, int rank, int nth) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  world.injections.push_back({what, rank, nth});
}

void fakeNcclReset() {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  world.injections.clear();
  world.groups.clear();
  world.made = 0;
}

int fakeNcclLiveComms() {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  return world.live;
}

int fakeNcclCommsMade() {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  return world.made;
}

int fakeNcclGroups(int rank) {
  World& world = TheWorld();
  const std::lock_guard lock(world.mutex);
  return world.groups[rank];
}
}
