#include "trainer_bridge/mpi_communicator.h"

#define OMPI_SKIP_MPICXX 1  // the C++ bindings do not compile cleanly and are not used
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <list>
#include <set>
#include <utility>

#include "trainer_bridge/watchdog.h"

namespace rollcast {
namespace {

constexpr int kControlTag = 1;
constexpr int kFirstBulkTag = 2;
constexpr int kPiecesInFlight = 8;  // of one transfer, each way
constexpr auto kServicePeriod = std::chrono::milliseconds(2);

std::string CodeName(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return StrCat("code ", code);
  return std::string(text.data(), static_cast<size_t>(length));
}

void Check(int code, const char* expression, int rank) {
  if (code != MPI_SUCCESS) [[unlikely]]
    throw MpiError(StrCat(expression, " failed on rank ", rank, ": ", CodeName(code)));
}
#define RC_MPI(call, rank) Check((call), #call, rank)

/// Buffers of sends that were given up: MPI may read them until it is finalized.
using Unfinished = std::list<std::vector<std::byte>>;

struct PendingSend {
  std::vector<std::byte> bytes;
  int destination;
  MPI_Request request;
};

struct PendingReceive {
  Message message;
  MPI_Request request;
  bool complete = false;
};

struct Orphan {
  int peer;
  MPI_Request request;
};

std::vector<MutableBytes> Cut(std::span<const MutableBytes> spans, size_t piece_bytes) {
  std::vector<MutableBytes> pieces;
  for (const MutableBytes span : spans)
    for (size_t begin = 0; begin < span.size(); begin += piece_bytes)
      pieces.push_back(span.subspan(begin, std::min(piece_bytes, span.size() - begin)));
  return pieces;
}

/// One direction of a transfer: a window of requests over pieces that start in order and may end in
/// any order.
class Lane {
 public:
  explicit Lane(int peer) : peer_(peer) {
    requests_.fill(MPI_REQUEST_NULL);
    piece_.fill(0);
  }
  int peer() const { return peer_; }
  bool full() const { return in_flight_ == kPiecesInFlight; }
  bool idle() const { return in_flight_ == 0; }

  MPI_Request* Add(size_t piece) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) continue;
      piece_[i] = piece;
      ++in_flight_;
      return &requests_[i];
    }
    RC_CHECK(false, "no free place in the window");
    return nullptr;
  }

  /// Calls done(piece, status) for each that has ended; true when any has.
  template <class Done>
  bool Test(int rank, Done done) {
    if (idle()) return false;
    int count = 0;
    std::array<int, kPiecesInFlight> ended{};
    std::array<MPI_Status, kPiecesInFlight> statuses{};
    const int code =
        MPI_Testsome(kPiecesInFlight, requests_.data(), &count, ended.data(), statuses.data());
    if (code != MPI_ERR_IN_STATUS) {
      RC_MPI(code, rank);
      for (MPI_Status& status : statuses) status.MPI_ERROR = MPI_SUCCESS;
    }
    if (count == MPI_UNDEFINED) return false;
    in_flight_ -= count;
    for (int i = 0; i < count; ++i)
      done(piece_[static_cast<size_t>(ended[static_cast<size_t>(i)])],
           statuses[static_cast<size_t>(i)]);
    return count > 0;
  }

  /// Gives the rest up; what MPI does not let go of yet is appended to `orphans`.
  void GiveUp(bool receiving, std::vector<Orphan>& orphans) noexcept {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      // Open MPI does not cancel sends; an unmatched receive it does.
      if (receiving) MPI_Cancel(&request);
      int done = 0;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (!done) orphans.push_back({peer_, request});
      request = MPI_REQUEST_NULL;
    }
    in_flight_ = 0;
  }

 private:
  int peer_;
  int in_flight_ = 0;
  std::array<MPI_Request, kPiecesInFlight> requests_;
  std::array<size_t, kPiecesInFlight> piece_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(int rank, int size, size_t piece_bytes, std::shared_ptr<Unfinished> unfinished)
      : rank_(rank), size_(size), piece_bytes_(piece_bytes), unfinished_(std::move(unfinished)) {
    RC_CHECK(piece_bytes > 0 && piece_bytes <= size_t{1} << 30, "piece of ", piece_bytes);
    RC_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), rank_);
    void* upper = nullptr;
    int found = 0;
    RC_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper, &found), rank_);
    bulk_tags_ = (found ? *static_cast<int*>(upper) : 32767) - kFirstBulkTag;
  }
  ~MpiCommunicator() override { Abandon(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  size_t bulk_piece_bytes() const override { return piece_bytes_; }

  void Send(int destination, std::vector<std::byte> bytes) override {
    RC_CHECK(destination >= 0 && destination < size_, "rank ", destination, " of ", size_);
    if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()))
      throw Error(StrCat("a message to rank ", destination, " has ", bytes.size(),
                         " bytes, the limit is ", std::numeric_limits<int>::max()));
    if (broken_.contains(destination)) return;
    sends_.push_back(PendingSend{std::move(bytes), destination, MPI_REQUEST_NULL});
    PendingSend& send = sends_.back();
    if (MPI_Isend(send.bytes.data(), static_cast<int>(send.bytes.size()), MPI_BYTE, destination,
                  kControlTag, MPI_COMM_WORLD, &send.request) != MPI_SUCCESS) {
      // The peer is unreachable: whoever waits for its answer will name it.
      broken_.insert(destination);
      sends_.pop_back();
    }
    ReapSends();
  }

  bool Flush(Deadline deadline) override {
    Backoff backoff;
    for (;;) {
      ReapSends();
      if (sends_.empty()) return true;
      if (Clock::now() >= deadline) return false;
      backoff.Wait();
    }
  }

  void SendBulk(int destination, uint64_t transfer, std::span<const ConstBytes> spans,
                Deadline deadline, const Service& service) override {
    std::vector<MutableBytes> writable;  // only so that both directions share the code below
    for (const ConstBytes span : spans)
      writable.emplace_back(const_cast<std::byte*>(span.data()), span.size());
    Run(-1, destination, transfer, writable, deadline, service);
  }
  void ReceiveBulk(int source, uint64_t transfer, std::span<const MutableBytes> spans,
                   Deadline deadline, const Service& service) override {
    Run(source, -1, transfer, spans, deadline, service);
  }
  void RelayBulk(int source, int destination, uint64_t transfer,
                 std::span<const MutableBytes> spans, Deadline deadline,
                 const Service& service) override {
    Run(source, destination, transfer, spans, deadline, service);
  }

  void Abandon() override {
    for (PendingSend& send : sends_) {
      MPI_Request_free(&send.request);
      unfinished_->push_back(std::move(send.bytes));
    }
    sends_.clear();
    for (auto* orphans : {&orphan_sends_, &orphan_receives_}) {
      for (Orphan& orphan : *orphans) MPI_Request_free(&orphan.request);
      orphans->clear();
    }
  }

 protected:
  std::optional<Message> PollTransport() override {
    ReapSends();
    // Take in what has arrived. A large message moves in the background, so a sender that dies in
    // the middle of one blocks nobody.
    constexpr size_t kReceivesInFlight = 64;
    while (receives_.size() < kReceivesInFlight) {
      int found = 0;
      MPI_Message handle = MPI_MESSAGE_NULL;
      MPI_Status status{};
      RC_MPI(MPI_Improbe(MPI_ANY_SOURCE, kControlTag, MPI_COMM_WORLD, &found, &handle, &status),
             rank_);
      if (!found) break;
      int bytes = 0;
      RC_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes), rank_);
      PendingReceive& receive = receives_.emplace_back();
      receive.message.source = status.MPI_SOURCE;
      receive.message.bytes.resize(static_cast<size_t>(bytes));
      RC_MPI(MPI_Imrecv(receive.message.bytes.data(), bytes, MPI_BYTE, &handle, &receive.request),
             rank_);
    }
    std::set<int> held_up;  // sources with an earlier message that is still on its way
    for (auto it = receives_.begin(); it != receives_.end(); ++it) {
      int done = 0;
      RC_MPI(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE), rank_);
      if (!done) held_up.insert(it->message.source);
      if (!done || held_up.contains(it->message.source)) continue;
      Message message = std::move(it->message);
      receives_.erase(it);
      return message;
    }
    return std::nullopt;
  }

 private:
  int BulkTag(uint64_t transfer) const {
    return kFirstBulkTag + static_cast<int>(transfer % static_cast<uint64_t>(bulk_tags_));
  }

  void ReapSends() {
    for (auto it = sends_.begin(); it != sends_.end();) {
      int done = 0;
      if (MPI_Test(&it->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        broken_.insert(it->destination);
        done = 1;
      }
      it = done ? sends_.erase(it) : std::next(it);
    }
  }

  void CheckPiece(uint64_t transfer, int peer, size_t expected, bool receiving,
                  const MPI_Status& status) const {
    if (status.MPI_ERROR == MPI_ERR_TRUNCATE)
      throw Error(StrCat("transfer ", transfer, ": a piece from rank ", peer, " has more than the ",
                         expected, " bytes expected"));
    if (status.MPI_ERROR != MPI_SUCCESS)
      throw PeerLost(peer, StrCat("bulk data with rank ", peer, " failed on rank ", rank_, ": ",
                                  CodeName(status.MPI_ERROR)));
    if (!receiving) return;
    int bytes = 0;
    RC_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes), rank_);
    if (static_cast<size_t>(bytes) != expected)
      throw Error(StrCat("transfer ", transfer, ": a piece from rank ", peer, " has ", bytes,
                         " bytes, expected ", expected));
  }

  /// Lets what an earlier, given-up transfer left behind come to its end: its late pieces must not
  /// fall into memory that is about to be filled again.
  void AwaitOrphans(std::vector<Orphan>& orphans, Deadline deadline, const Service& service) {
    Backoff backoff;
    while (!orphans.empty()) {
      std::erase_if(orphans, [](Orphan& orphan) {
        int done = 0;
        return MPI_Test(&orphan.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done;
      });
      if (orphans.empty()) return;
      if (Clock::now() >= deadline)
        throw PeerLost(orphans.front().peer,
                       StrCat("rank ", orphans.front().peer,
                              " is in the middle of an earlier bulk transfer with rank ", rank_));
      if (service) service();
      backoff.Wait();
    }
  }

  /// Receives `spans` from `source` (-1: they are there already) and sends them to `destination`
  /// (-1: nowhere), a piece as soon as it is there.
  void Run(int source, int destination, uint64_t transfer, std::span<const MutableBytes> spans,
           Deadline deadline, const Service& service) {
    if (source >= 0) AwaitOrphans(orphan_receives_, deadline, service);
    const std::vector<MutableBytes> pieces = Cut(spans, piece_bytes_);
    Lane in(source), out(destination);
    struct Cleanup {
      Lane &in, &out;
      MpiCommunicator& self;
      ~Cleanup() {
        in.GiveUp(true, self.orphan_receives_);
        out.GiveUp(false, self.orphan_sends_);
      }
    } cleanup{in, out, *this};

    std::vector<bool> here(pieces.size(), source < 0);
    size_t next_in = source < 0 ? pieces.size() : 0;
    size_t next_out = destination < 0 ? pieces.size() : 0;
    const int tag = BulkTag(transfer);
    Backoff backoff;
    auto next_service = Clock::now();
    while (next_in < pieces.size() || next_out < pieces.size() || !in.idle() || !out.idle()) {
      for (; next_in < pieces.size() && !in.full(); ++next_in)
        RC_MPI(MPI_Irecv(pieces[next_in].data(), static_cast<int>(pieces[next_in].size()), MPI_BYTE,
                         source, tag, MPI_COMM_WORLD, in.Add(next_in)),
               rank_);
      bool moved = in.Test(rank_, [&](size_t piece, const MPI_Status& status) {
        CheckPiece(transfer, source, pieces[piece].size(), true, status);
        here[piece] = true;
      });
      for (; next_out < pieces.size() && here[next_out] && !out.full(); ++next_out)
        RC_MPI(MPI_Isend(pieces[next_out].data(), static_cast<int>(pieces[next_out].size()),
                         MPI_BYTE, destination, tag, MPI_COMM_WORLD, out.Add(next_out)),
               rank_);
      moved |= out.Test(rank_, [&](size_t piece, const MPI_Status& status) {
        CheckPiece(transfer, destination, pieces[piece].size(), false, status);
      });
      const auto now = Clock::now();
      if (service && now >= next_service) {
        service();
        next_service = now + kServicePeriod;
      }
      if (now >= deadline && !(in.idle() && out.idle())) ThrowLate(in, out, transfer);
      if (moved)
        backoff.Reset();
      else
        backoff.Wait();
    }
  }

  [[noreturn]] void ThrowLate(const Lane& in, const Lane& out, uint64_t transfer) const {
    if (!in.idle())
      throw PeerLost(in.peer(), StrCat("rank ", in.peer(), " did not send bulk data in time (rank ",
                                       rank_, " receives transfer ", transfer, ")"));
    throw PeerLost(out.peer(), StrCat("rank ", out.peer(), " did not take bulk data in time (rank ",
                                      rank_, " sends transfer ", transfer, ")"));
  }

  const int rank_, size_;
  const size_t piece_bytes_;
  int bulk_tags_ = 0;
  std::shared_ptr<Unfinished> unfinished_;
  std::list<PendingSend> sends_;
  std::list<PendingReceive> receives_;
  std::vector<Orphan> orphan_sends_, orphan_receives_;
  std::set<int> broken_;  // peers that MPI has reported as unreachable
};

}  // namespace

bool MpiSession::Launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

MpiSession::MpiSession(MpiHost host, std::chrono::duration<double> start_limit)
    : unfinished_(std::make_shared<Unfinished>()) {
  const bool in_script = host == MpiHost::kScript;
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  RC_CHECK(in_script || !initialized, "MPI is initialised once in a process");
  if (finalized) throw MpiError("MPI has been finalized in this process; it cannot begin again");
  int provided = MPI_THREAD_SINGLE;
  if (initialized) {
    owned_ = false;
    RC_MPI(MPI_Query_thread(&provided), -1);
    // The bridge thread is another one than the program's.
    if (provided < MPI_THREAD_SERIALIZED)
      throw MpiError(
          "this process has initialised MPI for one thread; it must ask for MPI_THREAD_MULTIPLE "
          "(mpi4py does unless mpi4py.rc.thread_level is set), or leave MPI to rollcast");
  } else {
    const int wanted = in_script ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
    // It waits for all processes of the job, however long that takes.
    const Watchdog watchdog(start_limit, [start_limit] {
      std::fprintf(stderr,
                   "rollcast: MPI has not started within %g s: a process of this job has ended, or "
                   "has not joined it (a trainer that makes no client, say)\n",
                   start_limit.count());
      std::_Exit(1);
    });
    RC_MPI(MPI_Init_thread(nullptr, nullptr, wanted, &provided), -1);
    if (provided < MPI_THREAD_FUNNELED)
      throw MpiError("this MPI library offers no MPI_THREAD_FUNNELED");
  }
  RC_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), -1);
  RC_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size_), rank_);
}

MpiSession::~MpiSession() {
  if (owned_ && !finalized_) MPI_Abort(MPI_COMM_WORLD, 1);
}

std::unique_ptr<Communicator> MpiSession::MakeCommunicator(size_t bulk_piece_bytes) {
  return std::make_unique<MpiCommunicator>(rank_, size_, bulk_piece_bytes,
                                           std::static_pointer_cast<Unfinished>(unfinished_));
}

void MpiSession::Finalize() {
  RC_CHECK(!finalized_);
  finalized_ = true;
  if (owned_ && MPI_Finalize() != MPI_SUCCESS)
    throw MpiError(StrCat("MPI_Finalize failed on rank ", rank_));
}

void MpiSession::Finalize(int exit_status, std::chrono::milliseconds limit) {
  const Watchdog watchdog(limit, [=] { std::_Exit(exit_status != 0 ? exit_status : 1); });
  Finalize();
}

void MpiSession::Leave(int status) {
  RC_CHECK(status != 0);
  std::fflush(nullptr);
  std::_Exit(status);
}

void MpiSession::Abort(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status != 0 ? status : 1);
}

}  // namespace rollcast
