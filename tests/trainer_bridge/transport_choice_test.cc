#include "trainer_bridge/transport_choice.h"

#include <gtest/gtest.h>

#include "tests/testing/expect_error.h"
#include "trainer_bridge/device_choice.h"

namespace rollcast {
namespace {

using testing::ExpectError;

RankInfo Rank(Role role, const std::string& host, const std::string& device, int gpus) {
  RankInfo info{role, "1", "", host, device, {}};
  for (int i = 0; i < gpus; ++i) info.gpus.push_back(StrCat(host, "-gpu", i));
  return info;
}
RankInfo Trainer(const std::string& host, const std::string& device, int gpus) {
  return Rank(Role::kTrainer, host, device, gpus);
}
RankInfo Worker(const std::string& host, const std::string& device, int gpus) {
  return Rank(Role::kWorker, host, device, gpus);
}

std::vector<std::string> Assigned(std::vector<RankInfo> ranks) {
  AssignDevices(ranks);
  std::vector<std::string> devices;
  for (const RankInfo& info : ranks) devices.push_back(info.device);
  return devices;
}

Roles Make(std::vector<RankInfo> ranks) {
  AssignDevices(ranks);
  return {std::move(ranks)};
}

using Names = std::vector<std::string>;

TEST(AssignDevices, WorkersTakeTheGpusOfTheirHostFromTheLastDownwardsBesideATrainer) {
  EXPECT_EQ(Assigned({Trainer("a", "cuda:0", 4), Worker("a", "auto", 4), Worker("b", "auto", 2),
                      Worker("a", "auto", 4), Worker("b", "cuda", 2)}),
            (Names{"cuda:0", "cuda:3", "cuda:1", "cuda:2", "cuda:0"}));
  EXPECT_EQ(Assigned({Trainer("a", "cpu", 0), Worker("a", "auto", 2), Worker("a", "auto", 2),
                      Worker("a", "auto", 2)}),
            (Names{"cpu", "cuda:1", "cuda:0", "cuda:1"}));
}

TEST(AssignDevices, AJobWithoutATrainerStartsAtTheFirstGpu) {
  EXPECT_EQ(Assigned({Worker("a", "auto", 2), Worker("a", "auto", 2)}),
            (Names{"cuda:0", "cuda:1"}));
  EXPECT_EQ(Assigned({Worker("a", "auto", 0), Worker("a", "cpu", 2)}), (Names{"cpu", "cpu"}));
}

TEST(AssignDevices, ADeviceThatIsAskedForIsKeptOrRefused) {
  EXPECT_EQ(Assigned({Trainer("a", "auto", 2), Worker("a", "cuda:1", 2), Worker("a", "cpu", 2),
                      Worker("a", "auto", 2)}),
            (Names{"cuda:0", "cuda:1", "cpu", "cuda:1"}));
  ExpectError(
      [] {
        Assigned({Worker("a", "cpu", 2), Worker("a", "cuda", 0)});
      },
      {"kernels.device = \"cuda\": rank 1 (worker on a) sees no GPU"});
  ExpectError([] { Assigned({Worker("a", "cuda:2", 2)}); },
              {"kernels.device = \"cuda:2\": rank 0 (worker on a) sees 2 GPUs"});
  ExpectError(
      [] {
        Assigned({Trainer("a", "cuda:1", 1), Worker("a", "cpu", 0)});
      },
      {"the trainer's device = \"cuda:1\": rank 0 (trainer on a) sees 1 GPUs"});
  for (const char* device : {"cuda:", "cuda:1x", "cuda:-1", "gpu"})
    ExpectError([&] { Assigned({Worker("a", device, 2)}); },
                {"expected auto, cpu, cuda or cuda:N"});
}

TEST(AssignDevices, WhoSharesAGpuIsNamed) {
  EXPECT_EQ(SharedDevices(Make({Trainer("a", "cuda:0", 2), Worker("a", "auto", 2)})), "");
  EXPECT_EQ(SharedDevices(Make({Trainer("a", "cuda:0", 2), Worker("a", "auto", 2),
                                Worker("a", "auto", 2), Worker("a", "auto", 2)})),
            "ranks 0 and 2 share a GPU (cuda:0 of a); ranks 1 and 3 share a GPU (cuda:1 of a)");
  // Every rank sees one GPU alone, a different one each.
  std::vector<RankInfo> ranks = {Trainer("a", "cuda:0", 1), Worker("a", "auto", 1)};
  ranks[1].gpus = {"a-gpu7"};
  EXPECT_EQ(SharedDevices(Make(ranks)), "");
}

TEST(ChooseTransport, TheCopyEngineOnOneHostThenNcclThenMpi) {
  const auto choose = [](std::vector<RankInfo> ranks) {
    const TransportChoice choice = ChooseTransport("auto", Make(std::move(ranks)));
    return choice.warning.empty() ? choice.name : choice.name + ": " + choice.warning;
  };
  EXPECT_EQ(choose({Trainer("a", "cuda:0", 2), Worker("a", "auto", 2)}), "ipc");
  EXPECT_EQ(choose({Trainer("a", "cuda:0", 1), Worker("a", "auto", 1)}), "ipc");  // one for both
  EXPECT_EQ(choose({Trainer("a", "cuda:0", 2), Worker("a", "auto", 2), Worker("b", "auto", 1)}),
            "nccl");
  EXPECT_EQ(
      choose({Trainer("a", "cuda:0", 2), Worker("b", "auto", 1), Worker("b", "auto", 1)}),
      "mpi: weights go over MPI, through the host's memory: ranks 1 and 2 share a GPU (cuda:0 "
      "of b)");
  EXPECT_EQ(choose({Worker("a", "auto", 2), Trainer("a", "cpu", 0)}),
            "mpi: weights go over MPI, through the host's memory: the trainer (rank 1) has no GPU "
            "of its own");
  EXPECT_EQ(choose({Trainer("a", "cuda:0", 2), Worker("a", "auto", 2), Worker("c", "cpu", 0)}),
            "mpi: weights go over MPI, through the host's memory: rank 2 on c has no GPU");
  EXPECT_EQ(choose({Trainer("a", "cpu", 0), Worker("a", "auto", 0)}), "mpi");  // nothing to warn of
  EXPECT_EQ(choose({Worker("a", "auto", 2), Worker("a", "auto", 2)}), "mpi");
}

TEST(ChooseTransport, WhatCannotWorkIsRefusedNamingTheRank) {
  const Roles two_hosts =
      Make({Trainer("a", "cuda:0", 2), Worker("a", "auto", 2), Worker("b", "auto", 1)});
  EXPECT_EQ(ChooseTransport("nccl", two_hosts).name, "nccl");
  EXPECT_EQ(ChooseTransport("mpi", two_hosts).name, "mpi");
  EXPECT_EQ(ChooseTransport("mpi", two_hosts).warning, "");
  ExpectError([&] { ChooseTransport("ipc", two_hosts); },
              {"sync.transport = \"ipc\" cannot work: rank 2 is on host b, rank 0 on a; set it to "
               "auto or mpi"});
  const Roles shared = Make({Trainer("a", "cuda:0", 1), Worker("a", "auto", 1)});
  EXPECT_EQ(ChooseTransport("ipc", shared).name, "ipc");
  ExpectError([&] { ChooseTransport("nccl", shared); },
              {"\"nccl\" cannot work: ranks 0 and 1 share a GPU (cuda:0 of a)"});
  ExpectError([&] { ChooseTransport("rdma", shared); }, {"expected auto, mpi, nccl or ipc"});
}

TEST(OfferedTransports, ARankWithoutAGpuHasMessagesAlone) {
  const auto names = [](const std::string& device) {
    Names found;
    for (const WeightTransportMaker& maker : OfferedTransports(device, "libnccl.so.2"))
      found.push_back(maker.name);
    return found;
  };
  EXPECT_EQ(names("cpu"), (Names{"mpi"}));
  EXPECT_EQ(names("cuda:0"), (Names{"mpi", "ipc", "nccl"}));
}

}  // namespace
}  // namespace rollcast
