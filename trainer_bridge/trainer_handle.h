// What stands behind the handle of trainer_c_api.h. trainer_c_api.cc has the calls; the one that
// makes a handle needs the configuration and is in launch/trainer_library.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "engine/mutex.h"
#include "trainer_bridge/tensor_pack.h"
#include "trainer_bridge/trainer_c_api.h"
#include "trainer_bridge/trainer_session.h"

struct rollcast_trainer {
  explicit rollcast_trainer(rollcast::TrainerSetup setup) : session(std::move(setup)) {}

  // First, so that what is sent from outlives the session.
  rollcast::TensorPack pack;
  rollcast::TrainerSession session;
  std::optional<rollcast::WireManifest> manifest;  // of the ranks, for `pack`
  rollcast::Mutex submissions_mutex;
  uint64_t submissions RC_GUARDED_BY(submissions_mutex) = 0;
};

namespace rollcast {

/// Runs `body` for a function of the C interface: the status, with the words of an exception for
/// rollcast_trainer_error.
int CallFromC(const std::function<void()>& body) noexcept;

}  // namespace rollcast
