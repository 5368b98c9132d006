// Copies of tensors that cannot wait for an update where they are, such as those that a generator
// gathers one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "trainer_bridge/messages.h"
#include "trainer_bridge/update_plan.h"

namespace rollcast {

/// Used from one thread at a time.
class TensorPack {
 public:
  /// `tensor`, cast to the dtype that `manifest` has for it, in memory of the pack. The memory is
  /// the same for every tensor of a name and lives as long as the pack, so no address that was sent
  /// from ever becomes invalid. Throws Error as MakeUpdatePlan does.
  NamedTensor Add(const WireManifest& manifest, const NamedTensor& tensor);

 private:
  std::map<std::string, std::vector<std::byte>> copies_;
};

}  // namespace rollcast
