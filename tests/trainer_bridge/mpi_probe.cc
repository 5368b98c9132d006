// One rank of a small job that exercises the MPI communicator; mpi_test.cc starts it under mpirun.
// Usage: mpi_probe CASE. Prints what the test looks for and exits with 0 when all went as it
// should.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "tests/testing/toy_update_target.h"
#include "trainer_bridge/messages.h"
#include "trainer_bridge/mpi_communicator.h"
#include "trainer_bridge/roles.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {
namespace {

using testing::MakeTensors;
using testing::ToyUpdateTarget;

Deadline In(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void Expect(bool condition, const std::string& what) {
  if (!condition) throw Error(what);
}

std::vector<std::byte> Pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 131) ^ (i >> 9) ^ static_cast<size_t>(seed));
  return bytes;
}

Message AwaitAny(Communicator& communicator) {
  Backoff backoff;
  for (const Deadline limit = In(60); Clock::now() < limit; backoff.Wait())
    if (auto message = communicator.Poll()) return std::move(*message);
  throw Error("no message came in time");
}

Message Await(Communicator& communicator, int source) {
  Message message = AwaitAny(communicator);
  Expect(message.source == source, StrCat("a message from rank ", message.source));
  return message;
}

/// Small and large messages in order, then a chain of bulk data over all ranks.
void Transfer(Communicator& communicator) {
  const int rank = communicator.rank(), last = communicator.size() - 1;
  const size_t sizes[] = {2, 100, 3'000'000, 5, 20'000'000, 1};
  if (rank == 0) {
    for (size_t i = 0; i < std::size(sizes); ++i)
      for (int to = 0; to <= last; ++to)
        communicator.Send(to, Pattern(sizes[i], static_cast<int>(i)));
  }
  for (size_t i = 0; i < std::size(sizes); ++i)
    Expect(Await(communicator, 0).bytes == Pattern(sizes[i], static_cast<int>(i)),
           StrCat("message ", i, " has other bytes"));
  Expect(communicator.Flush(In(30)), "sends did not leave");

  const size_t bulk[] = {size_t{96} << 20, 1, 12'345, size_t{32} << 20};
  std::vector<std::vector<std::byte>> data;
  for (size_t i = 0; i < std::size(bulk); ++i)
    data.push_back(rank == 0 ? Pattern(bulk[i], static_cast<int>(i) + 50)
                             : std::vector<std::byte>(bulk[i]));
  int served = 0;
  // The clock starts when everybody is here and stops when the end of the chain has everything.
  if (rank > 0) communicator.Send(0, Encode(Heartbeat{}));
  if (rank == 0) {
    for (int i = 1; i <= last; ++i) AwaitAny(communicator);
    const auto start = Clock::now();
    const std::vector<ConstBytes> spans(data.begin(), data.end());
    communicator.SendBulk(1, 1, spans, In(60), [&] { ++served; });
    Await(communicator, last);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("bulk %.2f GB/s a rank\n", 0.134 / seconds);
  } else {
    const std::vector<MutableBytes> spans(data.begin(), data.end());
    if (rank == last)
      communicator.ReceiveBulk(rank - 1, 1, spans, In(60), [&] { ++served; });
    else
      communicator.RelayBulk(rank - 1, rank + 1, 1, spans, In(60), [&] { ++served; });
    if (rank == last) communicator.Send(0, Encode(Heartbeat{}));
    for (size_t i = 0; i < std::size(bulk); ++i)
      Expect(data[i] == Pattern(bulk[i], static_cast<int>(i) + 50), "bulk data differs");
  }
  Expect(served > 0, "the service was not called");
}

/// A transfer that nobody receives is given up; the next one has its own bytes.
void Stale(Communicator& communicator) {
  const size_t size = size_t{9} << 20;
  std::vector<std::byte> old = Pattern(size, 1), fresh = Pattern(size, 2);
  if (communicator.rank() == 0) {
    const ConstBytes old_span[] = {old}, fresh_span[] = {fresh};
    try {
      communicator.SendBulk(1, 1, old_span, In(0.2), {});
      throw Error("the send was not given up");
    } catch (const PeerLost& lost) {
      Expect(lost.rank() == 1, lost.what());
    }
    communicator.Send(1, Encode(Heartbeat{}));
    communicator.SendBulk(1, 2, fresh_span, In(30), {});
    // The other way round: rank 1 gives a receive up in the middle.
    Await(communicator, 1);
    communicator.SendBulk(1, 4, fresh_span, In(30), {});
  } else {
    Await(communicator, 0);
    std::vector<std::byte> got(size);
    const MutableBytes span[] = {got};
    communicator.ReceiveBulk(0, 2, span, In(30), {});
    Expect(got == fresh, "the second transfer has bytes of the first");
    try {
      communicator.ReceiveBulk(0, 3, span, In(0.1), {});
      throw Error("the receive was not given up");
    } catch (const PeerLost& lost) {
      Expect(lost.rank() == 0, lost.what());
    }
    communicator.Send(0, Encode(Heartbeat{}));
    communicator.ReceiveBulk(0, 4, span, In(30), {});
    Expect(got == fresh, "the fourth transfer differs");
  }
}

void Sizes(Communicator& communicator) {
  std::vector<std::byte> bytes(1000);
  if (communicator.rank() == 0) {
    const ConstBytes shorter[] = {ConstBytes(bytes).first(500)}, longer[] = {bytes};
    communicator.SendBulk(1, 1, shorter, In(30), {});
    communicator.SendBulk(1, 2, longer, In(30), {});
    return;
  }
  const MutableBytes all[] = {bytes}, half[] = {MutableBytes(bytes).first(500)};
  for (uint64_t transfer : {1, 2}) {
    try {
      communicator.ReceiveBulk(0, transfer, transfer == 1 ? all : half, In(30), {});
      throw std::logic_error("a piece of another size was taken");
    } catch (const Error& error) {
      std::printf("%s\n", error.what());
    }
  }
}

/// Rank 0 publishes, the others receive; with `kill`, the last rank kills itself in the middle of
/// the first transfer and rank 0 goes on without it.
void Update(Communicator& communicator, bool kill, double deadline_s) {
  const int size = communicator.size(), last = size - 1;
  const WireManifest manifest = ToyUpdateTarget::Manifest();
  if (communicator.rank() == 0) {
    std::vector<int> ranks;
    for (int rank = 1; rank < size; ++rank) ranks.push_back(rank);
    WeightPublisher publisher(communicator, ranks, {MessageWeightTransport()}, "mpi",
                              [](Message) {});
    UpdateOptions options;
    options.deadline = std::chrono::duration<double>(deadline_s);
    const auto first = MakeTensors(manifest, 1), second = MakeTensors(manifest, 2);
    const SyncReport lost = publisher.Publish(options, first.tensors);
    std::printf("first: committed %d version %d error %s\n", lost.committed,
                static_cast<int>(lost.version), lost.error.c_str());
    for (const int late : publisher.late()) publisher.LeaveBehind(late);
    const SyncReport next = publisher.Publish(options, second.tensors);
    std::printf("second: committed %d version %d ranks %d error %s\n", next.committed,
                static_cast<int>(next.version), static_cast<int>(publisher.ranks().size()),
                next.error.c_str());
    for (const int rank : publisher.ranks()) communicator.Send(rank, Encode(Heartbeat{}));
    communicator.Flush(In(5));
    return;
  }
  ToyUpdateTarget target;
  bool stop = false;
  std::function<void(const Message&)> handle;
  const auto round = [&] {
    while (auto message = communicator.Poll()) handle(*message);
  };
  WeightReceiver receiver(communicator, target, {MessageWeightTransport()},
                          {[&] {
                             if (kill && communicator.rank() == last) ::raise(SIGKILL);
                             round();
                           },
                           nullptr, nullptr});
  handle = [&](const Message& message) {
    if (!receiver.Handle(message)) stop = true;
  };
  Backoff backoff;
  for (const Deadline limit = In(60); !stop && Clock::now() < limit; backoff.Wait()) {
    round();
    receiver.Tick();
  }
  Expect(stop, "the trainer never ended");
  for (const auto& [name, bytes] : target.Step().tensors)
    Expect(bytes == BytesOf(MakeTensors(manifest, 2)).at(name), StrCat("other bytes in ", name));
  std::printf("rank %d has version %d\n", communicator.rank(), static_cast<int>(target.version()));
}

int Run(const std::string& name, MpiSession& session) {
  auto communicator = session.MakeCommunicator();
  bool peers_lost = false;
  if (name == "roles" || name == "mismatch") {
    RankInfo mine;
    mine.role = session.rank() == 0 ? Role::kTrainer : Role::kWorker;
    mine.rollcast_version = "1";
    mine.settings = name == "mismatch" && session.rank() == 1 ? "a.b = 8\n" : "a.b = 7\n";
    mine.host = "here";
    try {
      const Roles roles = ExchangeRoles(*communicator, mine, In(30));
      std::printf("rank %d: trainer %d, %d workers\n", session.rank(), roles.trainer(),
                  static_cast<int>(roles.workers().size()));
    } catch (const Error& error) {
      std::printf("rank %d: %s\n", session.rank(), error.what());
      communicator.reset();
      session.Finalize(2);
      return 2;
    }
  } else if (name == "transfer") {
    Transfer(*communicator);
  } else if (name == "stale") {
    Stale(*communicator);
  } else if (name == "sizes") {
    Sizes(*communicator);
  } else if (name == "update") {
    Update(*communicator, false, 30);
  } else if (name == "killed") {
    Update(*communicator, true, 3);
    peers_lost = true;
  } else if (name == "throw") {
    if (session.rank() == 1) throw Error("rank 1 breaks");
    Await(*communicator, 1);
  } else {
    throw Error("no such case: " + name);
  }
  std::fflush(stdout);
  communicator.reset();
  session.Finalize(0, peers_lost ? std::chrono::milliseconds(1500) : std::chrono::seconds(20));
  return 0;
}

}  // namespace
}  // namespace rollcast

int main(int argc, char** argv) {
  rollcast::MpiSession session;
  try {
    return rollcast::Run(argc > 1 ? argv[1] : "", session);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    std::fflush(stdout);
    return 1;  // the session has not been finalized and aborts the job
  }
}
