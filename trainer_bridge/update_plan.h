// A trainer's tensors fitted to the ranks' manifest.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "trainer_bridge/device_set.h"
#include "trainer_bridge/messages.h"
#include "trainer_bridge/weight_transport.h"

namespace rollcast {

/// A tensor of the trainer under its Hugging Face name, whole, contiguous and row-major, in the
/// memory of the host or of a device.
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;
};

/// What an update carries, in manifest order.
struct UpdatePlan {
  std::vector<uint32_t> carried;      // indices into the manifest's entries, ascending
  std::vector<SourceTensor> sources;  // one a carried entry
  int64_t bytes = 0;                  // on the wire, to one rank
};

/// `partial`: false = every entry of the manifest must be given. `names`: with partial, exactly
/// these tensors must be given; empty = whatever is given. An alias (lm_head.weight of a tied
/// model) stands for its target; when both are given they must be equal. Throws Error naming the
/// tensor: unknown, missing, twice, wrong shape or dtype, null data, a finite value that its new
/// dtype cannot hold. Waits for the work of this process on the devices that the tensors lie on, so
/// that they are complete, and leaves these devices in `devices`.
UpdatePlan MakeUpdatePlan(const WireManifest& manifest, bool partial,
                          std::span<const std::string> names, std::span<const NamedTensor> tensors,
                          DeviceSet& devices);

}  // namespace rollcast
