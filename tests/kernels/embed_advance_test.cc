// Embed and Advance: what rows are, and how slots move on.
#include <string>
#include <vector>

#include "tests/kernels/op_fixture.h"

namespace rollcast {
namespace {

using EmbedTest = OpTest;
using AdvanceTest = OpTest;

TEST_P(EmbedTest, ResolvesRowsAndReadsTheTable) {
  const int hidden = 19, vocab = 11;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Weight table(*backend, random.Normal(vocab * hidden), {vocab, hidden}, dtype);
    TestSlots slots(*backend, 4, 100, 16);
    slots.last_token().Set({7, 8, 9, 10});
    slots.length().Set({1, 20, 30, 40});
    slots.stopped().Set({0, 0, 1, 0});
    // A chunk of slot 3; a decode row of slot 1; stopped slot 2; padding; rows of no segment.
    const DeviceArray<int32_t> begin(*backend, {0, 3, 4, 5, 6}),
        segment_slot(*backend, {3, 1, 2, -1}), token(*backend, {5, 0, 10, -1, -1, -1, 3, 3}),
        row_position(*backend, {12, 13, 14, 99, 99, 99, 1, 2}), position(*backend, 8, 77),
        slot(*backend, 8, 77);
    RaggedBatch batch;
    batch.num_rows = 8;
    batch.num_segments = 4;
    batch.max_segment_rows = 3;
    batch.segment_begin = begin.data();
    batch.segment_slot = segment_slot.data();
    batch.row_token = token.data();
    batch.row_position = row_position.data();
    batch.position = position.data();
    batch.slot = slot.data();
    const DeviceArray<float> out(*backend, 8 * hidden, kPoison);
    backend->Embed({&batch, &slots.state, table.view, 16, 2.5f, out.data()});
    EXPECT_EQ(position.Get(), (std::vector<int32_t>{12, 13, 14, 19, -1, -1, -1, -1}));
    EXPECT_EQ(slot.Get(), (std::vector<int32_t>{3, 3, 3, 1, -1, -1, -1, -1}));
    std::vector<float> expected(8 * hidden, kPoison);
    const int tokens[] = {5, 0, 10, 8};
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < hidden; ++i)
        expected[r * hidden + i] = table.exact[tokens[r] * hidden + i] * 2.5f;
    EXPECT_TRUE(SameBits(out.Get(), expected)) << Name(dtype);
  }
}

TEST_P(EmbedTest, StoresNewPages) {
  const Weight table(*backend, {1, 2}, {2, 1}, DType::kF32);
  TestSlots slots(*backend, 3, 64, 16);
  const std::vector<int32_t> before(3 * 4, 90);
  slots.page_table().Set(before);
  slots.length().Set({17, 33, 49});
  slots.stopped().Set({0, 1, 0});
  const DeviceArray<int32_t> begin(*backend, {0, 1, 2, 3}), segment_slot(*backend, {2, 1, 0}),
      new_page(*backend, {7, 8, -1}), minus(*backend, 3, -1), position(*backend, 3, 0),
      slot(*backend, 3, 0);
  RaggedBatch batch;
  batch.num_rows = batch.num_segments = 3;
  batch.segment_begin = begin.data();
  batch.segment_slot = segment_slot.data();
  batch.segment_new_page = new_page.data();
  batch.row_token = batch.row_position = minus.data();
  batch.position = position.data();
  batch.slot = slot.data();
  const DeviceArray<float> out(*backend, 3, 0.0f);
  backend->Embed({&batch, &slots.state, table.view, 16, 1.0f, out.data()});
  std::vector<int32_t> after = before;
  after[2 * 4 + 3] = 7;  // slot 2 at position 48; slot 1 has stopped
  EXPECT_EQ(slots.page_table().Get(), after);
}

TEST_P(AdvanceTest, MovesSlotsOn) {
  const int max_context = 32;
  TestSlots slots(*backend, 6, max_context, 16);
  std::vector<SlotSampling> sampling(6, DefaultSampling());
  for (SlotSampling& s : sampling) {
    s.num_stop_ids = 2;
    s.stop_ids[0] = 50;
    s.stop_ids[1] = 60;
  }
  sampling[2].min_length = 11;  // the sequence has 10 tokens: stop ids do not count yet
  sampling[3].max_length = 11;
  sampling[4].num_stop_ids = 1;
  slots.sampling().Set(sampling);
  slots.last_token().Set({1, 2, 3, 4, 5, 6});
  slots.length().Set({10, 10, 10, 10, 10, 10});
  // Row 0 belongs to slot 0 and gives tokens to slots 0 and 5 (a shared prompt); row 6 is inactive.
  TestBatch batch(*backend, {9, 9, 9, 9, 9, -1}, {0, 1, 2, 3, 4, -1});
  batch.SetSamples(*backend, {0, 1, 2, 3, 4, 5, 0, -1, 1}, {0, 1, 2, 3, 4, 0, 5, -1, 1},
                   {-1, -1, -1, -1, -1, -1, -1, -1, 33});
  std::vector<SampleResult> results(9, SampleResult{});
  const int32_t tokens[] = {20, 60, 50, 21, 60, 99, 22, 99, 33};
  for (int i = 0; i < 9; ++i) results[i] = {tokens[i], i != 5 && i != 7, 1, -1.5f * i, -2, -3};
  const DeviceArray<SampleResult> device_results(*backend, results);
  const Buffer mailbox = backend->AllocateHostVisible(20 * sizeof(SampleResult));
  const DeviceArray<int32_t> mailbox_index(*backend, 1, 1);
  backend->Advance({&batch.batch, &slots.state, device_results.data(), mailbox.as<SampleResult>(),
                    10, mailbox_index.data()});
  backend->Record()->Wait();

  EXPECT_EQ(slots.last_token().Get(), (std::vector<int32_t>{20, 60, 50, 21, 60, 22}));
  EXPECT_EQ(slots.length().Get(), std::vector<int32_t>(6, 11));
  EXPECT_EQ(slots.stopped().Get(), (std::vector<int32_t>{0, 1, 0, 1, 0, 0}));
  const std::vector<int32_t> history = slots.history().Get();
  for (int s = 0; s < 6; ++s) {
    EXPECT_EQ(history[s * max_context + 10], slots.last_token().Get()[s]);
    EXPECT_EQ(history[s * max_context + 9], 0);
    EXPECT_EQ(history[s * max_context + 11], 0);
  }
  const int stopped[] = {0, 1, 0, 1, 0, 0, 0, 0, 0};
  const std::vector<SampleResult> after = device_results.Get();
  for (int i = 0; i < 9; ++i) {
    const SampleResult& m = mailbox.as<SampleResult>()[10 + i];
    EXPECT_EQ(m.token, results[i].token);
    EXPECT_EQ(m.valid, results[i].valid);
    EXPECT_EQ(m.logprob, results[i].logprob);
    EXPECT_EQ(m.stopped, stopped[i]) << i;
    EXPECT_EQ(after[i].stopped, stopped[i]) << i;
  }
}

// The last token of a full context has no place in the history; the next slot's must stay whole.
TEST_P(AdvanceTest, FullContextDoesNotRunIntoTheNextSlot) {
  const int max_context = 8;
  TestSlots slots(*backend, 2, max_context, 4);
  slots.length().Set({max_context, 3});
  slots.history().Set(std::vector<int32_t>(2 * max_context, 6));
  SlotSampling sampling = DefaultSampling();
  sampling.max_length = max_context + 1;
  slots.sampling().Set({sampling, sampling});
  TestBatch batch(*backend, {max_context - 1}, {0});
  batch.SetSamples(*backend, {0}, {0}, {-1});
  const DeviceArray<SampleResult> results(*backend, 1, SampleResult{5, 1, 0, -1, -1, -1});
  const Buffer mailbox = backend->AllocateHostVisible(sizeof(SampleResult));
  backend->Advance(
      {&batch.batch, &slots.state, results.data(), mailbox.as<SampleResult>(), 1, nullptr});
  backend->Record()->Wait();
  EXPECT_EQ(slots.history().Get(), std::vector<int32_t>(2 * max_context, 6));
  EXPECT_EQ(slots.last_token().Get(), (std::vector<int32_t>{5, 0}));
  EXPECT_EQ(slots.length().Get(), (std::vector<int32_t>{max_context + 1, 3}));
  EXPECT_EQ(slots.stopped().Get(), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(mailbox.as<SampleResult>()[0].token, 5);
}

RC_FOR_ALL_DEVICES(EmbedTest);
RC_FOR_ALL_DEVICES(AdvanceTest);

}  // namespace
}  // namespace rollcast
