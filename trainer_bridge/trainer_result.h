// What the C interface gives back: named columns over memory of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer_bridge/job_messages.h"
#include "trainer_bridge/messages.h"
#include "trainer_bridge/trainer_c_api.h"
#include "trainer_bridge/trainer_client.h"
#include "trainer_bridge/trainer_session.h"

struct rollcast_result {
 public:
  template <class T>
  void Set(const std::string& name, std::vector<T> values) {
    columns_[name] = std::move(values);
  }
  void Set(const std::string& name, std::string text) { columns_[name] = std::move(text); }
  /// Throws Error when there is none.
  rollcast_column Column(std::string_view name) const;

 private:
  using Values = std::variant<std::string, std::vector<int32_t>, std::vector<int64_t>,
                              std::vector<uint64_t>, std::vector<float>, std::vector<double>>;
  std::map<std::string, Values, std::less<>> columns_;
};

namespace rollcast {

// The columns are those that trainer_c_api.h lists.
rollcast_result ToResult(const Collected& collected);
rollcast_result ToResult(const SyncReport& report);
rollcast_result ToResult(ScoreResult score);
rollcast_result ToResult(const WireManifest& manifest);
rollcast_result ToResult(const JobStats& stats, const std::vector<int>& lost_ranks);
rollcast_result ToResult(const Roles& roles, const TrainerSetup& setup);

}  // namespace rollcast
