#include "trainer_bridge/device_choice.h"

#include <charconv>
#include <map>
#include <utility>

namespace rollcast {

namespace {

/// N of "cuda:N", or -1.
int DeviceNumber(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) return -1;
  int number = -1;
  const char* end = device.data() + device.size();
  const auto result = std::from_chars(device.data() + kPrefix.size(), end, number);
  return result.ec == std::errc() && result.ptr == end ? number : -1;
}

/// Where the device was asked for.
std::string Setting(const RankInfo& info) {
  return StrCat(info.role == Role::kTrainer ? "the trainer's device" : "kernels.device", " = \"",
                info.device, "\"");
}

std::string Where(size_t rank, const RankInfo& info) {
  return StrCat("rank ", rank, " (", Name(info.role), " on ", info.host, ")");
}

}  // namespace

std::string RankInfo::gpu() const {
  const int number = DeviceNumber(device);
  return number < 0 ? std::string() : gpus.at(static_cast<size_t>(number));
}

void AssignDevices(std::vector<RankInfo>& ranks) {
  bool trained = false;
  for (const RankInfo& info : ranks) trained |= info.role == Role::kTrainer;
  std::map<std::string, size_t> workers;  // that have a device by their place, by host
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    RankInfo& info = ranks[rank];
    const size_t count = info.gpus.size();
    if (info.device == "cpu") continue;
    const bool by_place = info.device == "auto" || info.device == "cuda";
    if (by_place && count > 0) {
      size_t place = 0;
      if (info.role == Role::kWorker) {
        place = workers[info.host]++ % count;
        if (trained) place = count - 1 - place;
      }
      info.device = StrCat("cuda:", place);
    } else if (info.device == "auto") {
      info.device = "cpu";
    } else if (by_place) {
      throw Error(StrCat(Setting(info), ": ", Where(rank, info), " sees no GPU"));
    } else if (const int number = DeviceNumber(info.device); number < 0) {
      throw Error(
          StrCat(Setting(info), " of ", Where(rank, info), ": expected auto, cpu, cuda or cuda:N"));
    } else if (static_cast<size_t>(number) >= count) {
      throw Error(StrCat(Setting(info), ": ", Where(rank, info), " sees ", count, " GPUs"));
    }
  }
}

std::string SharedDevices(const Roles& roles) {
  std::map<std::string, std::vector<size_t>> users;  // by GPU
  for (size_t rank = 0; rank < roles.ranks.size(); ++rank)
    if (const std::string gpu = roles.ranks[rank].gpu(); !gpu.empty()) users[gpu].push_back(rank);
  std::string text;
  for (const auto& [gpu, ranks] : users) {
    if (ranks.size() < 2) continue;
    text += text.empty() ? "ranks " : "; ranks ";
    for (size_t i = 0; i < ranks.size(); ++i)
      text += StrCat(i == 0 ? "" : i + 1 < ranks.size() ? ", " : " and ", ranks[i]);
    text += StrCat(" share a GPU (", roles.ranks[ranks[0]].device, " of ",
                   roles.ranks[ranks[0]].host, ")");
  }
  return text;
}

}  // namespace rollcast
