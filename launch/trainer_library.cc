// Where the trainer library reads its configuration: the rest of trainer_c_api.h, in the same
// shared library, is in trainer_bridge/.
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launch/config.h"
#include "launch/log.h"
#include "launch/prompts.h"
#include "launch/runtime.h"
#include "trainer_bridge/trainer_c_api.h"
#include "trainer_bridge/trainer_handle.h"

namespace rollcast {

namespace {

std::string ToJson(const Config& config) {
  Config copy = config;
  const FieldList list = ListFields(copy);
  nlohmann::json tables = nlohmann::json::object();
  for (const Field& field : list.fields())
    std::visit(
        [&](const auto* value) {
          tables[std::string(field.table())][std::string(field.name())] = *value;
        },
        field.value);
  return tables.dump();
}

TrainerSetup MakeSetup(const Config& config, const std::string& device) {
  TrainerSetup setup;
  setup.rank = DescribeRank(config, Role::kTrainer, device);
  setup.roles_limit = RolesLimit(config.sync);
  setup.client = ClientOptions(config);
  setup.transport = config.sync.transport;
  setup.nccl_library = config.sync.nccl_library;
  setup.takes_device_memory = !setup.rank.gpus.empty();
  setup.warn = [](const std::string& what) { LogWarn(what); };
  setup.update = UpdateDefaults(config.sync);
  setup.group_size = config.rollout.group_size;
  setup.seed = config.rollout.seed;
  setup.sampling = config.sampling;
  setup.config_json = ToJson(config);
  const auto reader = std::make_shared<PromptReader>(config, /*vocab_size=*/0);
  setup.read_prompts = [reader, settings = config.rollout](const std::string& rows,
                                                           const SamplingParams& sampling) {
    std::istringstream in(rows);
    std::vector<PromptGroup> groups;
    for (const Prompt& prompt : reader->Read(in, "prompts", sampling))
      groups.push_back(ToGroup(prompt, settings));
    return groups;
  };
  return setup;
}

}  // namespace

}  // namespace rollcast

extern "C" int rollcast_trainer_open(const char* config, const char* const* settings,
                                     int32_t num_settings, const char* device,
                                     rollcast_trainer** trainer) {
  return rollcast::CallFromC([&] {
    if (trainer == nullptr) throw rollcast::Error("trainer is NULL");
    std::vector<rollcast::Setting> sets;
    for (int32_t i = 0; i < num_settings; ++i) sets.emplace_back(std::string(settings[i]));
    *trainer = new rollcast_trainer(
        rollcast::MakeSetup(rollcast::LoadConfig(config != nullptr ? config : "", sets),
                            device != nullptr ? device : "cpu"));
  });
}
