// The two ends of a step: Embed resolves what every row is, Advance moves the slots on.
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"

namespace rollcast::cpu {

void Embed(CpuContext& context, const EmbedArgs& args) {
  const RaggedBatch& batch = *args.batch;
  const SlotState& slots = *args.slots;
  const int64_t vocab = args.table.shape[0], hidden = args.table.shape[1];
  const auto token_of = [&](int row, int slot) {
    return batch.row_token[row] >= 0 ? batch.row_token[row] : slots.last_token[slot];
  };
  std::fill(batch.position, batch.position + batch.num_rows, -1);
  std::fill(batch.slot, batch.slot + batch.num_rows, -1);
  for (int i = 0; i < batch.num_segments; ++i) {
    const int slot = batch.segment_slot[i];
    if (slot < 0) continue;
    RC_CHECK_LT(slot, slots.num_slots, "segment ", i);
    if (slots.stopped[slot]) continue;
    RC_CHECK(batch.segment_begin[i + 1] <= batch.num_rows, "segment ", i);
    const int32_t new_page = batch.segment_new_page == nullptr ? -1 : batch.segment_new_page[i];
    for (int row = batch.segment_begin[i]; row < batch.segment_begin[i + 1]; ++row) {
      const int position =
          batch.row_token[row] >= 0 ? batch.row_position[row] : slots.length[slot] - 1;
      RC_CHECK(position >= 0 && position < slots.max_context, "position ", position, " of row ",
               row, ", context ", slots.max_context);
      RC_CHECK(token_of(row, slot) >= 0 && token_of(row, slot) < vocab, "token ",
               token_of(row, slot), " of row ", row, ", vocabulary ", vocab);
      batch.position[row] = position;
      batch.slot[row] = slot;
      if (new_page < 0) continue;
      RC_CHECK(args.page_size > 0 && position / args.page_size < slots.max_pages, "position ",
               position, " page size ", args.page_size);
      slots.page_table[static_cast<int64_t>(slot) * slots.max_pages + position / args.page_size] =
          new_page;
    }
  }
  const WeightType type = TypeOf(args.table);
  const int64_t row_bytes = hidden * static_cast<int64_t>(SizeOf(args.table.dtype));
  for (int row : ActiveRows(context, batch))
    context.isa.convert(args.table.as<uint8_t>() + token_of(row, batch.slot[row]) * row_bytes, type,
                        static_cast<int>(hidden), args.scale, args.hidden + row * hidden);
}

void Advance(CpuContext&, const AdvanceArgs& args) {
  const RaggedBatch& batch = *args.batch;
  const SlotState& slots = *args.slots;
  const int64_t half =
      args.mailbox_index == nullptr ? 0 : int64_t{*args.mailbox_index} * args.mailbox_stride;
  for (int i = 0; i < batch.num_samples; ++i) {
    SampleResult& result = args.result[i];
    result.stopped = 0;
    if (result.valid && batch.sample_forced[i] < 0) {
      const int slot = batch.sample_slot[i];
      const int length = batch.position[batch.sample_row[i]] + 1;  // before this token
      const SlotSampling& sampling = slots.sampling[slot];
      slots.last_token[slot] = result.token;
      slots.length[slot] = length + 1;
      if (length < slots.max_context)
        slots.history[static_cast<int64_t>(slot) * slots.max_context + length] = result.token;
      const int32_t* stop_end = sampling.stop_ids + sampling.num_stop_ids;
      const bool stop_id = length >= sampling.min_length &&
                           std::find(sampling.stop_ids, stop_end, result.token) != stop_end;
      if (stop_id || length + 1 >= sampling.max_length) {
        result.stopped = 1;
        slots.stopped[slot] = 1;
      }
    }
    args.mailbox[half + i] = result;
  }
}

}  // namespace rollcast::cpu
