// AttentionInput and Attention: q, k, v with rope, the KV pages, softmax over slices of KV.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace rollcast::cpu {

namespace {

/// Rotates pairs (i, i + rotary_dim / 2) of one head.
void Rotate(const RopeTable& rope, int position, float* x) {
  const int half = rope.rotary_dim / 2;
  const float* cos = rope.cos + static_cast<int64_t>(position) * half;
  const float* sin = rope.sin + static_cast<int64_t>(position) * half;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

int32_t PageOf(const SlotState& slots, const KvPages& kv, int slot, int position) {
  const int index = position / kv.page_size;
  RC_CHECK_LT(index, slots.max_pages, "position ", position);
  const int32_t page = slots.page_table[static_cast<int64_t>(slot) * slots.max_pages + index];
  RC_CHECK(page >= 0 && page < kv.num_pages, "page ", page, " of ", kv.num_pages);
  return page;
}

/// Elements before those of a token in one kv head.
int64_t TokenOffset(const KvPages& kv, int layer, int32_t page, int kv_head, int position) {
  return (((static_cast<int64_t>(layer) * kv.num_pages + page) * kv.num_kv_heads + kv_head) *
              kv.page_size +
          position % kv.page_size) *
         kv.head_dim;
}

void CheckKv(const KvPages& kv, int layer) {
  RC_CHECK(kv.dtype == DType::kF32, "the CPU keeps KV in float32, not ", Name(kv.dtype));
  RC_CHECK(layer >= 0 && layer < kv.num_layers, "layer ", layer, " of ", kv.num_layers);
}

}  // namespace

void AttentionInput(CpuContext& context, const AttentionInputArgs& args) {
  const int hidden = args.hidden_size, dim = args.head_dim;
  const int q_size = args.num_heads * dim, kv_size = args.num_kv_heads * dim;
  const int n = q_size + 2 * kv_size;
  CheckKv(*args.kv, args.layer);
  RC_CHECK_EQ(args.kv->num_kv_heads, args.num_kv_heads);
  RC_CHECK_EQ(args.kv->head_dim, dim);
  RC_CHECK(args.qkv.shape == Shape({n, hidden}), ToString(args.qkv.shape), " against [", n, ", ",
           hidden, "]");
  RC_CHECK_EQ(args.norm.shape.NumElements(), hidden);
  if (!args.qkv_bias.empty()) RC_CHECK_EQ(args.qkv_bias.shape.NumElements(), n);
  if (!args.q_norm.empty()) RC_CHECK_EQ(args.q_norm.shape.NumElements(), dim);
  if (!args.k_norm.empty()) RC_CHECK_EQ(args.k_norm.shape.NumElements(), dim);
  RC_CHECK(args.rope.rotary_dim % 2 == 0 && args.rope.rotary_dim <= dim, "rotary_dim ",
           args.rope.rotary_dim);

  const std::vector<int32_t>& rows = ActiveRows(context, *args.batch);
  const int count = static_cast<int>(rows.size());
  if (count == 0) return;
  for (int32_t row : rows)
    PageOf(*args.slots, *args.kv, args.batch->slot[row], args.batch->position[row]);
  const float* packed =
      PackRows(context, args.hidden, hidden, hidden, rows.data(), count, &args.norm, args.rms_eps);
  float* qkv = context.wide.Get((static_cast<int64_t>(count) + 1) * n);
  float* bias = qkv + static_cast<int64_t>(count) * n;
  LoadBias(context, args.qkv_bias, 0, n, bias);
  for (Scratch& tile : context.tiles) tile.Get(dim + kLanes);

  const int columns = PartColumns(n, count);
  context.pool.ParallelFor((n + columns - 1) / columns, [&](int part, int) {
    const int begin = part * columns, end = std::min(n, begin + columns);
    Product(context, packed, 0, count, hidden, args.qkv, begin, end, qkv + begin, n);
  });

  const auto finish = [&](int i, int thread) {
    const int row = rows[i], position = args.batch->position[row], slot = args.batch->slot[row];
    float* x = qkv + static_cast<int64_t>(i) * n;
    if (!args.qkv_bias.empty())
      for (int j = 0; j < n; ++j) x[j] += bias[j];
    const int num_rotated = args.num_heads + args.num_kv_heads;
    for (int h = 0; h < num_rotated; ++h) {
      float* head = x + h * dim;
      const TensorView& norm = h < args.num_heads ? args.q_norm : args.k_norm;
      if (!norm.empty()) {
        float* normed = context.tiles[thread].Get(0);
        context.isa.rms_norm(head, dim, norm.data, TypeOf(norm), args.rms_eps, normed, kLanes);
        std::memcpy(head, normed, dim * sizeof(float));
      }
      if (args.rope.rotary_dim > 0) Rotate(args.rope, position, head);
    }
    std::memcpy(static_cast<float*>(args.q) + static_cast<int64_t>(row) * q_size, x,
                q_size * sizeof(float));
    const int32_t page = PageOf(*args.slots, *args.kv, slot, position);
    for (int h = 0; h < args.num_kv_heads; ++h) {
      const int64_t at = TokenOffset(*args.kv, args.layer, page, h, position);
      const float* k = x + q_size + h * dim;
      std::memcpy(static_cast<float*>(args.kv->k) + at, k, dim * sizeof(float));
      std::memcpy(static_cast<float*>(args.kv->v) + at, k + kv_size, dim * sizeof(float));
    }
  };
  constexpr int kRowsOfPart = 8;
  context.pool.ParallelFor((count + kRowsOfPart - 1) / kRowsOfPart, [&](int part, int thread) {
    const int end = std::min(count, (part + 1) * kRowsOfPart);
    for (int i = part * kRowsOfPart; i < end; ++i) finish(i, thread);
  });
}

namespace {

/// Queries that are computed together: neighbouring rows of one sequence, and heads that share a kv
/// head. Query (row i, head h) is number i * num_heads + h.
struct QueryBlock {
  int32_t first_row, num_rows;
  int32_t slot, first_position;
  int32_t first_head, num_heads;
  int32_t slice_begin, slice_end;  // slices of KV that some query sees
  int64_t partial = -1;            // where its slices are kept in context.partial; -1 = not cut

  int num_queries() const { return num_rows * num_heads; }
};

/// A piece of work: some slices of one block, or all slices of several. The slices of a block that
/// is cut are kept apart and folded in a second pass, in the same order as otherwise.
struct AttentionPart {
  int32_t block_begin, block_end;
  int32_t slice_begin, slice_end;  // of a block that is cut
};

/// Where the tokens [begin, end) of a slice are, for one kv head.
struct SliceTokens {
  int begin = 0, end = 0;
  const float* k[kAttentionSlice];
  const float* v[kAttentionSlice];
};

/// What one or more slices give for the queries of a block.
struct Partial {
  Partial(float* at, int64_t acc_stride) : max(at), sum(at + kRowBlock), acc(at + 2 * kRowBlock) {
    stride = acc_stride;
  }
  static int64_t Size(int64_t acc_stride) { return kRowBlock * (2 + acc_stride); }

  float* max;
  float* sum;
  float* acc;  // [kRowBlock, stride]
  int64_t stride;
};

class AttentionRun {
 public:
  AttentionRun(CpuContext& context, const AttentionArgs& args)
      : context_(context),
        args_(args),
        kv_(*args.kv),
        group_(args.num_heads / kv_.num_kv_heads),
        stride_((kv_.head_dim + kLanes - 1) / kLanes * kLanes) {}

  void Run() {
    FindBlocks();
    if (blocks_.empty()) return;
    CutBlocks();
    const int64_t tile = kRowBlock * stride_ + 2 * Partial::Size(stride_);
    for (Scratch& scratch : context_.tiles) scratch.Get(tile);
    RunParts(static_cast<int>(parts_.size()),
             [this](int i, int thread) { RunPart(parts_[i], context_.tiles[thread].Get(0)); });
    if (cut_.empty()) return;
    RunParts(static_cast<int>(cut_.size()), [this](int i, int) {
      const QueryBlock& block = blocks_[cut_[i]];
      Partial sum = Kept(block, block.slice_begin);
      for (int s = block.slice_begin + 1; s < block.slice_end; ++s)
        Fold(block, s, sum, Kept(block, s));
      Finish(block, sum);
    });
  }

 private:
  /// ParallelFor of any count.
  template <class Fn>
  void RunParts(int count, const Fn& fn) {
    for (int first = 0; first < count; first += ThreadPool::kMaxParts)
      context_.pool.ParallelFor(std::min(ThreadPool::kMaxParts, count - first),
                                [&](int i, int thread) { fn(first + i, thread); });
  }

  void RunPart(const AttentionPart& part, float* tile) const {
    float* q = tile;
    const Partial sum(tile + kRowBlock * stride_, stride_);
    const Partial next_sum(sum.max + Partial::Size(stride_), stride_);
    SliceTokens tokens[2];
    int now = 0;
    FindTokens(blocks_[part.block_begin], FirstSlice(part, part.block_begin), tokens[now]);
    for (int b = part.block_begin; b < part.block_end; ++b) {
      const QueryBlock& block = blocks_[b];
      PackQueries(block, q);
      const int first = FirstSlice(part, b);
      const int end = block.partial >= 0 ? part.slice_end : block.slice_end;
      for (int s = first; s < end; ++s, now ^= 1) {
        if (s + 1 < end)
          FindTokens(block, s + 1, tokens[now ^ 1]);
        else if (b + 1 < part.block_end)
          FindTokens(blocks_[b + 1], FirstSlice(part, b + 1), tokens[now ^ 1]);
        else
          tokens[now ^ 1].begin = tokens[now ^ 1].end = 0;
        if (block.partial >= 0) {
          Slice(block, s, q, tokens[now], tokens[now ^ 1], Kept(block, s));
        } else if (s == first) {
          Slice(block, s, q, tokens[now], tokens[now ^ 1], sum);
        } else {
          Slice(block, s, q, tokens[now], tokens[now ^ 1], next_sum);
          Fold(block, s, sum, next_sum);
        }
      }
      if (block.partial < 0) Finish(block, sum);
    }
  }

  int FirstSlice(const AttentionPart& part, int block) const {
    return blocks_[block].partial >= 0 ? part.slice_begin : blocks_[block].slice_begin;
  }

  void FindBlocks() {
    const RaggedBatch& batch = *args_.batch;
    const int heads = std::min(group_, kRowBlock), most_rows = kRowBlock / heads;
    const std::vector<int32_t>& rows = ActiveRows(context_, batch);
    for (size_t i = 0; i < rows.size();) {
      const int row = rows[i], slot = batch.slot[row], position = batch.position[row];
      int n = 1;
      while (n < most_rows && i + n < rows.size() && rows[i + n] == row + n &&
             batch.slot[row + n] == slot && batch.position[row + n] == position + n)
        ++n;
      i += n;
      const int last = position + n - 1, first = FirstSeen(position);
      for (int p = first / kv_.page_size; p <= last / kv_.page_size; ++p)
        PageOf(*args_.slots, kv_, slot, p * kv_.page_size);
      for (int kv_head = 0; kv_head < kv_.num_kv_heads; ++kv_head)
        for (int h = 0; h < group_; h += heads)
          blocks_.push_back({row, n, slot, position, kv_head * group_ + h,
                             std::min(heads, group_ - h), first / kAttentionSlice,
                             last / kAttentionSlice + 1});
    }
  }

  /// Makes parts of about the same size: cuts blocks that are long beside the share of a thread,
  /// takes short ones together.
  void CutBlocks() {
    const int threads = context_.pool.num_threads();
    int64_t total = 0;
    for (const QueryBlock& b : blocks_) total += b.slice_end - b.slice_begin;
    const int64_t most = threads == 1 ? total : std::max<int64_t>(1, total / (4 * threads));
    int64_t kept = 0, open = 0;  // slices of the last part; 0 = it takes no more
    for (int i = 0; i < static_cast<int>(blocks_.size()); ++i) {
      QueryBlock& b = blocks_[i];
      const int slices = b.slice_end - b.slice_begin;
      if (slices > most) {
        cut_.push_back(i);
        b.partial = kept;
        kept += slices * Partial::Size(stride_);
        for (int s = b.slice_begin; s < b.slice_end; s += static_cast<int>(most))
          parts_.push_back(
              {i, i + 1, s, static_cast<int32_t>(std::min<int64_t>(b.slice_end, s + most))});
        open = 0;
      } else if (open > 0 && open + slices <= most) {
        parts_.back().block_end = i + 1;
        open += slices;
      } else {
        parts_.push_back({i, i + 1, 0, 0});
        open = slices;
      }
    }
    kept_ = context_.partial.Get(kept);
  }

  Partial Kept(const QueryBlock& block, int slice) const {
    return Partial(kept_ + block.partial + (slice - block.slice_begin) * Partial::Size(stride_),
                   stride_);
  }

  int FirstSeen(int position) const {
    return args_.window > 0 ? std::max(0, position - args_.window + 1) : 0;
  }
  int Begin(const QueryBlock& block, int query, int slice) const {
    const int position = block.first_position + query / block.num_heads;
    return std::clamp(FirstSeen(position) - slice * kAttentionSlice, 0, kAttentionSlice);
  }
  int End(const QueryBlock& block, int query, int slice) const {
    const int position = block.first_position + query / block.num_heads;
    return std::clamp(position + 1 - slice * kAttentionSlice, 0, kAttentionSlice);
  }

  const float* Query(const QueryBlock& block, int query) const {
    const int row = block.first_row + query / block.num_heads;
    const int head = block.first_head + query % block.num_heads;
    return static_cast<const float*>(args_.q) +
           (static_cast<int64_t>(row) * args_.num_heads + head) * kv_.head_dim;
  }

  void PackQueries(const QueryBlock& block, float* out) const {
    const int n = block.num_queries(), dim = kv_.head_dim;
    for (int r = 0; r < n; ++r) {
      const float* q = Query(block, r);
      for (int d = 0; d < dim; d += kLanes) {
        float* to = out + d * n + r * kLanes;
        const int width = std::min(kLanes, dim - d);
        std::memcpy(to, q + d, width * sizeof(float));
        std::fill(to + width, to + kLanes, 0.0f);
      }
    }
  }

  void FindTokens(const QueryBlock& block, int slice, SliceTokens& tokens) const {
    const int base = slice * kAttentionSlice;
    const int last = block.first_position + block.num_rows - 1;
    tokens.begin = std::max(0, FirstSeen(block.first_position) - base);
    tokens.end = std::min(kAttentionSlice, last + 1 - base);
    const int kv_head = block.first_head / group_;
    const int32_t* pages =
        args_.slots->page_table + static_cast<int64_t>(block.slot) * args_.slots->max_pages;
    for (int t = tokens.begin; t < tokens.end;) {
      const int position = base + t, offset = position % kv_.page_size;
      const int64_t at =
          TokenOffset(kv_, args_.layer, pages[position / kv_.page_size], kv_head, position);
      const int count = std::min(kv_.page_size - offset, tokens.end - t);
      for (int i = 0; i < count; ++i, ++t) {
        tokens.k[t] = static_cast<const float*>(kv_.k) + at + i * kv_.head_dim;
        tokens.v[t] = static_cast<const float*>(kv_.v) + at + i * kv_.head_dim;
      }
    }
  }

  void Slice(const QueryBlock& block, int slice, const float* q, const SliceTokens& tokens,
             const SliceTokens& next, const Partial& out) const {
    AttentionSliceArgs a;
    a.q = q;
    a.num_queries = block.num_queries();
    a.head_dim = kv_.head_dim;
    a.scale = args_.scale;
    a.k = tokens.k;
    a.v = tokens.v;
    a.next_k = next.k;
    a.next_begin = next.begin;
    a.next_end = next.end;
    a.max = out.max;
    a.sum = out.sum;
    a.acc = out.acc;
    a.acc_stride = static_cast<int32_t>(stride_);
    for (int r = 0; r < a.num_queries; ++r) {
      a.begin[r] = Begin(block, r, slice);
      a.end[r] = End(block, r, slice);
    }
    context_.isa.attention_slice(a);
  }

  void Fold(const QueryBlock& block, int slice, const Partial& sum, const Partial& next) const {
    for (int r = 0; r < block.num_queries(); ++r) {
      if (Begin(block, r, slice) >= End(block, r, slice)) continue;
      float* acc = sum.acc + r * stride_;
      const float* next_acc = next.acc + r * stride_;
      if (slice == FirstSeen(block.first_position + r / block.num_heads) / kAttentionSlice) {
        sum.max[r] = next.max[r];
        sum.sum[r] = next.sum[r];
        std::memcpy(acc, next_acc, stride_ * sizeof(float));
      } else {
        context_.isa.attention_fold(&sum.max[r], &sum.sum[r], acc, next.max[r], next.sum[r],
                                    next_acc, kv_.head_dim);
      }
    }
  }

  void Finish(const QueryBlock& block, const Partial& sum) const {
    for (int r = 0; r < block.num_queries(); ++r) {
      float* out =
          static_cast<float*>(args_.out) + (Query(block, r) - static_cast<const float*>(args_.q));
      const float* acc = sum.acc + r * stride_;
      for (int d = 0; d < kv_.head_dim; ++d) out[d] = acc[d] / sum.sum[r];
    }
  }

  CpuContext& context_;
  const AttentionArgs& args_;
  const KvPages& kv_;
  const int group_;       // q heads a kv head
  const int64_t stride_;  // head_dim, up to a multiple of kLanes
  std::vector<QueryBlock> blocks_;
  std::vector<AttentionPart> parts_;
  std::vector<int32_t> cut_;
  float* kept_ = nullptr;
};

}  // namespace

void Attention(CpuContext& context, const AttentionArgs& args) {
  CheckKv(*args.kv, args.layer);
  RC_CHECK_EQ(args.num_heads % args.kv->num_kv_heads, 0);
  RC_CHECK_GE(args.window, 0);
  AttentionRun(context, args).Run();
}

}  // namespace rollcast::cpu
