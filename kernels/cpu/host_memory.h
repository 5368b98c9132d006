// Memory and work of the host, where all work is done when a call returns.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/buffer.h"

namespace rollcast {

/// 256-byte aligned, uninitialised; huge pages where large. Throws Error when there is too little.
Buffer AllocateHostMemory(size_t bytes);

/// memcpy that leaves the caches alone where the processor can: a copy far larger than they are
/// otherwise reads all of its destination, too.
void StreamCopy(void* to, const void* from, size_t bytes);

/// Of work that has been done already.
std::unique_ptr<Event> MakeDoneEvent();

}  // namespace rollcast
