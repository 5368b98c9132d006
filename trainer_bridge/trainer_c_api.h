/* The trainer's side of a job in C: librollcast_trainer.so. The Python package
 * trainer_bridge/python/rollcast calls exactly this.
 *
 * Functions that can fail return ROLLCAST_OK or another status; rollcast_trainer_error() then has
 * the words that the C++ interface (trainer_bridge/trainer_client.h) throws. No exception crosses
 * this interface. Text is UTF-8 and ends with a zero byte. What a function is given is read before
 * it returns, unless it says otherwise. Seconds are finite, above 0 and at most 1e9. Once the job
 * is over every call fails with the reason, whatever it is given.
 *
 * Thread rule: any thread may call; calls on one trainer wait for each other, except
 * rollcast_trainer_fail, rollcast_trainer_live_version and rollcast_trainer_error, which never
 * wait. While no call is in progress a thread of the library keeps the job alive, so the trainer
 * may compute for as long as it likes. */
#ifndef ROLLCAST_TRAINER_BRIDGE_TRAINER_C_API_H_
#define ROLLCAST_TRAINER_BRIDGE_TRAINER_C_API_H_

#include <stdint.h>

#define ROLLCAST_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum {
  ROLLCAST_OK = 0,
  ROLLCAST_ERROR = 1, /* input or the world around is at fault, and the text says how */
  ROLLCAST_BUG = 2    /* rollcast is at fault */
};

/* Element types; the first seven have the numbers of DType in kernels/tensor.h. */
enum {
  ROLLCAST_F32 = 0,
  ROLLCAST_F16 = 1,
  ROLLCAST_BF16 = 2,
  ROLLCAST_I32 = 3,
  ROLLCAST_I64 = 4,
  ROLLCAST_U64 = 5,
  ROLLCAST_U8 = 6,
  ROLLCAST_F64 = 7
};

typedef struct rollcast_trainer rollcast_trainer;
/* What a call has given: named columns. Freed by rollcast_result_free. */
typedef struct rollcast_result rollcast_result;

typedef struct {
  const void* data; /* valid as long as the result */
  int64_t count;    /* elements */
  int32_t dtype;
} rollcast_column;

/* A whole tensor, contiguous and row-major. */
typedef struct {
  const char* name; /* as Hugging Face names it */
  const void* data;
  const int64_t* shape; /* [rank] */
  int32_t rank;
  int32_t dtype; /* ROLLCAST_F32, ROLLCAST_F16 or ROLLCAST_BF16 */
} rollcast_tensor;

/* How the completions of one submission are drawn. All zero: as the configuration says. */
typedef struct {
  int32_t group_size;   /* completions of a prompt, at most 4096; 0: rollout.group_size */
  const char* sampling; /* JSON object of keys of [sampling], over the configuration; may be NULL */
  const uint64_t* seed; /* NULL: a function of rollout.seed and how many submissions came before */
  const char* in_flight; /* what updates do to these completions; NULL: what each update says */
  int32_t want_hidden;   /* keep the last hidden states */
} rollcast_draw;

/* All zero but version = -1: a whole update as [sync] of the configuration says. */
typedef struct {
  int64_t version;       /* < 0: live + 1 */
  const char* mode;      /* "staged", "in_place"; NULL: sync.mode */
  const char* in_flight; /* "keep", "recompute", "drain", "abort"; NULL: sync.in_flight */
  int32_t partial;       /* not every tensor of the manifest is given */
  int32_t num_names;     /* partial: exactly names[0..num_names) must be given; 0 = what is given */
  const char* const* names;
  double deadline_s;    /* of the whole update; 0: sync.deadline_s */
  double drain_limit_s; /* 0: sync.drain_limit_s */
} rollcast_update;

/* The version of rollcast that the library is of. */
ROLLCAST_API const char* rollcast_trainer_version(void);
/* Of the last call on this thread that failed. Valid until the next one fails. */
ROLLCAST_API const char* rollcast_trainer_error(void);

/* Joins the job that mpirun has started, as its trainer: initialises MPI where the process has not
 * done it (MPI_THREAD_MULTIPLE; a process that has needs MPI_THREAD_SERIALIZED at least), reads the
 * configuration file `config` with `settings` ("table.key=value") over it, as `rollcast worker -c
 * config --set ...` does, and waits until all ranks have agreed on the settings that a job shares.
 * The ranks may still be loading their weights then; the first call that needs them waits. One
 * process joins one job. `device`: where most of the tensors that it publishes lie, "cpu" (or NULL)
 * or "cuda:N"; sync.transport = "auto" goes by that. */
ROLLCAST_API int rollcast_trainer_open(const char* config, const char* const* settings,
                                       int32_t num_settings, const char* device,
                                       rollcast_trainer** trainer);

/* Column "json": {"config": {table: {key: value}}, "rank", "size", "workers": [ranks], "hosts":
 * [of each rank], "device_memory": tensors on a GPU may be published from where they are}. */
ROLLCAST_API int rollcast_trainer_describe(rollcast_trainer* trainer, rollcast_result** result);

/* `prompts`: one JSON object a line, as in a prompt file: {"text"} or {"tokens"} or {"messages"},
 * "id" (default: the line number), "answer", "sampling" (over that of `draw`), "metadata" (for
 * scorers). Column "group_id", u64 [prompts]. Never waits for the ranks to work. */
ROLLCAST_API int rollcast_trainer_submit(rollcast_trainer* trainer, const char* prompts,
                                         const rollcast_draw* draw, rollcast_result** result);

/* Waits for `groups` whole groups; fewer come back after `timeout_s` seconds (0: what is there) or
 * when no more are pending. Columns, with R trajectories in all and flat arrays over their tokens:
 *   "json"               {"groups", "pending_groups", "live", "trajectories": [R objects of
 *                        "prompt_id", "group_id", "sample_index", "group_size", "attempt", "rank",
 *                        "seed", "temperature", "text", "outcome", "finish_reason", "message",
 *                        "live_version_at_return", "mixed_kv"]}
 *   "reward"             f64 [R], NaN where there is none
 *   "prompt_length", "completion_length", "filtered_length", "hidden_length"   i64 [R], elements
 *   "prompt"             i32, token ids
 *   "completion"         i32, token ids
 *   "logprob"            f32, of each completion token under softmax(logits / temperature)
 *   "logprob_raw"        f32, the same at temperature 1
 *   "logprob_filtered"   f32, under what was drawn from, where a filter or penalty was on
 *   "policy_version"     i64, that drew each completion token
 *   "hidden"             f32, [completion, hidden_size] of each, where it was asked for */
ROLLCAST_API int rollcast_trainer_collect(rollcast_trainer* trainer, int32_t groups,
                                          double timeout_s, rollcast_result** result);

/* Ends what is pending and returns it, as rollcast_trainer_collect does: completions that had been
 * finished as they are, the others with outcome "aborted" and the tokens that there are. What is
 * not there after `timeout_s` seconds stays pending. */
ROLLCAST_API int rollcast_trainer_cancel(rollcast_trainer* trainer, double timeout_s,
                                         rollcast_result** result);

/* Ends the wait of a rollcast_trainer_collect, _cancel or _rollout in another thread, at once: it
 * returns as at its timeout, what is pending stays so, and other calls have their turn. _cancel
 * does that itself first. Never waits; without such a call it does nothing. */
ROLLCAST_API int rollcast_trainer_interrupt(rollcast_trainer* trainer);

/* Submit and collect at once: every completion of `prompts`, in their order. Nothing else may be
 * pending. An error at `timeout_s`: groups that were done by then are in the trajectory file alone,
 * the others go on and stay pending, for rollcast_trainer_collect or rollcast_trainer_cancel. */
ROLLCAST_API int rollcast_trainer_rollout(rollcast_trainer* trainer, const char* prompts,
                                          const rollcast_draw* draw, double timeout_s,
                                          rollcast_result** result);

/* One weight update. Fails, naming the tensor, when the tensors do not fit the model, before
 * anything is sent. Otherwise column "json" is the report: {"committed", "error", "version",
 * "mode", "transport", "digest" (hexadecimal), "bytes", "total_s", "announce_s", "transfer_s",
 * "verify_s", "commit_s", "pause_s", "sequences_kept", "sequences_recomputed",
 * "sequences_aborted"}; an update that is not committed says in "error" why. The tensors'
 * memory must stay mapped until the trainer is closed when there is an error, because a late rank
 * may still be reading it. */
ROLLCAST_API int rollcast_trainer_publish(rollcast_trainer* trainer, const rollcast_tensor* tensors,
                                          int64_t num_tensors, const rollcast_update* update,
                                          rollcast_result** result);

/* Copies one tensor (in host memory) into memory of the trainer's, in the dtype that the ranks hold
 * it in, and gives in `copy` the tensor to publish in its place; the original may then go. `copy`
 * has the name and shape pointers of `tensor`. A further call for the same name writes to the same
 * memory, which is kept until the trainer is closed: as much as the ranks' tensors of these names
 * take. Fails as rollcast_trainer_publish does. One thread at a time, and not during a publish. */
ROLLCAST_API int rollcast_trainer_pack(rollcast_trainer* trainer, const rollcast_tensor* tensor,
                                       rollcast_tensor* copy);

/* Log-probabilities of tokens[1..count) under the live policy at temperature 1. Columns
 * "logprob_raw", f32 [count - 1]; "logits", f32 [count, vocab] when `want_logits`; "json"
 * {"version"}. */
ROLLCAST_API int rollcast_trainer_score(rollcast_trainer* trainer, const int32_t* tokens,
                                        int64_t count, int32_t want_logits, double timeout_s,
                                        rollcast_result** result);

/* Column "json": {"version", "digest" (hexadecimal), "tensors": [{"name", "dtype", "shape"}],
 * "aliases": {name: the tensor it stands for}}. */
ROLLCAST_API int rollcast_trainer_manifest(rollcast_trainer* trainer, double timeout_s,
                                           rollcast_result** result);

/* Column "json": JobStats of trainer_bridge/job_messages.h, and "lost_ranks". */
ROLLCAST_API int rollcast_trainer_stats(rollcast_trainer* trainer, double timeout_s,
                                        rollcast_result** result);

/* The version that the last update or reply has shown to be live. */
ROLLCAST_API int64_t rollcast_trainer_live_version(const rollcast_trainer* trainer);

/* Ends the job well: the trajectory file is complete when it returns, and the ranks exit with 0. */
ROLLCAST_API int rollcast_trainer_finish(rollcast_trainer* trainer, double timeout_s);

/* Ends the job badly: every rank exits with a non-zero status and says `why`; a call in progress
 * fails with it. Does not wait. */
ROLLCAST_API int rollcast_trainer_fail(rollcast_trainer* trainer, const char* why);

/* Frees the trainer; one that has not been finished fails first. No call may be in progress. NULL
 * is fine. */
ROLLCAST_API void rollcast_trainer_close(rollcast_trainer* trainer);

/* Fails when the result has no column of this name. */
ROLLCAST_API int rollcast_result_column(const rollcast_result* result, const char* name,
                                        rollcast_column* column);
/* NULL is fine. */
ROLLCAST_API void rollcast_result_free(rollcast_result* result);

#ifdef __cplusplus
}
#endif

#endif /* ROLLCAST_TRAINER_BRIDGE_TRAINER_C_API_H_ */
