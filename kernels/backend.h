// The seam between the engine and a device: memory, the seven ops of a decoder layer, and capture.
//
// Words used here: a *slot* is the device-side place of one running sequence (its length, its row
// of the page table, its sampling constants); a *row* is one token of a forward pass; a *sample* is
// a row whose next-token distribution is wanted. Sizes are counted in elements unless a name ends
// in _bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/buffer.h"
#include "kernels/tensor.h"

namespace rollcast {

constexpr int kMaxStopIds = 16;

/// Sampling constants of one slot; plain data, uploaded when a sequence is given the slot.
struct SlotSampling {
  float temperature;         // 0 = greedy
  float top_p;               // 1 = off
  float min_p;               // 0 = off
  float repetition_penalty;  // 1 = off; over prompt and output tokens
  float frequency_penalty;   // 0 = off; over output tokens
  float presence_penalty;    // 0 = off; over output tokens
  int32_t top_k;             // 0 = off
  int32_t prompt_length;     // tokens before the first drawn one
  int32_t min_length;        // stop ids are masked while the sequence is shorter than this
  int32_t max_length;        // the slot stops when the sequence has this many tokens
  int32_t num_stop_ids;
  int32_t stop_ids[kMaxStopIds];
  uint64_t seed;

  constexpr bool HasPenalty() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

/// Device state of all slots; every pointer is fixed for the life of the engine.
struct SlotState {
  int num_slots = 0;
  int max_pages = 0;                 // pages a sequence may have
  int max_context = 0;               // tokens a sequence may have
  int32_t* last_token = nullptr;     // [num_slots] sampled, its KV not written yet
  int32_t* length = nullptr;         // [num_slots] tokens of the sequence including last_token
  int32_t* stopped = nullptr;        // [num_slots] 1 = finished; such a slot writes nowhere
  int32_t* page_table = nullptr;     // [num_slots, max_pages] page numbers
  int32_t* history = nullptr;        // [num_slots, max_context] all tokens, prompt first
  SlotSampling* sampling = nullptr;  // [num_slots]
};

/// Paged KV of all layers: layer l, page p, kv head h, offset o, element d of K is at
/// k[(((l * num_pages + p) * num_kv_heads + h) * page_size + o) * head_dim + d]; V likewise. So
/// what one head reads of a page is contiguous.
struct KvPages {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF32;
  int num_layers = 0;
  int num_pages = 0;
  int page_size = 0;  // tokens
  int num_kv_heads = 0;
  int head_dim = 0;
};

/// One ragged forward pass: `num_segments` sequences, each with the rows
/// [segment_begin[i], segment_begin[i+1]). A prefill chunk is a segment of many rows, a decode row
/// a segment of one. All arrays are device memory at fixed addresses.
struct RaggedBatch {
  int num_rows = 0;                        // including padding
  int num_segments = 0;                    // including padding
  int max_segment_rows = 1;                // rows of the longest segment; 1 = pure decode
  const int32_t* segment_begin = nullptr;  // [num_segments + 1]
  const int32_t* segment_slot = nullptr;   // [num_segments] -1 = padding
  // A decode segment that needs a fresh page: Embed stores it in the slot's page table at the row's
  // position.
  const int32_t* segment_new_page = nullptr;  // [num_segments] -1 = none; null = none anywhere
  const int32_t* row_token = nullptr;     // [num_rows] >= 0: this token; -1: the slot's last_token
  const int32_t* row_position = nullptr;  // [num_rows] absolute; ignored where row_token is -1
                                          // (then the position is the slot's length - 1)
  // Written by Embed, read by the ops after it:
  int32_t* position =
      nullptr;              // [num_rows] -1 = inactive: padding or a stopped slot; writes nowhere
  int32_t* slot = nullptr;  // [num_rows] -1 = inactive

  int num_samples = 0;  // including padding
  const int32_t* sample_row =
      nullptr;  // [num_samples] several samples may share a row; -1 = padding
  const int32_t* sample_slot = nullptr;    // [num_samples] the slot that the token is drawn for
  const int32_t* sample_forced = nullptr;  // [num_samples] -1: draw; >= 0: score this token instead
};

/// What a step reports of one sample. Log-probabilities are natural logarithms; DESIGN
/// "Log-probabilities".
struct SampleResult {
  int32_t token;    // drawn or forced
  int32_t valid;    // 0 = the row was inactive (the slot had stopped before); nothing else is meant
  int32_t stopped;  // 1 = the slot stopped with this token (a stop id, or max_length)
  float logprob;    // under softmax(logits / temperature); greedy: as raw
  float logprob_raw;       // under softmax(logits)
  float logprob_filtered;  // under the distribution drawn from, penalties and filters included
};

struct EmbedArgs {
  const RaggedBatch* batch;
  const SlotState* slots;
  TensorView table;   // [vocab, hidden]
  int page_size = 0;  // of the KV pages; only read where there are new pages
  float scale = 1.0f;
  float* hidden;  // [num_rows, hidden] out
};

struct RopeTable {
  const float* cos = nullptr;  // [max_context, rotary_dim / 2]
  const float* sin = nullptr;
  int rotary_dim = 0;  // even; 0 = this layer has no rope. Pairs are (i, i + rotary_dim / 2)
};

struct AttentionInputArgs {
  const RaggedBatch* batch;
  const SlotState* slots;
  const KvPages* kv;
  int layer;
  const float* hidden;  // [num_rows, hidden_size]
  int hidden_size;
  int num_heads, num_kv_heads, head_dim;
  TensorView norm;  // [hidden_size]
  float rms_eps;
  TensorView
      qkv;  // [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]: q rows, k rows, v rows
  TensorView qkv_bias;  // same rows, or empty
  TensorView q_norm;    // [head_dim] or empty
  TensorView k_norm;
  RopeTable rope;
  void* q;  // [num_rows, num_heads * head_dim] out, of activation_dtype()
};

struct AttentionArgs {
  const RaggedBatch* batch;
  const SlotState* slots;
  const KvPages* kv;
  int layer;
  int num_heads;
  float scale;
  int window;     // keys a query may see, itself included; 0 = all
  const void* q;  // [num_rows, num_heads * head_dim] of activation_dtype()
  void* out;      // same shape and type
};

struct ProjectAddArgs {
  const RaggedBatch* batch;
  const void* x;  // [num_rows, k] of activation_dtype()
  int k;
  TensorView weight;  // [n, k]
  TensorView bias;    // [n] or empty
  float* hidden;      // [num_rows, n], added to
};

struct MlpInputArgs {
  const RaggedBatch* batch;
  const float* hidden;  // [num_rows, hidden_size]
  int hidden_size;
  TensorView norm;  // [hidden_size]
  float rms_eps;
  TensorView gate_up;       // [2 * intermediate, hidden_size]: gate rows, then up rows
  TensorView gate_up_bias;  // [2 * intermediate] or empty
  int intermediate;
  void* out;  // [num_rows, intermediate] silu(gate) * up, of activation_dtype()
};

struct HeadSampleArgs {
  const RaggedBatch* batch;
  const SlotState* slots;
  const float* hidden;  // [num_rows, hidden_size]
  int hidden_size;
  TensorView norm;  // [hidden_size]
  float rms_eps;
  TensorView head;       // [vocab, hidden_size]
  TensorView head_bias;  // [vocab] or empty
  SampleResult* result;  // [num_samples] out; `stopped` is set by Advance
  // Both mean nothing where a sample is not valid; null = not stored.
  float* logits = nullptr;      // [num_samples, vocab] out, before penalties and temperature
  float* hidden_out = nullptr;  // [num_samples, hidden_size] out, before the final norm
};

struct AdvanceArgs {
  const RaggedBatch* batch;
  const SlotState* slots;
  SampleResult* result;  // [num_samples] in device memory; `stopped` is written
  // Host-visible copy of the results, complete when the step's event is: two halves of
  // mailbox_stride results, so that the host may read one step while the next one runs.
  // *mailbox_index (device memory) picks the half.
  SampleResult* mailbox;
  int mailbox_stride;
  const int32_t* mailbox_index;  // null: the first half
};

/// The largest sizes that ops will be called with.
struct OpLimits {
  int max_rows = 0, max_segments = 0, max_samples = 0;
  int hidden_size = 0, intermediate_size = 0, vocab_size = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int num_pages = 0, page_size = 0, max_context = 0;
};

/// Replays one recorded step. Thread-compatible.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  virtual void Replay() = 0;
};

/// A point in a backend's stream of work.
class Event {
 public:
  virtual ~Event() = default;
  /// Blocks until all work enqueued before the record has finished. Throws what that work threw.
  virtual void Wait() = 0;
  /// True when Wait would not block; never blocks.
  virtual bool Ready() = 0;
};

/// One device. Ops are enqueued in stream order and read and write device memory only; a CPU
/// backend runs them at once. Precondition violations throw CheckFailure before anything is
/// enqueued. Not thread-safe: the engine calls it under its scheduler mutex.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// "cpu", "cuda:0": as MakeDeviceTransfer takes it.
  virtual std::string device() const = 0;
  /// The dtype in which KV pages are kept.
  virtual DType kv_dtype() const = 0;
  /// The dtype of what passes between the ops of a layer, but for the hidden state, which is
  /// float32.
  virtual DType activation_dtype() const = 0;
  /// The dtype in which weights must be kept; empty: as the checkpoint has them.
  virtual std::optional<DType> weight_dtype() const { return std::nullopt; }

  /// Uninitialised device memory, 256-byte aligned. Throws Error when there is too little.
  virtual Buffer Allocate(size_t bytes) = 0;
  /// Host memory that the device can write and the host reads without a copy.
  virtual Buffer AllocateHostVisible(size_t bytes) = 0;
  /// Copies in stream order. `src` of Upload may be reused as soon as the call returns.
  virtual void Upload(void* device, const void* host, size_t bytes) = 0;
  /// Either side may also be host-visible memory.
  virtual void Copy(void* device_dst, const void* device_src, size_t bytes) = 0;
  /// Blocks until the bytes are on the host.
  virtual void Download(void* host, const void* device, size_t bytes) = 0;
  /// Copies whole KV pages of every layer, `from[i]` to `to[i]` (host arrays), in any order: no
  /// page may be both read and written.
  virtual void CopyPages(const KvPages& kv, const int32_t* from, const int32_t* to, int count) = 0;

  /// Called once, before the first op and any capture: allocates all scratch memory that ops within
  /// `limits` need.
  virtual void Reserve(const OpLimits& limits) = 0;
  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void AttentionInput(const AttentionInputArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void ProjectAdd(const ProjectAddArgs& args) = 0;
  virtual void MlpInput(const MlpInputArgs& args) = 0;
  virtual void HeadSample(const HeadSampleArgs& args) = 0;
  virtual void Advance(const AdvanceArgs& args) = 0;

  /// Records what `step` enqueues, for replay with the same arguments. A backend may first run it
  /// once, so no row of the batch may be active. The CPU backend stores `step` and calls it on
  /// replay.
  virtual std::unique_ptr<CapturedGraph> Capture(std::function<void()> step) = 0;
  virtual std::unique_ptr<Event> Record() = 0;
  virtual void Synchronize() = 0;
};

struct BackendOptions {
  std::string device = "auto";  // "auto", "cpu", "cuda", "cuda:1"
  int threads = 0;              // CPU threads for one op; 0 = all cores
  std::string isa = "auto";     // CPU instruction set: "auto", "plain", "avx2", "avx512"
  // Which kernels ops take (kernels/dispatch.h): a profile, or one by name; "auto" = by the
  // profile.
  std::string profile = "invariant";  // "invariant", "fastest", "reference"
  std::string linear = "auto";        // products
  std::string attention = "auto";     // of decode steps
};

/// Throws Error when the device, the instruction set or a kernel is not there.
std::unique_ptr<Backend> MakeBackend(const BackendOptions& options);

bool BuildHasCuda();
/// Whether the options mean a CUDA device: they name one, or say "auto" where there is one. Throws
/// Error for any other device than "cpu".
bool TakesCuda(const BackendOptions& options);

}  // namespace rollcast
