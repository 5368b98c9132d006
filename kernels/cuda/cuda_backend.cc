#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_raii.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/pinned_ring.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/tensor_maps.h"

namespace rollcast {

namespace cuda {

namespace {

using bf16 = __nv_bfloat16;

void CheckBf16(const TensorView& view, const char* what) {
  RC_CHECK(view.empty() || view.dtype == DType::kBF16, what, " is ", Name(view.dtype),
           "; the CUDA backend wants bfloat16");
}

class CudaGraph : public CapturedGraph {
 public:
  CudaGraph(GraphExec exec, cudaStream_t stream) : exec_(std::move(exec)), stream_(stream) {}
  void Replay() override { RC_CUDA(cudaGraphLaunch(exec_.get(), stream_)); }

 private:
  GraphExec exec_;
  cudaStream_t stream_;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(int device, const BackendOptions& options)
      : device_(device),
        linear_(LinearFamily(), ParseProfile(options.profile), options.linear),
        attention_(AttentionFamily(), ParseProfile(options.profile), options.attention) {
    RC_CUDA(cudaSetDevice(device));
    RC_CUDA(cudaGetDeviceProperties(&properties_, device));
    if (properties_.major < 8)
      throw Error(StrCat("device ", device, " (", properties_.name, ") is sm_", properties_.major,
                         properties_.minor, "; sm_80 or newer is needed"));
    stream_ = MakeStream();
    ring_.emplace();
    const DeviceCode code = CodeOfDevice();
    if (code.wgmma) maps_.emplace();
    pdl_ = code.waits;
  }

  std::string name() const override {
    return StrCat("cuda:", device_, " (", properties_.name, ")");
  }
  std::string device() const override { return StrCat("cuda:", device_); }
  DType kv_dtype() const override { return DType::kBF16; }
  DType activation_dtype() const override { return DType::kBF16; }
  std::optional<DType> weight_dtype() const override { return DType::kBF16; }

  Buffer Allocate(size_t bytes) override { return AllocateDeviceMemory(device_, bytes); }
  Buffer AllocateHostVisible(size_t bytes) override { return AllocatePinnedMemory(device_, bytes); }
  void Upload(void* device, const void* host, size_t bytes) override {
    Use();
    ring_->Upload(device, host, bytes, stream());
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    Use();
    if (bytes > 0) RC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
  }
  void Download(void* host, const void* device, size_t bytes) override {
    Use();
    if (bytes > 0) RC_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream()));
    Synchronize();
  }
  void CopyPages(const KvPages& kv, const int32_t* from, const int32_t* to, int count) override {
    Use();
    std::vector<int2> pairs(count);
    for (int i = 0; i < count; ++i) {
      RC_CHECK(from[i] >= 0 && from[i] < kv.num_pages && to[i] >= 0 && to[i] < kv.num_pages,
               "page ", from[i], " to ", to[i], " of ", kv.num_pages);
      pairs[i] = make_int2(from[i], to[i]);
    }
    Grow(page_pairs_, count * sizeof(int2));
    ring_->Upload(page_pairs_.data(), pairs.data(), count * sizeof(int2), stream());
    LaunchCopyPages(kv, page_pairs_.as<int2>(), count, stream());
  }

  void Reserve(const OpLimits& l) override {
    Use();
    const AttentionAxes axes =
        Axes(l.max_segments, l.num_heads, l.num_kv_heads, l.head_dim, l.max_context);
    // Prompts have no other kernel. Not left to the first of them: Rope comes before.
    if (const std::string why = AttentionFamily().WhyNot(kAttentionWhole, axes); !why.empty())
      throw Error(StrCat("attention: no kernel fits prompts; whole: ", why));
    const size_t rows = std::max(l.max_rows, kSampleBlock), vocab = l.vocab_size;
    Grow(normed_, rows * l.hidden_size * sizeof(bf16));
    Grow(qkv_, static_cast<size_t>(l.max_rows) * (l.num_heads + 2 * l.num_kv_heads) * l.head_dim *
                   sizeof(float));
    ReserveWork(l.max_segments, l.max_context);
    if (attention_.MayTake(kAttentionSplit)) {
      const size_t segments = std::min<size_t>(l.max_segments, SplitSegments(axes));
      ReservePartial(segments * SlicesOf(l.max_context), l.num_heads, l.head_dim);
    }
    Grow(logits_, std::min(kSampleBlock, l.max_samples) * vocab * sizeof(float));
    Grow(slices_, kSampleBlock * ((vocab + kVocabSlice - 1) / kVocabSlice) * sizeof(SliceStats));
    Grow(adjusted_, kSlowCtas * vocab * sizeof(float));
    Zeroed(counts_, kSlowCtas * vocab * sizeof(int32_t));
    Grow(page_pairs_, l.max_samples * sizeof(int2));
    reserved_ = true;
  }

  void Embed(const EmbedArgs& a) override {
    Use();
    CheckBf16(a.table, "the embedding");
    if (!reserved_) ReserveWork(a.batch->num_segments, a.slots->max_context);
    embedded_is_old_ = false;
    LaunchEmbed(a, a.page_size, Work(), pdl_, stream());
  }

  void AttentionInput(const AttentionInputArgs& a) override {
    Use();
    CheckBf16(a.norm, "the norm");
    const int rows = a.batch->num_rows, n = static_cast<int>(a.qkv.shape[0]);
    RC_CHECK_EQ(n, (a.num_heads + 2 * a.num_kv_heads) * a.head_dim);
    Norm(a.hidden, nullptr, rows, a.hidden_size, a.norm, a.rms_eps);
    Grow(qkv_, static_cast<size_t>(rows) * n * sizeof(float));
    LinearParams p = Params(normed_.data(), rows, a.qkv, a.qkv_bias, a.hidden_size);
    p.out = qkv_.as<float>();
    Linear(p, Epilogue::kStore);
    LaunchRope(a, qkv_.as<float>(), embedded_is_old_, pdl_, stream());
  }

  void Attention(const AttentionArgs& a) override {
    Use();
    const AttentionAxes axes = Axes(a.batch->num_segments, a.num_heads, a.kv->num_kv_heads,
                                    a.kv->head_dim, a.slots->max_context);
    const bool decode = a.batch->max_segment_rows == 1;
    const bool split = decode && attention_.Choose(axes) == kAttentionSplit;
    if (split && !reserved_)
      ReservePartial(axes.segments * SlicesOf(axes.max_context), axes.num_heads, axes.head_dim);
    LaunchAttention(a, Work(), {partial_.as<float>(), partial_stats_.as<float2>()},
                    split ? SplitCtas(SmCount()) : 0, pdl_, stream());
    embedded_is_old_ = true;
  }

  void ProjectAdd(const ProjectAddArgs& a) override {
    Use();
    LinearParams p = Params(a.x, a.batch->num_rows, a.weight, a.bias, a.k);
    p.out = a.hidden;
    p.slot = a.batch->slot;
    p.slot_is_old = embedded_is_old_;
    Linear(p, Epilogue::kAdd);
  }

  void MlpInput(const MlpInputArgs& a) override {
    Use();
    Norm(a.hidden, nullptr, a.batch->num_rows, a.hidden_size, a.norm, a.rms_eps);
    LinearParams p =
        Params(normed_.data(), a.batch->num_rows, a.gate_up, a.gate_up_bias, a.hidden_size);
    p.gated = static_cast<bf16*>(a.out);
    p.slot = a.batch->slot;
    p.slot_is_old = embedded_is_old_;
    Linear(p, Epilogue::kGated);
  }

  void HeadSample(const HeadSampleArgs& a) override {
    Use();
    const int vocab = static_cast<int>(a.head.shape[0]);
    Grow(logits_,
         std::min(kSampleBlock, a.batch->num_samples) * static_cast<size_t>(vocab) * sizeof(float));
    Grow(slices_, kSampleBlock * static_cast<size_t>((vocab + kVocabSlice - 1) / kVocabSlice) *
                      sizeof(SliceStats));
    Grow(adjusted_, kSlowCtas * static_cast<size_t>(vocab) * sizeof(float));
    if (counts_.bytes() < kSlowCtas * static_cast<size_t>(vocab) * sizeof(int32_t))
      Zeroed(counts_, kSlowCtas * static_cast<size_t>(vocab) * sizeof(int32_t));
    if (a.hidden_out != nullptr)
      LaunchGatherHidden(a.hidden, a.batch->sample_row, a.batch->num_samples, a.hidden_size,
                         a.hidden_out, pdl_, stream());
    for (int first = 0; first < a.batch->num_samples; first += kSampleBlock) {
      const int count = std::min(kSampleBlock, a.batch->num_samples - first);
      Norm(a.hidden, a.batch->sample_row + first, count, a.hidden_size, a.norm, a.rms_eps);
      LinearParams p = Params(normed_.data(), count, a.head, a.head_bias, a.hidden_size);
      p.out = logits_.as<float>();
      Linear(p, Epilogue::kStore);
      if (a.logits != nullptr)
        RC_CUDA(cudaMemcpyAsync(a.logits + static_cast<size_t>(first) * vocab, logits_.data(),
                                static_cast<size_t>(count) * vocab * sizeof(float),
                                cudaMemcpyDeviceToDevice, stream()));
      LaunchSample(a, logits_.as<float>(), vocab, first, count,
                   {slices_.as<SliceStats>(), adjusted_.as<float>(), counts_.as<int32_t>()}, pdl_,
                   stream());
    }
  }

  void Advance(const AdvanceArgs& a) override {
    Use();
    LaunchAdvance(a, pdl_, stream());
  }

  std::unique_ptr<CapturedGraph> Capture(std::function<void()> step) override {
    Use();
    // Once eagerly, so that everything that loads or allocates on first use has done so.
    step();
    Synchronize();
    capturing_ = true;
    RC_CUDA(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      step();
    } catch (...) {
      cudaStreamEndCapture(stream(), &graph);
      capturing_ = false;
      throw;
    }
    RC_CUDA(cudaStreamEndCapture(stream(), &graph));
    capturing_ = false;
    const Graph owned(graph);
    cudaGraphExec_t exec = nullptr;
    RC_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    return std::make_unique<CudaGraph>(GraphExec(exec), stream());
  }

  std::unique_ptr<Event> Record() override { return RecordEvent(device_, stream()); }
  void Synchronize() override {
    Use();
    RC_CUDA(cudaStreamSynchronize(stream()));
  }

 private:
  cudaStream_t stream() const { return stream_.get(); }
  // The current device belongs to the thread, and any thread may call.
  void Use() const { RC_CUDA(cudaSetDevice(device_)); }

  int SmCount() const { return properties_.multiProcessorCount; }
  AttentionAxes Axes(int segments, int heads, int kv_heads, int head_dim, int context) const {
    return {segments,
            heads,
            kv_heads,
            head_dim,
            context,
            SmCount(),
            static_cast<int>(properties_.sharedMemPerBlockOptin)};
  }
  void ReserveWork(size_t segments, int context) {
    const size_t ctas = SplitCtas(SmCount());  // each reads an item, if only to find it has none
    Grow(items_, std::max(segments * SlicesOf(context), ctas) * sizeof(int4));
    Grow(segments_, segments * sizeof(int2));
    Grow(item_count_, sizeof(int32_t));
  }
  void ReservePartial(size_t items, int heads, int head_dim) {
    Grow(partial_, items * heads * head_dim * sizeof(float));
    Grow(partial_stats_, items * heads * sizeof(float2));
  }

  void Grow(Buffer& buffer, size_t bytes) {
    if (buffer.bytes() >= bytes) return;
    // A graph keeps addresses: what it needs must have been reserved.
    RC_CHECK(!capturing_, "scratch memory grows while a graph is captured");
    Synchronize();
    buffer = Buffer();
    buffer = Allocate(bytes);
  }
  void Zeroed(Buffer& buffer, size_t bytes) {
    Grow(buffer, bytes);
    RC_CUDA(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), stream()));
  }

  AttentionWork Work() const {
    return {items_.as<int4>(), segments_.as<int2>(), item_count_.as<int32_t>(), kAttentionSlice,
            embedded_is_old_};
  }

  void Norm(const float* hidden, const int32_t* rows, int count, int hidden_size,
            const TensorView& norm, float eps) {
    CheckBf16(norm, "the norm");
    Grow(normed_, static_cast<size_t>(count) * hidden_size * sizeof(bf16));
    LaunchNorm(hidden, rows, count, hidden_size, static_cast<const bf16*>(norm.data), eps,
               normed_.as<bf16>(), pdl_, stream());
  }

  LinearParams Params(const void* x, int rows, const TensorView& w, const TensorView& bias,
                      int k) const {
    CheckBf16(w, "a weight");
    CheckBf16(bias, "a bias");
    RC_CHECK_EQ(w.shape[1], k);
    LinearParams p;
    p.x = static_cast<const bf16*>(x);
    p.w = static_cast<const bf16*>(w.data);
    p.bias = static_cast<const bf16*>(bias.data);
    p.rows = rows;
    p.N = static_cast<int>(w.shape[0]);
    p.K = k;
    return p;
  }

  void Linear(const LinearParams& p, Epilogue epilogue) {
    if (p.rows == 0) return;
    const auto aligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 == 0; };
    const LinearAxes axes{p.rows,           p.N, p.K, epilogue, aligned(p.x), aligned(p.w),
                          maps_.has_value()};
    if (linear_.Choose(axes) == kLinearGeneric)
      return LaunchLinearGeneric(p, epilogue, pdl_, stream());
    const LinearTiling tiling = ChooseTiling(p.rows, p.N, p.K, epilogue);
    const CUtensorMap& w = epilogue == Epilogue::kGated
                               ? maps_->GateUp(p.w, p.N / 2, p.K, 4 * tiling.warpgroups)
                               : maps_->Matrix(p.w, p.N, p.K, WeightBox(tiling.warpgroups));
    LaunchLinearWgmma(p, tiling, epilogue, w, maps_->Matrix(p.x, p.rows, p.K, tiling.token_tile),
                      pdl_, stream());
  }

  const int device_;
  const KernelChoice<LinearAxes> linear_;
  const KernelChoice<AttentionAxes> attention_;
  cudaDeviceProp properties_{};
  Stream stream_;
  std::optional<PinnedRing> ring_;
  std::optional<TensorMaps> maps_;
  bool pdl_ = false;
  bool capturing_ = false;
  bool embedded_is_old_ = false;  // AttentionWork::is_old, for the kernels launched next
  bool reserved_ = false;         // scratch is as large as the engine's limits ask for
  Buffer normed_, qkv_, items_, segments_, item_count_, partial_, partial_stats_, logits_, slices_,
      adjusted_, counts_, page_pairs_;
};

}  // namespace

}  // namespace cuda

int CountCudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::unique_ptr<Backend> MakeCudaBackend(const BackendOptions& options) {
  return std::make_unique<cuda::CudaBackend>(
      cuda::ParseDevice(options.device == "auto" ? "cuda" : options.device), options);
}

}  // namespace rollcast
