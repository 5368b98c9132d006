// How a bulk transfer waits without stopping its rank.
#pragma once

#include "trainer_bridge/communicator.h"

namespace rollcast {

/// Between two looks of a transfer at its peers and its device: calls the service when it is due,
/// pauses when nothing has moved, and tells when the deadline has passed. One thread.
class TransferWait {
 public:
  TransferWait(Deadline deadline, const Service& service)
      : deadline_(deadline), service_(service), next_service_(Clock::now()) {}

  /// `moved`: the last look found something to do. False once the deadline has passed.
  [[nodiscard]] bool Next(bool moved);

 private:
  const Deadline deadline_;
  const Service& service_;
  Clock::time_point next_service_;
};

}  // namespace rollcast
