/* A trainer in C: what trainer_c_api.h promises to a program that knows nothing else.
 * usage: trainer_probe CONFIG MODEL */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer_bridge/trainer_c_api.h"

#define CHECK(condition)                                                 \
  do {                                                                   \
    if (!(condition)) {                                                  \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
              rollcast_trainer_error());                                 \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

static rollcast_column Column(const rollcast_result* result, const char* name, int32_t dtype) {
  rollcast_column column;
  CHECK(rollcast_result_column(result, name, &column) == ROLLCAST_OK);
  CHECK(column.dtype == dtype);
  return column;
}

static int Has(const rollcast_result* result, const char* text) {
  const rollcast_column json = Column(result, "json", ROLLCAST_U8);
  char* copy = malloc((size_t)json.count + 1);
  memcpy(copy, json.data, (size_t)json.count);
  copy[json.count] = 0;
  const int found = strstr(copy, text) != NULL;
  if (!found) fprintf(stderr, "%s is not in %s\n", text, copy);
  free(copy);
  return found;
}

static void CheckErrors(const char* config, const char* const* settings) {
  rollcast_trainer* trainer = NULL;
  rollcast_result* result = NULL;
  const char* unknown = "rollout.sead=3";
  CHECK(rollcast_trainer_open(config, settings, 1, NULL, NULL) == ROLLCAST_ERROR);
  CHECK(strcmp(rollcast_trainer_error(), "trainer is NULL") == 0);
  CHECK(rollcast_trainer_open("no.toml", settings, 1, NULL, &trainer) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "no.toml: cannot be opened") != NULL);
  CHECK(rollcast_trainer_open(config, &unknown, 1, NULL, &trainer) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "rollout.seed") != NULL);
  CHECK(rollcast_trainer_stats(NULL, 1, &result) == ROLLCAST_ERROR);
  CHECK(rollcast_trainer_live_version(NULL) == -1);
  CHECK(trainer == NULL && result == NULL);
  rollcast_trainer_close(NULL);
  rollcast_result_free(NULL);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  char model[4096], output[4096];
  snprintf(model, sizeof model, "model.path=%s", argv[2]);
  snprintf(output, sizeof output, "rollout.output=%s/out.h5", argv[2]);
  const char* settings[] = {model, output};
  CheckErrors(argv[1], settings);

  rollcast_trainer* trainer = NULL;
  rollcast_result* result = NULL;
  CHECK(rollcast_trainer_open(argv[1], settings, 2, NULL, &trainer) == ROLLCAST_OK);
  CHECK(rollcast_trainer_describe(trainer, &result) == ROLLCAST_OK);
  CHECK(Has(result, "\"workers\":[1,2]"));
  CHECK(Has(result, "\"group_size\":4"));
  rollcast_column column;
  CHECK(rollcast_result_column(result, "no", &column) == ROLLCAST_ERROR);
  CHECK(strcmp(rollcast_trainer_error(), "the result has no column \"no\"") == 0);
  rollcast_result_free(result);

  /* All that a completion is. */
  CHECK(rollcast_trainer_rollout(trainer, "{\"id\": \"a\", \"tokens\": [10, 11, 12]}", NULL, 60,
                                 &result) == ROLLCAST_OK);
  CHECK(Has(result, "\"groups\":1"));
  CHECK(Has(result, "\"prompt_id\":\"a\""));
  CHECK(Column(result, "reward", ROLLCAST_F64).count == 4);
  const int64_t* lengths = Column(result, "completion_length", ROLLCAST_I64).data;
  const int64_t total = lengths[0] + lengths[1] + lengths[2] + lengths[3];
  CHECK(Column(result, "completion", ROLLCAST_I32).count == total);
  CHECK(Column(result, "logprob", ROLLCAST_F32).count == total);
  CHECK(Column(result, "policy_version", ROLLCAST_I64).count == total);
  CHECK(Column(result, "hidden", ROLLCAST_F32).count == 0);
  CHECK(Column(result, "prompt", ROLLCAST_I32).count == 12);

  int32_t tokens[64] = {10, 11, 12};
  const int32_t* completion = Column(result, "completion", ROLLCAST_I32).data;
  memcpy(tokens + 3, completion, (size_t)lengths[0] * sizeof *tokens);
  rollcast_result* score = NULL;
  CHECK(rollcast_trainer_score(trainer, tokens, 3 + lengths[0], 0, 60, &score) == ROLLCAST_OK);
  CHECK(Column(score, "logprob_raw", ROLLCAST_F32).count == 2 + lengths[0]);
  const float* scored = Column(score, "logprob_raw", ROLLCAST_F32).data;
  const float* recorded = Column(result, "logprob_raw", ROLLCAST_F32).data;
  CHECK(memcmp(scored + 2, recorded, (size_t)lengths[0] * sizeof *scored) == 0);
  CHECK(Column(score, "logits", ROLLCAST_F32).count == 0);
  rollcast_result_free(score);
  rollcast_result_free(result);

  /* An update of one tensor, from the caller's memory and from a copy. */
  float ones[64];
  for (int i = 0; i < 64; ++i) ones[i] = 1;
  const int64_t right[] = {64}, wrong[] = {8, 8};
  rollcast_tensor norm = {"model.norm.weight", ones, wrong, 2, ROLLCAST_F32};
  rollcast_update update = {0};
  update.version = -1;
  update.partial = 1;
  CHECK(rollcast_trainer_publish(trainer, &norm, 1, &update, &result) == ROLLCAST_ERROR);
  CHECK(strcmp(rollcast_trainer_error(), "tensor model.norm.weight: shape [8, 8], expected [64]") ==
        0);
  norm.shape = right;
  norm.rank = 1;
  rollcast_tensor copy;
  CHECK(rollcast_trainer_pack(trainer, &norm, &copy) == ROLLCAST_OK);
  CHECK(copy.dtype == ROLLCAST_BF16 && copy.data != norm.data && copy.name == norm.name);
  CHECK(((const uint16_t*)copy.data)[63] == 0x3f80);
  CHECK(rollcast_trainer_publish(trainer, &copy, 1, &update, &result) == ROLLCAST_OK);
  CHECK(Has(result, "\"committed\":true"));
  CHECK(rollcast_trainer_live_version(trainer) == 1);
  rollcast_result_free(result);

  /* What no submission and no duration can be; the job goes on. */
  rollcast_draw draw = {0};
  draw.group_size = 1000000000;
  const char* prompt = "{\"tokens\": [10]}";
  CHECK(rollcast_trainer_submit(trainer, prompt, &draw, &result) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "must be at least 1 and at most 4096") != NULL);
  CHECK(rollcast_trainer_rollout(trainer, prompt, NULL, NAN, &result) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "the timeout of Rollout is nan s") != NULL);
  update.deadline_s = -1;
  CHECK(rollcast_trainer_publish(trainer, &copy, 1, &update, &result) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "the deadline of an update is -1 s") != NULL);
  update.deadline_s = 0;
  update.drain_limit_s = NAN;
  CHECK(rollcast_trainer_publish(trainer, &copy, 1, &update, &result) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "the drain limit of an update is nan s") != NULL);
  CHECK(rollcast_trainer_live_version(trainer) == 1);

  /* What is pending can be ended: every completion comes back all the same. */
  CHECK(rollcast_trainer_cancel(trainer, NAN, &result) == ROLLCAST_ERROR);
  CHECK(strstr(rollcast_trainer_error(), "the timeout of Cancel is nan s") != NULL);
  CHECK(rollcast_trainer_submit(trainer, prompt, NULL, &result) == ROLLCAST_OK);
  rollcast_result_free(result);
  CHECK(rollcast_trainer_cancel(trainer, 60, &result) == ROLLCAST_OK);
  CHECK(rollcast_result_column(result, "reward", &column) == ROLLCAST_OK);
  CHECK(column.count == 4);
  rollcast_result_free(result);
  CHECK(rollcast_trainer_cancel(trainer, 60, &result) == ROLLCAST_OK);
  CHECK(rollcast_result_column(result, "reward", &column) == ROLLCAST_OK);
  CHECK(column.count == 0);
  rollcast_result_free(result);
  CHECK(rollcast_trainer_finish(trainer, 60) == ROLLCAST_OK);
  CHECK(rollcast_trainer_stats(trainer, 1, &result) == ROLLCAST_ERROR);
  CHECK(strcmp(rollcast_trainer_error(), "the job has been finished") == 0);
  rollcast_trainer_close(trainer);
  puts("the probe has ended well");
  return 0;
}
