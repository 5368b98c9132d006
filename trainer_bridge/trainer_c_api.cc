#include "trainer_bridge/trainer_c_api.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "kernels/check.h"
#include "rollout/sampling_fields.h"
#include "trainer_bridge/trainer_handle.h"
#include "trainer_bridge/trainer_result.h"

namespace rollcast {

namespace {

using Seconds = std::chrono::duration<double>;

// For a pack to learn what the ranks hold.
constexpr Seconds kManifestLimit(60);

thread_local std::string last_error;

template <class T>
T& Given(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(StrCat(what, " is NULL"));
  return *pointer;
}

template <class... Args>
void Give(rollcast_result** result, Args&&... args) {
  Given(result, "result") = new rollcast_result(ToResult(std::forward<Args>(args)...));
}

DType WeightDType(const rollcast_tensor& tensor) {
  if (tensor.dtype == ROLLCAST_F32) return DType::kF32;
  if (tensor.dtype == ROLLCAST_F16) return DType::kF16;
  if (tensor.dtype == ROLLCAST_BF16) return DType::kBF16;
  throw Error(StrCat("tensor ", tensor.name, ": dtype ", tensor.dtype,
                     " cannot be published; expected float32, float16 or bfloat16"));
}

NamedTensor ToTensor(const rollcast_tensor& tensor) {
  Given(tensor.name, "the name of a tensor");
  if (tensor.rank < 0 || (tensor.rank > 0 && tensor.shape == nullptr))
    throw Error(StrCat("tensor ", tensor.name, ": no shape"));
  return {tensor.name, WeightDType(tensor),
          Shape::From(tensor.shape, tensor.shape + tensor.rank, StrCat("tensor ", tensor.name)),
          tensor.data};
}

/// What a submission asks for, with the configuration's settings where it says nothing.
struct Draw {
  std::vector<PromptGroup> prompts;
  int group_size = 1;
  SamplingParams sampling;
  bool want_hidden = false;
};

Draw ToDraw(rollcast_trainer& trainer, const char* prompts, const rollcast_draw* given) {
  const TrainerSetup& setup = trainer.session.setup();
  const rollcast_draw draw = given != nullptr ? *given : rollcast_draw{};
  Draw result;
  // A prompt that comes again is to be answered with other draws.
  const MutexLock lock(trainer.submissions_mutex);
  result.sampling = setup.sampling;
  result.sampling.seed = CompletionSeed(setup.seed, /*prompt_id=*/0, trainer.submissions);
  if (draw.sampling != nullptr) OverrideSampling(draw.sampling, /*vocab_size=*/0, result.sampling);
  if (draw.seed != nullptr) result.sampling.seed = *draw.seed;
  result.prompts = setup.read_prompts(&Given(prompts, "prompts"), result.sampling);
  ++trainer.submissions;
  if (draw.in_flight != nullptr)
    for (PromptGroup& group : result.prompts) group.in_flight = ParseInFlightPolicy(draw.in_flight);
  result.group_size = draw.group_size != 0 ? draw.group_size : setup.group_size;
  result.want_hidden = draw.want_hidden != 0;
  return result;
}

UpdateOptions ToOptions(const TrainerSetup& setup, const rollcast_update* given) {
  UpdateOptions options = setup.update;
  if (given == nullptr) return options;
  if (given->version >= 0) options.version = given->version;
  if (given->mode != nullptr) options.mode = ParseUpdateMode(given->mode);
  if (given->in_flight != nullptr) options.in_flight = ParseInFlightPolicy(given->in_flight);
  options.partial = given->partial != 0;
  if (given->num_names > 0) Given(given->names, "names");
  for (int32_t i = 0; i < given->num_names; ++i)
    options.names.emplace_back(&Given(given->names[i], "a name"));
  if (given->deadline_s != 0) options.deadline = Seconds(given->deadline_s);
  if (given->drain_limit_s != 0) options.drain_limit = Seconds(given->drain_limit_s);
  return options;
}

TrainerClient& ClientOf(rollcast_trainer* trainer) {
  return Given(trainer, "trainer").session.client();
}

}  // namespace

int CallFromC(const std::function<void()>& body) noexcept {
  try {
    try {
      body();
      return ROLLCAST_OK;
    } catch (const Error& e) {
      last_error = e.what();
      return ROLLCAST_ERROR;
    } catch (const std::bad_alloc&) {
      last_error = "out of memory";
      return ROLLCAST_ERROR;
    } catch (const std::exception& e) {
      last_error = StrCat("this is a bug in rollcast: ", e.what());
    } catch (...) {
      last_error = "this is a bug in rollcast: an unknown exception";
    }
  } catch (...) {
    last_error.clear();  // no memory for the words either
  }
  return ROLLCAST_BUG;
}

}  // namespace rollcast

using rollcast::CallFromC;

extern "C" {

const char* rollcast_trainer_version(void) { return ROLLCAST_VERSION; }

const char* rollcast_trainer_error(void) { return rollcast::last_error.c_str(); }

int rollcast_trainer_describe(rollcast_trainer* trainer, rollcast_result** result) {
  return CallFromC([&] {
    const rollcast::TrainerSession& session = rollcast::Given(trainer, "trainer").session;
    rollcast::Give(result, session.roles(), session.setup());
  });
}

int rollcast_trainer_submit(rollcast_trainer* trainer, const char* prompts,
                            const rollcast_draw* draw, rollcast_result** result) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    const rollcast::Draw d = rollcast::ToDraw(*trainer, prompts, draw);
    auto ids = std::make_unique<rollcast_result>();
    ids->Set("group_id", client.Submit(d.prompts, d.group_size, d.sampling, d.want_hidden));
    rollcast::Given(result, "result") = ids.release();
  });
}

int rollcast_trainer_collect(rollcast_trainer* trainer, int32_t groups, double timeout_s,
                             rollcast_result** result) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    if (groups < 1)
      throw rollcast::Error(rollcast::StrCat("groups is ", groups, ": must be at least 1"));
    rollcast::Give(result, client.Collect(groups, rollcast::Seconds(timeout_s)));
  });
}

int rollcast_trainer_cancel(rollcast_trainer* trainer, double timeout_s, rollcast_result** result) {
  return CallFromC([&] {
    rollcast::Give(result, rollcast::ClientOf(trainer).Cancel(rollcast::Seconds(timeout_s)));
  });
}

int rollcast_trainer_interrupt(rollcast_trainer* trainer) {
  return CallFromC([&] { rollcast::Given(trainer, "trainer").session.Interrupt(); });
}

int rollcast_trainer_rollout(rollcast_trainer* trainer, const char* prompts,
                             const rollcast_draw* draw, double timeout_s,
                             rollcast_result** result) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    const rollcast::Draw d = rollcast::ToDraw(*trainer, prompts, draw);
    rollcast::Collected collected;
    collected.trajectories = client.Rollout(d.prompts, d.group_size, d.sampling, d.want_hidden,
                                            rollcast::Seconds(timeout_s));
    collected.groups = static_cast<int>(d.prompts.size());
    collected.live = client.LiveVersion();
    rollcast::Give(result, collected);
  });
}

int rollcast_trainer_publish(rollcast_trainer* trainer, const rollcast_tensor* tensors,
                             int64_t num_tensors, const rollcast_update* update,
                             rollcast_result** result) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    const auto options = rollcast::ToOptions(trainer->session.setup(), update);
    if (num_tensors > 0) rollcast::Given(tensors, "tensors");
    std::vector<rollcast::NamedTensor> given;
    for (int64_t i = 0; i < num_tensors; ++i) given.push_back(rollcast::ToTensor(tensors[i]));
    rollcast::Give(result, client.Publish(options, given));
  });
}

int rollcast_trainer_pack(rollcast_trainer* trainer, const rollcast_tensor* tensor,
                          rollcast_tensor* copy) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    const rollcast_tensor& from = rollcast::Given(tensor, "tensor");
    rollcast_tensor& to = rollcast::Given(copy, "copy");
    if (!trainer->manifest.has_value())
      trainer->manifest = client.Manifest(rollcast::kManifestLimit);
    const auto packed = trainer->pack.Add(*trainer->manifest, rollcast::ToTensor(from));
    to = from;
    to.data = packed.data;
    to.dtype = static_cast<int32_t>(packed.dtype);
  });
}

int rollcast_trainer_score(rollcast_trainer* trainer, const int32_t* tokens, int64_t count,
                           int32_t want_logits, double timeout_s, rollcast_result** result) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    if (count < 2)
      throw rollcast::Error(rollcast::StrCat(count, " tokens to score; at least 2 are needed"));
    rollcast::Given(tokens, "tokens");
    rollcast::ScoreResult score =
        client.Score({tokens, tokens + count}, want_logits != 0, rollcast::Seconds(timeout_s));
    if (!score.error.empty()) throw rollcast::Error(score.error);
    rollcast::Give(result, std::move(score));
  });
}

int rollcast_trainer_manifest(rollcast_trainer* trainer, double timeout_s,
                              rollcast_result** result) {
  return CallFromC([&] {
    rollcast::Give(result, rollcast::ClientOf(trainer).Manifest(rollcast::Seconds(timeout_s)));
  });
}

int rollcast_trainer_stats(rollcast_trainer* trainer, double timeout_s, rollcast_result** result) {
  return CallFromC([&] {
    rollcast::TrainerClient& client = rollcast::ClientOf(trainer);
    const rollcast::JobStats stats = client.Stats(rollcast::Seconds(timeout_s));
    rollcast::Give(result, stats, client.LostRanks());
  });
}

int64_t rollcast_trainer_live_version(const rollcast_trainer* trainer) {
  return trainer == nullptr ? -1 : trainer->session.LiveVersion();
}

int rollcast_trainer_finish(rollcast_trainer* trainer, double timeout_s) {
  return CallFromC(
      [&] { rollcast::Given(trainer, "trainer").session.Finish(rollcast::Seconds(timeout_s)); });
}

int rollcast_trainer_fail(rollcast_trainer* trainer, const char* why) {
  return CallFromC(
      [&] { rollcast::Given(trainer, "trainer").session.Fail(&rollcast::Given(why, "why")); });
}

void rollcast_trainer_close(rollcast_trainer* trainer) {
  CallFromC([&] { delete trainer; });
}

int rollcast_result_column(const rollcast_result* result, const char* name,
                           rollcast_column* column) {
  return CallFromC([&] {
    rollcast::Given(column, "column") =
        rollcast::Given(result, "result").Column(&rollcast::Given(name, "name"));
  });
}

void rollcast_result_free(rollcast_result* result) { delete result; }

}  // extern "C"
