#include "trainer_bridge/weight_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/digest.h"
#include "kernels/float_convert.h"
#include "tests/testing/test_devices.h"
#include "tests/testing/toy_update_target.h"

namespace rollcast {
namespace {

using testing::BytesOf;
using testing::DeviceBytes;
using testing::MakeTensors;
using testing::TensorSet;
using testing::ToyUpdateTarget;

struct Case {
  std::string source, target;  // devices of the trainer's tensors and of the ranks' weights
  size_t piece_bytes;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string& source : testing::TransferDevices())
    for (const std::string& target : testing::TransferDevices())
      for (const size_t piece_bytes : {size_t{64}, size_t{64} << 10})
        cases.push_back({source, target, piece_bytes});
  return cases;
}

/// A trainer (rank 0) and two ranks behind it in the chain, as threads.
class MessageTransportTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kRanks = 2;

  MessageTransportTest() {
    for (int rank = 0; rank <= kRanks; ++rank) {
      group_.push_back(rank);
      targets_.push_back(MakeDeviceTransfer(GetParam().target));
    }
    communicators_ = MakeThreadCommunicators(kRanks + 1, GetParam().piece_bytes);
    const WeightTransportMaker maker = MessageWeightTransport();
    for (int rank = 0; rank <= kRanks; ++rank)
      transports_.push_back(
          maker.make(*communicators_[static_cast<size_t>(rank)], group_, maker.make_token()));
  }

  /// Appends random float32 values, in `dtype`, that are to arrive as `wire`.
  void AddTensor(DType dtype, DType wire, size_t elements) {
    std::vector<float> values(elements);
    for (float& value : values) value = std::normal_distribution<float>()(random_);
    std::vector<std::byte> stored(elements * SizeOf(dtype)), sent(elements * SizeOf(wire));
    ASSERT_TRUE(ConvertFloats(values.data(), DType::kF32, stored.data(), dtype, elements));
    ASSERT_TRUE(ConvertFloats(stored.data(), dtype, sent.data(), wire, elements));
    // Tensors of a checkpoint may begin anywhere.
    memory_.push_back(std::make_unique<DeviceBytes>(*source_, stored, 2 * memory_.size()));
    sources_.push_back({memory_.back()->data(), dtype, wire, static_cast<int64_t>(elements), ""});
    expected_.push_back(std::move(sent));
  }

  /// Moves all tensors; what each rank then has must be what is expected.
  void RunUpdate(uint64_t transfer) {
    DigestFold fold;
    for (const std::vector<std::byte>& tensor : expected_)
      fold.Add(DigestSum(tensor.data(), tensor.size()), tensor.size());
    const Deadline deadline = Clock::now() + std::chrono::seconds(60);
    std::vector<std::string> errors(kRanks + 1);
    std::vector<std::thread> threads;
    for (int rank = 1; rank <= kRanks; ++rank)
      threads.emplace_back([&, place = static_cast<size_t>(rank)] {
        try {
          DeviceTransfer& device = *targets_[place];
          std::vector<std::unique_ptr<DeviceBytes>> memory;
          std::vector<MutableBytes> spans;
          for (const auto& tensor : expected_) {
            memory.push_back(std::make_unique<DeviceBytes>(
                device, std::vector<std::byte>(tensor.size(), std::byte{0xcd}), 2 * spans.size()));
            spans.emplace_back(memory.back()->data(), tensor.size());
          }
          transports_[place]->Receive(transfer, spans, deadline, nullptr);
          for (size_t i = 0; i < memory.size(); ++i)
            if (memory[i]->Get() != expected_[i])
              errors[place] += StrCat("tensor ", i, " differs; ");
        } catch (const std::exception& error) {
          errors[place] = error.what();
        }
      });
    EXPECT_EQ(transports_[0]->Send(transfer, sources_, deadline, nullptr), fold.value());
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(errors, std::vector<std::string>(kRanks + 1));
  }

  std::mt19937 random_{1};
  std::vector<int> group_;
  std::unique_ptr<DeviceTransfer> source_ = MakeDeviceTransfer(GetParam().source);
  std::vector<std::unique_ptr<DeviceTransfer>> targets_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<WeightTransport>> transports_;
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  std::vector<SourceTensor> sources_;
  std::vector<std::vector<std::byte>> expected_;
};

TEST_P(MessageTransportTest, EveryRankGetsTheTensorsInTheirWireDType) {
  AddTensor(DType::kBF16, DType::kBF16, 17 * 12);
  AddTensor(DType::kF32, DType::kBF16, 3001);
  AddTensor(DType::kF32, DType::kF32, 1);
  AddTensor(DType::kBF16, DType::kF32, 2049);
  AddTensor(DType::kF32, DType::kF16, 33);
  AddTensor(DType::kF16, DType::kF16, 4096);
  RunUpdate(1);
  AddTensor(DType::kF16, DType::kBF16, 777);
  RunUpdate(2);
}

TEST_P(MessageTransportTest, AnUpdateOfManyBatches) {
  const size_t elements = 40 * GetParam().piece_bytes / 2 + 5;
  AddTensor(DType::kBF16, DType::kBF16, elements);
  AddTensor(DType::kF32, DType::kBF16, elements);
  RunUpdate(1);
}

TEST_P(MessageTransportTest, AValueThatLeftItsRangeAfterThePlanIsRefused) {
  const std::vector<float> values = {1, 2, 1e30f};
  const DeviceBytes memory(*source_, std::as_bytes(std::span(values)));
  const SourceTensor tensor{memory.data(), DType::kF32, DType::kF16, 3, ""};
  EXPECT_THROW(
      transports_[0]->Send(1, {&tensor, 1}, Clock::now() + std::chrono::seconds(10), nullptr),
      Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, MessageTransportTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return StrCat(info.param.source.substr(0, 4), "_to_",
                                         info.param.target.substr(0, 4), "_",
                                         info.param.piece_bytes);
                         });

/// The message transport under another name, as a second kind that a rank has.
class OtherTransport final : public WeightTransport {
 public:
  explicit OtherTransport(std::unique_ptr<WeightTransport> inner) : inner_(std::move(inner)) {}
  const char* name() const override { return "other"; }
  bool broken() const override { return inner_->broken(); }
  uint64_t Send(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                const Service& service) override {
    return inner_->Send(transfer, tensors, deadline, service);
  }
  void Receive(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
               const Service& service) override {
    inner_->Receive(transfer, spans, deadline, service);
  }

 private:
  std::unique_ptr<WeightTransport> inner_;
};

TEST(WeightTransports, TheAnnouncementNamesTheTransportAndRanksFollow) {
  std::atomic<int> made{0};
  const WeightTransportMaker mpi = MessageWeightTransport();
  const WeightTransportMaker other = {
      "other", [] { return std::string("token"); },
      [&](Communicator& communicator, const std::vector<int>& group, const std::string& token) {
        EXPECT_EQ(token, "token");
        ++made;
        return std::make_unique<OtherTransport>(mpi.make(communicator, group, ""));
      }};
  auto communicators = MakeThreadCommunicators(2);
  EXPECT_THROW(WeightPublisher(*communicators[0], {1}, {mpi, other}, "nccl", [](Message) {}),
               Error);
  WeightPublisher publisher(*communicators[0], {1}, {mpi, other}, "mpi", [](Message) {});
  ToyUpdateTarget target;
  std::atomic<bool> stop{false};
  std::thread rank([&] {
    std::function<void()> round;
    WeightReceiver receiver(*communicators[1], target, {other, mpi},
                            {[&] { round(); }, nullptr, nullptr});
    round = [&] {
      while (auto message = communicators[1]->Poll()) receiver.Handle(*message);
    };
    for (Backoff backoff; !stop; backoff.Wait()) round();
  });
  int version = 0;
  for (const std::string name : {"mpi", "other", "other", "mpi"}) {
    publisher.UseTransport(name);
    EXPECT_EQ(publisher.transport(), name);
    const TensorSet set = MakeTensors(ToyUpdateTarget::Manifest(), ++version);
    const SyncReport report = publisher.Publish(UpdateOptions(), set.tensors);
    EXPECT_TRUE(report.committed) << report.error;
    EXPECT_EQ(report.transport, name);
    EXPECT_EQ(target.Step().tensors, BytesOf(set));
  }
  EXPECT_THROW(publisher.UseTransport("nccl"), Error);
  stop = true;
  rank.join();
  EXPECT_EQ(made, 2);  // once on each side: the second update in a row goes by the same
}

TEST(FindTransportTest, TheErrorSaysWhichThereAre) {
  const std::vector<WeightTransportMaker> makers = {{"ipc", nullptr, nullptr},
                                                    {"mpi", nullptr, nullptr}};
  EXPECT_EQ(&FindTransport(makers, "mpi"), &makers[1]);
  try {
    FindTransport(makers, "nccl");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "weight transport \"nccl\": there is ipc, mpi");
  }
}

}  // namespace
}  // namespace rollcast
